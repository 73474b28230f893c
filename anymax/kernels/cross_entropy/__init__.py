"""Cross-entropy of the rows of a matrix, whose scores give way to their gradient in place."""

from typing import Any

from torch import Tensor

from anymax.kernels.backend import choose
from anymax.kernels.cross_entropy import native, reference

BACKENDS: dict[str, Any] = {"native": native, "reference": reference}


def cross_entropy_(scores_RN: Tensor, target_R: Tensor, label_smoothing: float, *, wants_gradient: bool) -> Tensor:
    """The loss of every row. The scores become softmax(scores) - target if that is wanted; else they may be lost.

    Args:
        scores_RN: float32 or float64; entries of a row stand side by side, rows may be further apart.
        target_R: one class per row, in range.
        label_smoothing: how much of the target is spread evenly over all classes.
    """
    backend = BACKENDS[choose(BACKENDS, scores_RN)]
    losses_R: Tensor = backend.cross_entropy_(scores_RN, target_R, label_smoothing, wants_gradient)
    return losses_R
