"""Independent answers that tests compare with: a quadratic program, exact and long arithmetic, differences."""

from collections.abc import Callable
from fractions import Fraction

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


def heavy_entmax_exactly(scores: Tensor, alpha: float) -> Tensor:
    """Entmax of one row for alpha below 1, by bisection in 50 digits."""
    with mpmath.workdps(50):
        a = mpmath.mpf(alpha) - 1
        z = [mpmath.mpf(score) - mpmath.mpf(scores.max().item()) for score in scores.tolist()]

        def probs(place: mpmath.mpf) -> list[mpmath.mpf]:
            return [(1 + a * (score - place)) ** (1 / a) for score in z]

        low, high = mpmath.mpf(0), (1 - mpmath.mpf(len(z)) ** -a) / a
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(probs(middle)) > 1 else (low, middle)
        return torch.tensor([float(p) for p in probs(low)], dtype=torch.float64)


def long_heavy_entmax(scores: Tensor, alpha: float) -> Tensor:
    """Entmax of one long row for alpha below 1, by bisection in numpy's longest float."""
    a = np.longdouble(alpha) - 1
    z = scores.double().numpy().astype(np.longdouble)
    z -= z.max()

    def probs(place: np.longdouble) -> np.ndarray:
        return np.exp(np.log1p(a * (z - place)) / a)

    low, high = np.longdouble(0), (1 - np.longdouble(len(z)) ** -a) / a
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if probs(middle).sum() > 1 else (low, middle)
    return torch.tensor(probs(low).astype(np.float64))


def subset_marginals_exactly(scores: list[Fraction], k: Fraction) -> tuple[list[Fraction], Fraction]:
    """The clip(scores - tau, 0, 1) that sum to k, in exact arithmetic, and how far the nearest entry is from a corner.

    Every way to cut the ranking into chosen, undecided and left out is tried, until one is consistent.
    """
    ranked = sorted(scores, reverse=True)
    for num_full in range(len(scores) + 1):
        for num_free in range(len(scores) - num_full + 1):
            full, free, out = ranked[:num_full], ranked[num_full : num_full + num_free], ranked[num_full + num_free :]
            highest = [full[-1] - 1] if full else []
            lowest = out[:1]
            if free:
                tau = (sum(free) + num_full - k) / num_free
                is_right = all(0 <= score - tau <= 1 for score in free)
            else:
                is_right = k == num_full
                tau = sum(highest + lowest) / len(highest + lowest)
            if is_right and all(tau <= most for most in highest) and all(tau >= least for least in lowest):
                margin = min(abs(score - tau - corner) for score in scores for corner in (0, 1))
                return [min(max(score - tau, Fraction(0)), Fraction(1)) for score in scores], margin
    raise AssertionError("no cut is consistent")
