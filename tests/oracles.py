"""Independent answers that tests compare with: a quadratic program, long arithmetic, and finite differences."""

from collections.abc import Callable

import mpmath
import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor


def nearest_point(scores: Tensor, total: float, upper: float | None) -> Tensor:
    """argmin |p - scores|^2 over 0 <= p <= upper with sum p = total, by a sequential quadratic programme, per row."""
    rows = []
    for row in scores.double().numpy():
        n = len(row)
        result = minimize(
            lambda p, row=row: 0.5 * np.sum((p - row) ** 2),
            np.full(n, total / n),
            jac=lambda p, row=row: p - row,
            bounds=[(0, upper)] * n,
            constraints=[{"type": "eq", "fun": lambda p: p.sum() - total, "jac": np.ones_like}],
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert result.success, result.message
        rows.append(result.x)
    return torch.tensor(np.array(rows))


def slope(function: Callable[[float], Tensor], at: float, step: float = 1e-4) -> Tensor:
    """The derivative by central differences of fourth order; `function` should compute in float64."""
    near = function(at + step) - function(at - step)
    far = function(at + 2 * step) - function(at - 2 * step)
    return (8 * near - far) / (12 * step)


def entmax_exactly(scores: Tensor, alpha: float) -> Tensor:
    """Entmax of one row by bisection in 300 digits."""
    with mpmath.workdps(300):
        a = mpmath.mpf(alpha) - 1
        z = [mpmath.mpf(score) - mpmath.mpf(scores.max().item()) for score in scores.tolist()]

        def probs(theta: mpmath.mpf) -> list[mpmath.mpf]:
            return [(a * (score - theta)) ** (1 / a) if score > theta else mpmath.mpf(0) for score in z]

        low, high = -1 / a, mpmath.mpf(0)
        for _ in range(990):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(probs(middle)) > 1 else (low, middle)
        return torch.tensor([float(p) for p in probs(low)], dtype=torch.float64)
