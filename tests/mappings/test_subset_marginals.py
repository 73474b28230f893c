"""Subset marginals against a quadratic program and exact arithmetic."""

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import anymax
from tests.each import each
from tests.oracles import nearest_point, subset_marginals_exactly


def rows_of_all_scales() -> Iterator[Tensor]:
    """Rows of one scale, of a different scale per entry, and of small scores beside large ones."""
    for power in range(-30, 31, 5):
        yield torch.randn(6, dtype=torch.float64) * 10.0**power
    for spread in (2, 10, 30):
        for _ in range(4):
            yield torch.randn(6, dtype=torch.float64) * 10 ** (torch.rand(6, dtype=torch.float64) * 2 - 1).mul(spread)
    for large in (1e3, 1e6, 1e8, 1e16, 1e30):
        yield torch.tensor([large, 0.3, 0.1, -large, -0.2, 2 * large], dtype=torch.float64)
        yield torch.tensor([large, large + 0.25, large - 0.5, large, -large, 0.0], dtype=torch.float64)


@each("k", [1, 2, 2.5, 4, 6])
@each("scale", [0.2, 1.0, 3.0])
def test_is_the_nearest_point_of_the_polytope(k: float, scale: float) -> None:
    scores = torch.randn(6, 6, dtype=torch.float64) * scale
    expected = nearest_point(scores, total=k, upper=1.0)
    torch.testing.assert_close(anymax.subset_marginals(scores, k), expected, rtol=0, atol=1e-6)


def test_is_sparsemax_when_one_is_chosen() -> None:
    scores = torch.randn(10, 7, dtype=torch.float64)
    torch.testing.assert_close(anymax.subset_marginals(scores, 1), anymax.sparsemax(scores), rtol=0, atol=1e-12)


def test_k_may_differ_by_row_and_gets_a_gradient() -> None:
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([[1.3], [2.0], [4.6]], dtype=torch.float64, requires_grad=True)
    marginals = anymax.subset_marginals(scores, k)
    torch.testing.assert_close(marginals.sum(-1, keepdim=True), k)
    assert torch.autograd.gradcheck(anymax.subset_marginals, (scores, k), eps=1e-7, atol=1e-6)


def test_a_row_with_fewer_than_k_left_chooses_all_of_them() -> None:
    mask = torch.tensor([[True, False, True, False, False]])
    marginals = anymax.subset_marginals(torch.randn(1, 5), 3, mask=mask)
    torch.testing.assert_close(marginals, mask.float())


def test_far_apart_scores_do_not_lose_the_total() -> None:
    scores = torch.tensor([[1e6, 1e6 + 0.25, -1e6, 3.0, -torch.inf]])
    torch.testing.assert_close(anymax.subset_marginals(scores, 3).sum(), torch.tensor(3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_exact_for_scores_of_every_scale_with_its_gradient(dtype: torch.dtype) -> None:
    eps, num_smooth = torch.finfo(dtype).eps, 0
    for row in rows_of_all_scales():
        scores, weights = row.to(dtype).requires_grad_(), torch.randn(6, dtype=dtype)
        for k in (0.25, 1, 2, 2.5, 4, 5.75, 6):
            expected, margin = subset_marginals_exactly([Fraction(score) for score in scores.tolist()], Fraction(k))
            marginals = anymax.subset_marginals(scores, k)
            (gradient,) = torch.autograd.grad((marginals * weights).sum(), scores)
            torch.testing.assert_close(
                marginals.detach(), torch.tensor([float(p) for p in expected], dtype=dtype), rtol=0, atol=2 * eps
            )
            torch.testing.assert_close(marginals.double().sum().item(), float(k), rtol=0, atol=6 * eps)
            assert gradient.isfinite().all()
            # At a corner the gradient jumps.
            if margin > 1e-9:
                num_smooth += 1
                is_free = torch.tensor([0 < p < 1 for p in expected])
                mean = weights[is_free].sum() / is_free.sum().clamp(min=1)
                torch.testing.assert_close(gradient, torch.where(is_free, weights - mean, 0), rtol=0, atol=8 * eps)
    assert num_smooth > 100


def test_small_scores_beside_a_large_one_share_what_is_left() -> None:
    for large in (1e6, 1e8, 1e30):
        marginals = anymax.subset_marginals(torch.tensor([large, 0.3, 0.1, -5.0]), 2)
        torch.testing.assert_close(marginals, torch.tensor([1.0, 0.6, 0.4, 0.0]))


def test_a_k_of_zero_gives_zeros_and_a_zero_gradient() -> None:
    scores = torch.randn(3, 5, requires_grad=True)
    per_row = torch.tensor([[0.0], [2.0], [0.0]], requires_grad=True)
    for k in (0, 0.0, per_row):
        marginals = anymax.subset_marginals(scores, k)
        (gradient,) = torch.autograd.grad((marginals * torch.randn(3, 5)).sum(), scores)
        assert (marginals[::2] == 0).all() and (gradient[::2] == 0).all()
        assert marginals[1].sum().round() == (0 if not isinstance(k, Tensor) else 2)


@pytest.mark.parametrize("k", [-0.5, 6, float("nan")])
def test_a_k_outside_its_range_is_refused(k: float) -> None:
    for value in (k, torch.tensor([[2.0], [k]])):
        with pytest.raises(ValueError, match="k must"):
            anymax.subset_marginals(torch.randn(2, 5), value)


def test_a_long_row_keeps_its_total() -> None:
    marginals = anymax.subset_marginals(torch.randn(200_000), 50_000)
    torch.testing.assert_close(marginals.double().sum().item(), 50_000.0, rtol=1e-7, atol=0)
