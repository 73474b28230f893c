"""Independent answers that tests compare with: a quadratic program, and derivatives by finite differences."""

from collections.abc import Callable

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
