"""The k best bit-vectors against all of them sorted."""

import itertools

import pytest
import torch
from torch import Tensor

from anymax.structured import topk_bits
from tests.each import each

pytestmark = pytest.mark.usefixtures("one_thread")


def all_totals(scores: Tensor) -> Tensor:
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=scores.shape[-1])), dtype=scores.dtype)
    return (scores @ every.T).sort(-1, descending=True).values


@each("num_bits", [1, 2, 5, 8])
@each("kind", ["random", "ties", "zeros"])
def test_they_are_the_best_of_all(num_bits: int, kind: str) -> None:
    scores = torch.randn(6, num_bits, dtype=torch.float64)
    scores = {"random": scores, "ties": scores.round(), "zeros": torch.zeros_like(scores)}[kind]
    for k in {1, 2, 3, 10, 2**num_bits - 1, 2**num_bits}:
        if not 1 <= k <= 2**num_bits:
            continue
        top = topk_bits(scores, k)
        torch.testing.assert_close(top.scores, all_totals(scores)[:, :k])
        torch.testing.assert_close((top.bits * scores[:, None]).sum(2), top.scores)
        assert all(len(own.unique(dim=0)) == k for own in top.bits)


def test_any_batch_shape_is_its_examples() -> None:
    scores = torch.randn(2, 3, 6)
    top = topk_bits(scores, 5)
    assert top.bits.shape == (2, 3, 5, 6) and top.scores.shape == (2, 3, 5)
    alone = topk_bits(scores[1, 2], 5)
    assert torch.equal(top.bits[1, 2], alone.bits) and torch.equal(top.scores[1, 2], alone.scores)
    assert topk_bits(scores[:0], 5).bits.shape == (0, 3, 5, 6)


def test_gradients_pass_through_the_sums() -> None:
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: topk_bits(s, 7).scores, (scores,))


def test_a_wide_problem_agrees_with_flipping_the_cheapest_bits() -> None:
    scores = torch.randn(8, 128)
    top = topk_bits(scores, 10)
    cheapest = scores.abs().double().sort(1).values[:, :9]
    flips = all_totals(-cheapest)[:, :10]
    best = scores.double().clamp(min=0).sum(1, keepdim=True)
    torch.testing.assert_close(top.scores.double(), best + flips, rtol=1e-6, atol=1e-5)
    assert (top.scores.diff(dim=1) <= 0).all() and all(len(own.unique(dim=0)) == 10 for own in top.bits)


def test_minus_infinity_keeps_a_bit_off_while_it_can_and_nan_is_not_silent() -> None:
    scores = torch.tensor([[1.0, -torch.inf, -0.5], [torch.nan, 1.0, 2.0], [torch.inf, 1.0, 2.0]])
    top = topk_bits(scores, 5)
    assert top.scores[0, :4].tolist() == [1.0, 0.5, 0.0, -0.5] and top.scores[0, 4] == -torch.inf
    assert (top.bits[0, :4, 1] == 0).all()
    assert top.bits[1:].isnan().all() and top.scores[1:].isnan().all()


def test_a_k_that_does_not_fit_is_refused() -> None:
    for k in (0, 9):
        with pytest.raises(ValueError, match="k must be between 1 and the 8 vectors of 3 bits"):
            topk_bits(torch.randn(2, 3), k)
    with pytest.raises(TypeError, match="k must be an integer"):
        topk_bits(torch.randn(2, 3), 2.0)  # type: ignore[arg-type]
