"""Omega of entmax, the negative Tsallis entropy, and its derivative by alpha, in plain torch.

Shapes: R rows, N entries, A is R or 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def tsallis(probs_RN: Tensor, alpha_A: Tensor) -> Tensor:
    """Omega of entmax, one number per row: (sum p^alpha - 1) / (alpha (alpha - 1)), and sum p log p at alpha 1."""
    return (probs_RN * _log_alpha(probs_RN, alpha_A)).sum(1) / alpha_A


def tsallis_by_alpha(probs_RN: Tensor, alpha_A: Tensor) -> Tensor:
    """The derivative of `tsallis` by alpha at fixed probabilities, one number per row."""
    log_RN = _safe_log(probs_RN)
    t_RN = (alpha_A[:, None] - 1) * log_RN
    # The derivative of expm1(t) / t, whose k-th coefficient is (k + 1) / (k + 2)!.
    slope_RN = _entire(t_RN, lambda k: (k + 1) / (k * (k + 2)), lambda t: 2 * (t.exp() * (t - 1) + 1) / t**2) / 2
    return ((probs_RN * log_RN**2 * slope_RN).sum(1) - tsallis(probs_RN, alpha_A)) / alpha_A


def _log_alpha(probs_RN: Tensor, alpha_A: Tensor) -> Tensor:
    """(p^a - 1) / a with a = alpha - 1, which is log p at a = 0; zero where p is."""
    log_RN = _safe_log(probs_RN)
    t_RN = (alpha_A[:, None] - 1) * log_RN
    return log_RN * _entire(t_RN, lambda k: 1 / (k + 1), lambda t: torch.expm1(t) / t)


def _safe_log(probs_RN: Tensor) -> Tensor:
    return torch.where(probs_RN > 0, probs_RN, 1).log()


def _entire(t_RN: Tensor, ratio: Callable[[int], float], formula: Callable[[Tensor], Tensor]) -> Tensor:
    """A function that is 1 at zero: by its formula, and near zero by its series, from the ratios of coefficients."""
    near_RN = t_RN.abs() < 0.5
    small_RN = torch.where(near_RN, t_RN, 0)
    series_RN = torch.ones_like(t_RN)
    for k in range(14, 0, -1):
        series_RN = 1 + series_RN * small_RN * ratio(k)
    return torch.where(near_RN, series_RN, formula(torch.where(near_RN, 1, t_RN)))
