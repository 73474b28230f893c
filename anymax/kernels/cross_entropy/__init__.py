"""Cross-entropy of the rows of a matrix, whose scores give way to their gradient in place, and of a small layer."""

from collections.abc import Sequence

from torch import Tensor

from anymax.kernels.backend import Kernels
from anymax.kernels.cross_entropy.protocol import CrossEntropyKernel
from anymax.kernels.rows import COMPUTED_IN

__all__ = ["cross_entropy_", "layer_cross_entropy", "prefers_layer"]

kernels = Kernels[CrossEntropyKernel]("cross_entropy")


def cross_entropy_(scores_RN: Tensor, target_R: Tensor, label_smoothing: float, *, wants_gradient: bool) -> Tensor:
    """The loss of every row. The scores become softmax(scores) - target if that is wanted; else they may be lost.

    Args:
        scores_RN: float32 or float64; entries of a row stand side by side, rows may be further apart.
        target_R: one class per row, in range.
        label_smoothing: how much of the target is spread evenly over all classes.
    """
    return kernels.choose(scores_RN).cross_entropy_(scores_RN, target_R, label_smoothing, wants_gradient)


def layer_cross_entropy(
    hidden_RD: Tensor,
    weight_ND: Tensor,
    bias_N: Tensor | None,
    target_R: Tensor,
    label_smoothing: float,
    coefficient_R: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of every row of a small linear layer, and what is wanted of the gradients of the first three tensors.

    Args:
        hidden_RD: contiguous, float32 or float64.
        target_R: one class per row, in range.
        label_smoothing: how much of the target is spread evenly over all classes.
        coefficient_R: how much each loss weighs in what is differentiated; None where there is no gradient.
    """
    kernel = kernels.choose(hidden_RD)
    return kernel.layer_cross_entropy(hidden_RD, weight_ND, bias_N, target_R, label_smoothing, coefficient_R, wanted)


def prefers_layer(hidden_RD: Tensor, weight_ND: Tensor) -> bool:
    """Whether `layer_cross_entropy` takes the layer, and is faster than matrix products and `cross_entropy_`."""
    return hidden_RD.dtype not in COMPUTED_IN and kernels.choose(hidden_RD).prefers_layer(hidden_RD, weight_ND)
