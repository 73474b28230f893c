"""What every loss does with its targets: check them, turn classes into distributions, and reduce over rows."""

import torch
from torch import Tensor

from anymax.kernels.backend import is_plain
from anymax.mappings.arguments import check_device, check_dim, check_values, computed_in

REDUCTIONS = ("mean", "sum", "none")


def prepare_scores(scores: Tensor) -> Tensor:
    """Scores checked, in the precision they are computed in; the classes are the last dimension."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        came = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"scores must be a floating-point tensor, got {came}; convert with .float()")
    check_dim(scores, -1)
    if scores.shape[-1] == 0:
        raise ValueError(f"scores must have at least one class in the last dimension, got shape {tuple(scores.shape)}")
    return scores.to(computed_in(scores.dtype))


def check_arguments(scores: Tensor, target: Tensor, reduction: str, ignore_index: int, label_smoothing: float) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor of classes or distributions, got {type(target).__name__}")
    check_device("target", target, scores)
    if target.is_floating_point():
        if target.shape != scores.shape:
            raise ValueError(
                f"a target of distributions must have the shape of scores, {tuple(scores.shape)}, "
                f"got {tuple(target.shape)}; integers are classes"
            )
        _check_distributions(target)
        return
    if target.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"target must hold classes (int64 or int32) or distributions (floating point), got {target.dtype}"
        )
    if target.shape != scores.shape[:-1]:
        raise ValueError(
            f"a target of classes must have the shape of scores less the last dimension, {tuple(scores.shape[:-1])}, "
            f"got {tuple(target.shape)}"
        )
    n = scores.shape[-1]
    rule = f"a class from 0 to {n - 1}, or ignore_index ({ignore_index})"
    check_values("target", rule, target, lambda t: ((t >= 0) & (t < n)) | (t == ignore_index))


def _check_distributions(target: Tensor) -> None:
    # The sum is not worth its time where its value is not read.
    if not is_plain(target):
        return
    rule = "a distribution in every row: no entry below 0, and a sum of 1"
    check_values("target", rule, target, lambda t: t >= 0, got="an entry of {}")
    total = target.sum(-1, dtype=computed_in(target.dtype))
    got = "a sum of {}; divide it by target.sum(-1, keepdim=True), or pass classes as integers"
    check_values("target", rule, total, lambda t: (t - 1).abs() < 1e-2, got=got)


def is_counted(target: Tensor, ignore_index: int) -> Tensor | None:
    """True for the rows that take part in the loss; None where all do."""
    return None if target.is_floating_point() else target != ignore_index


def as_distribution(target: Tensor, scores: Tensor, counted: Tensor | None, label_smoothing: float) -> Tensor:
    """The target as distributions over the classes; an ignored row points at class 0 and is dropped later."""
    n = scores.shape[-1]
    if counted is None:
        hard = target.to(scores.dtype)
    else:
        classes = torch.where(counted, target, 0).long()
        hard = torch.zeros_like(scores).scatter(-1, classes[..., None], 1.0)
    return hard if label_smoothing == 0 else (1 - label_smoothing) * hard + label_smoothing / n


def inner(scores: Tensor, weights: Tensor) -> Tensor:
    """<weights, scores> over the last dimension, where a weight of zero counts for nothing even against -inf."""
    return (weights * torch.where((weights == 0) & (scores == -torch.inf), 0, scores)).sum(-1)


def reduce(losses: Tensor, counted: Tensor | None, reduction: str) -> Tensor:
    """Reduce one loss per row; ignored rows count for nothing, and a mean over no row is zero."""
    if counted is not None:
        losses = torch.where(counted, losses, 0)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    num_rows = losses.numel() if counted is None else counted.sum()
    return losses.sum() / (max(num_rows, 1) if isinstance(num_rows, int) else num_rows.clamp(min=1))
