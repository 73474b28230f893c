"""Label smoothing that leaves a word out: the loss of OpenNMT's target distribution, written down word by word."""

import pytest
import torch

from anymax import PLIF
from anymax.vocabulary import FullOutput
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS, PAD, SHARE = 9, 2, 0.3


def expected(output: FullOutput, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with the distribution that has the share evenly on all words but padding and the target."""
    wanted = torch.full((len(target), WORDS), SHARE / (WORDS - 2), dtype=hidden.dtype)
    wanted[:, PAD] = 0
    wanted.scatter_(1, target.clamp(min=0)[:, None], 1 - SHARE)
    return -(wanted * output.log_probs(hidden)).sum(-1) * (target != -100)


@each("bias", [True, False])
def test_the_loss_and_its_gradients_are_those_of_the_smoothed_distribution(bias: bool):
    output = FullOutput(WORDS, 4, bias=bias, label_smoothing=SHARE, unsmoothed=PAD).double()
    if bias:
        torch.nn.init.normal_(output.bias)
    hidden, target = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 8, -100, 5, 3, 3])
    of_tokens = expected(output, hidden, target)
    torch.testing.assert_close(output(hidden, target, "none"), of_tokens)
    torch.testing.assert_close(output(hidden, target, "sum"), of_tokens.sum())
    torch.testing.assert_close(output(hidden, target), of_tokens.sum() / 5)
    inputs = [hidden.requires_grad_(), *output.parameters()]
    ours = torch.autograd.grad(output(hidden, target), inputs)
    torch.testing.assert_close(ours, torch.autograd.grad(expected(output, hidden, target).sum() / 5, inputs))


def test_without_smoothing_the_word_makes_no_difference():
    torch.manual_seed(0)
    with_word = FullOutput(WORDS, 4, unsmoothed=PAD)
    without = FullOutput(WORDS, 4)
    without.load_state_dict(with_word.state_dict())
    hidden, target = torch.randn(3, 4), torch.tensor([1, 2, 3])
    assert with_word(hidden, target).equal(without(hidden, target))


def test_what_cannot_be_smoothed_so_is_refused():
    with pytest.raises(ValueError, match="unsmoothed must be a word of the vocabulary"):
        FullOutput(WORDS, 4, unsmoothed=WORDS)
    with pytest.raises(ValueError, match="unsmoothed must be None with a transform"):
        FullOutput(WORDS, 4, unsmoothed=PAD, transform=PLIF(10))
    with pytest.raises(ValueError, match="label_smoothing must be at most"):
        FullOutput(WORDS, 4, unsmoothed=PAD, label_smoothing=0.9)
