"""Contexts with vectors of their own: the loss of whole distributions, and modes on a circle."""

import pytest
import torch
from torch import Tensor

from anymax import entmax, fenchel_young_loss
from anymax.models.free_contexts import FreeContexts, circle
from anymax.transforms import PLIF, MonotonicNetwork, Sig
from anymax.vocabulary import AdaptiveOutput, Bands, FullOutput, MixtureOutput, OutputLayer, SparseOutput

WORDS, DIM, CONTEXTS = 11, 3, 6


def outputs() -> dict[str, OutputLayer]:
    torch.manual_seed(1)
    return {
        "linear": FullOutput(WORDS, DIM),
        "bias": FullOutput(WORDS, DIM, bias=True),
        "sig": FullOutput(WORDS, DIM, transform=Sig()),
        "plif": FullOutput(WORDS, DIM, transform=PLIF(20, 5.0, random_start=True)),
        "monotone": FullOutput(WORDS, DIM, transform=MonotonicNetwork(4)),
        "mixture": MixtureOutput(WORDS, DIM, num_experts=3, bias=False),
        "sparse": SparseOutput(WORDS, DIM),
        "learned": SparseOutput(WORDS, DIM, alpha=1.3, learn_alpha=True),
    }


def targets() -> Tensor:
    return (3 * torch.randn(CONTEXTS, WORDS, dtype=torch.float64)).softmax(1)


@pytest.mark.parametrize("name", [name for name in outputs() if name not in ("sparse", "learned")])
def test_the_loss_is_the_cross_entropy_of_the_whole_target(name: str):
    model = FreeContexts(CONTEXTS, outputs()[name]).double()
    chosen = torch.tensor([4, 0, 2])
    target = targets()[chosen]
    by_word = torch.stack(
        [model.output(model.vectors[chosen], torch.full((3,), word), "none") for word in range(WORDS)], dim=1
    )
    assert model(chosen, target).item() == pytest.approx((target * by_word).sum().item())


def test_the_loss_of_a_sparse_output_is_the_fenchel_young_loss_of_its_entmax():
    model = FreeContexts(CONTEXTS, outputs()["sparse"]).double()
    every = torch.arange(CONTEXTS)
    expected = fenchel_young_loss(
        model.vectors @ model.output.table.T,
        targets_of := targets(),
        mapping=lambda scores: entmax(scores, 1.5),
        # The regularizer of alpha 1.5, with alpha (alpha - 1) below.
        omega=lambda probs: (probs**1.5 - probs).sum() / 0.75,
        reduction="sum",
    )
    assert model(every, targets_of).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("name", list(outputs()))
def test_every_parameter_learns_and_an_empty_batch_gives_zeros(name: str):
    model = FreeContexts(CONTEXTS, outputs()[name])
    model(torch.arange(CONTEXTS), targets().float()).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(parameter.grad.any() for parameter in model.parameters() if parameter.dim())
    model.zero_grad()
    empty = model(torch.empty(0, dtype=torch.long), torch.empty(0, WORDS))
    empty.backward()
    assert empty.item() == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("name", list(outputs()))
def test_log_probs_are_of_all_contexts_and_sum_to_one(name: str):
    log_probs = FreeContexts(CONTEXTS, outputs()[name]).log_probs()
    assert log_probs.shape == (CONTEXTS, WORDS)
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(CONTEXTS), atol=1e-5)


@pytest.mark.parametrize(
    "output", [FullOutput(WORDS, DIM, dim=2), AdaptiveOutput(Bands.from_cutoffs([4], WORDS, dim=4, factor=2), 4)]
)
def test_another_output_is_refused(output: OutputLayer):
    with pytest.raises(ValueError, match="output must be a FullOutput, MixtureOutput or SparseOutput"):
        FreeContexts(CONTEXTS, output)


@pytest.mark.parametrize("num_words", [2, 3, 50, 10_000])
def test_two_dimensions_are_enough_for_any_mode_of_any_number_of_words(num_words: int):
    modes = torch.randint(num_words, (40,))
    log_probs = circle(modes, num_words).log_probs()
    assert torch.equal(log_probs.argmax(1), modes)
    # No word is as likely as the mode.
    assert ((log_probs == log_probs.amax(1, keepdim=True)).sum(1) == 1).all()


def test_the_circle_has_the_rank_of_any_linear_softmax_and_sharpens_with_its_radius():
    modes = torch.arange(12)
    assert torch.linalg.matrix_rank(circle(modes, 12).log_probs()) <= 3
    likelihoods = [circle(modes, 12, radius=radius).log_probs().amax(1).mean() for radius in (1.0, 10.0, 1000.0)]
    assert likelihoods[0] < likelihoods[1] < likelihoods[2] and likelihoods[2] > -1e-6
    with pytest.raises(ValueError, match="radius must be a positive finite number"):
        circle(modes, 12, radius=0.0)
