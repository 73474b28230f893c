"""Softpick against its definition in numbers that neither overflow nor round."""

import mpmath
import pytest
import torch
from torch import Tensor

import anymax
from anymax.mappings import Softpick


def exactly(row: Tensor, eps: float) -> Tensor:
    with mpmath.workdps(60):
        above = [mpmath.expm1(mpmath.mpf(z)) for z in row.tolist()]
        total = sum(abs(value) for value in above) + eps
        return torch.tensor([float(max(value, 0) / total) for value in above], dtype=torch.float64)


def test_it_is_the_definition_for_scores_of_any_size() -> None:
    for spread in (1e-12, 1e-3, 1.0, 30.0, 1e3, 1e30):
        scores = torch.randn(3, 6, dtype=torch.float64) * spread
        wanted = torch.stack([exactly(row, 1e-8) for row in scores])
        torch.testing.assert_close(anymax.softpick(scores), wanted, rtol=1e-12, atol=1e-300)
    row = torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(Softpick(eps=0.1)(row), exactly(row, 0.1))


def test_a_row_below_zero_chooses_nothing() -> None:
    scores = torch.tensor([[-1.0, -0.5, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    weights = anymax.softpick(scores)
    assert (weights == 0).all()
    weights.sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all()


def test_an_eps_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="eps must be above 0, got 0"):
        anymax.softpick(torch.randn(3), eps=0)
