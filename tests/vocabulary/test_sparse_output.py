"""The sparse output layer: its loss is the entmax loss, its probabilities are entmax's."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import anymax
from anymax.vocabulary import FullOutput, SparseOutput
from anymax.vocabulary.output import COPIES


@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.2, 1.5, 2.0, 3.0])
def test_is_entmax_of_a_linear_layer_with_its_loss(alpha: float) -> None:
    layer = SparseOutput(30, 6, alpha=alpha, dim=4, bias=True)
    hidden, target = 3 * torch.randn(5, 4, 6), torch.randint(30, (5, 4))
    scores = hidden @ layer.projection @ layer.table.T + layer.bias
    torch.testing.assert_close(layer.log_probs(hidden).exp(), anymax.entmax(scores, alpha), rtol=1e-4, atol=1e-6)
    for reduction in ("mean", "sum", "none"):
        torch.testing.assert_close(
            layer(hidden, target, reduction), anymax.entmax_loss(scores, target, alpha, reduction=reduction)
        )


def test_at_alpha_one_it_is_the_full_output() -> None:
    layer, full = SparseOutput(30, 6, alpha=1.0), FullOutput(30, 6)
    full.table = layer.table
    hidden, target = torch.randn(20, 6), torch.randint(30, (20,))
    torch.testing.assert_close(layer(hidden, target), full(hidden, target))
    torch.testing.assert_close(layer.log_prob(hidden, target), full.log_prob(hidden, target))


def test_words_outside_the_support_have_log_probability_minus_infinity() -> None:
    layer = SparseOutput(30, 6)
    hidden = 4 * torch.randn(20, 6)
    log_probs = layer.log_probs(hidden)
    worst = log_probs.argmin(-1)
    assert (log_probs.gather(1, worst[:, None]) == -torch.inf).all()
    assert (layer.log_prob(hidden, worst) == -torch.inf).all()
    assert layer(hidden, worst).isfinite()


def test_the_gradient_of_log_prob_is_that_of_the_log_and_zero_outside_the_support() -> None:
    layer = SparseOutput(12, 4, alpha=1.4, learn_alpha=True).double()
    hidden = torch.randn(40, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randint(12, (40,))
    target[::5] = -100
    log_prob = layer.log_prob(hidden, target)
    inside = log_prob.isfinite() & (target != -100)
    assert 0 < inside.sum() < 32
    sources = [hidden, *layer.parameters()]
    probs = anymax.entmax(hidden @ layer.table.T, layer.alpha)[inside].gather(1, target[inside][:, None])
    expected = torch.autograd.grad(probs.log().sum(), sources)
    torch.testing.assert_close(torch.autograd.grad(log_prob[log_prob.isfinite()].sum(), sources), expected)
    everything = torch.autograd.grad(layer.log_prob(hidden, target).sum(), sources)
    torch.testing.assert_close(everything, expected)


def test_log_prob_never_holds_tokens_times_vocabulary() -> None:
    class LargestTensor(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for value in result if isinstance(result, tuple | list) else [result]:
                if isinstance(value, torch.Tensor):
                    self.numel = max(self.numel, value.numel())
            return result

    layer = SparseOutput(500, 4, memory_budget=COPIES * 10 * 500 * 4)
    hidden, target = torch.randn(200, 4, requires_grad=True), torch.randint(500, (200,))
    with LargestTensor() as largest:
        log_prob = layer.log_prob(hidden, target)
        log_prob[log_prob.isfinite()].sum().backward()
    assert largest.numel == 10 * 500


def test_a_learned_alpha_starts_where_asked_and_moves() -> None:
    layer = SparseOutput(30, 6, alpha=1.7, learn_alpha=True)
    torch.testing.assert_close(layer.alpha, torch.tensor([1.7]))
    hidden, target = torch.randn(20, 6), torch.randint(30, (20,))
    loss = layer(hidden, target)
    (by_alpha,) = torch.autograd.grad(loss, layer.mapping.pre_alpha)
    assert by_alpha.isfinite().all() and by_alpha != 0
    assert SparseOutput(30, 6, alpha=1.7).alpha == 1.7


def test_label_smoothing_is_that_of_the_loss() -> None:
    layer = SparseOutput(30, 6, label_smoothing=0.1)
    hidden, target = torch.randn(20, 6), torch.randint(30, (20,))
    expected = anymax.entmax_loss(hidden @ layer.table.T, target, 1.5, label_smoothing=0.1)
    torch.testing.assert_close(layer(hidden, target), expected)


def test_samples_stay_in_the_support_when_hot() -> None:
    layer = SparseOutput(30, 6)
    hidden = 4 * torch.randn(400, 6)
    words = layer.sample(hidden, temperature=100.0)
    assert layer.log_prob(hidden, words).isfinite().all()


def test_wrong_alphas_are_refused() -> None:
    with pytest.raises(ValueError, match="alpha must be finite and at least 0"):
        SparseOutput(30, 6, alpha=-0.5)
    with pytest.raises(ValueError, match="alpha must be above 0 for a loss"):
        SparseOutput(30, 6, alpha=0.0)
    for alpha in (1.0, 2.0, 2.5):
        with pytest.raises(ValueError, match="alpha must start strictly between 1 and 2 to be learned"):
            SparseOutput(30, 6, alpha=alpha, learn_alpha=True)
