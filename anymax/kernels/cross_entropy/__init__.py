"""Cross-entropy of the rows of a matrix, whose scores give way to their gradient in place, and of a small layer."""

from typing import Any

from torch import Tensor

from anymax.kernels.backend import choose
from anymax.kernels.cross_entropy import native, reference
from anymax.kernels.cross_entropy.native import layer_cross_entropy

__all__ = ["cross_entropy_", "layer_cross_entropy", "takes_layer"]

BACKENDS: dict[str, Any] = {"native": native, "reference": reference}
# A layer with at most this many weights and biases has them, and the sums of their gradients, in the second cache.
SMALL = 2**14


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


def takes_layer(hidden_RD: Tensor, weight_ND: Tensor) -> bool:
    """Whether `layer_cross_entropy` has a kernel for it: a layer of few weights, in float32 or float64 on a CPU."""
    is_small = weight_ND.shape[0] * (weight_ND.shape[1] + 1) <= SMALL
    return is_small and native.is_precise(hidden_RD) and choose(BACKENDS, hidden_RD) == "native"
