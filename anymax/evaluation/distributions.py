"""How near distributions are to known ones, row by row.

Shapes: N rows, M words.
"""

import torch
from torch import Tensor

# What every probability is raised by before it is smoothed, so that a zero costs 13.8 nats and not infinitely many.
EPSILON = 1e-6


def nearness(log_probs: Tensor, log_targets: Tensor, *, has_zeros: bool) -> dict[str, float]:
    """Means over rows of the distances between distributions and their targets; in float64.

    - cross_entropy, kl: -<target, log p>, and that less the entropy of the target. Left out where probabilities may be
      zero, as both are infinite if one is.
    - smoothed_kl: of (p + epsilon) / (1 + epsilon M), epsilon 1e-6, which has no zeros.
    - total_variation: half the sum of absolute differences.
    - mode_matching: the share of rows whose likeliest word is that of the target. A row with several likeliest words
      has no mode, and is a miss.
    - mode_ties: the share of such rows.
    - support: how many words have a probability above zero; only where some may not.

    Args:
        log_probs: (N, M); -inf is a probability of zero.
        log_targets: (N, M), all finite.
        has_zeros: whether probabilities may be zero.
    """
    log_probs_NM, log_targets_NM = log_probs.double(), log_targets.double()
    _check(log_probs_NM, log_targets_NM, has_zeros)
    probs_NM, targets_NM = log_probs_NM.exp(), log_targets_NM.exp()
    tops_N1 = log_probs_NM.amax(1, keepdim=True)
    is_tied_N = (log_probs_NM == tops_N1).sum(1) > 1
    is_match_N = (log_probs_NM.argmax(1) == log_targets_NM.argmax(1)) & ~is_tied_N
    smoothed_NM = ((probs_NM + EPSILON) / (1 + EPSILON * probs_NM.shape[1])).log()
    measured = {
        "smoothed_kl": _mean_inner(targets_NM, log_targets_NM - smoothed_NM),
        "total_variation": _mean_inner((probs_NM - targets_NM).abs(), torch.full_like(probs_NM, 0.5)),
        "mode_matching": float(is_match_N.double().mean()),
        "mode_ties": float(is_tied_N.double().mean()),
    }
    if has_zeros:
        return {**measured, "support": float((probs_NM > 0).sum(1).double().mean())}
    likelihood = {
        "cross_entropy": -_mean_inner(targets_NM, log_probs_NM),
        "kl": _mean_inner(targets_NM, log_targets_NM - log_probs_NM),
    }
    return {**likelihood, **measured}


def _mean_inner(weights_NM: Tensor, values_NM: Tensor) -> float:
    return float((weights_NM * values_NM).sum(1).mean())


def _check(log_probs_NM: Tensor, log_targets_NM: Tensor, has_zeros: bool) -> None:
    if log_probs_NM.shape != log_targets_NM.shape or log_probs_NM.dim() != 2:
        raise ValueError(
            f"log_probs and log_targets must both be (rows, words), got {tuple(log_probs_NM.shape)} and "
            f"{tuple(log_targets_NM.shape)}"
        )
    if not bool(log_targets_NM.isfinite().all()):
        raise ValueError("log_targets must be finite, got others; draw them as logarithms, or smooth them")
    if bool((log_probs_NM.isnan() | (log_probs_NM == torch.inf)).any()):
        raise ValueError("log_probs must be logarithms of probabilities, got NaN or inf; the model has diverged")
    if not has_zeros and bool((log_probs_NM == -torch.inf).any()):
        raise ValueError("log_probs must be finite where has_zeros is False, got -inf; say has_zeros=True")
