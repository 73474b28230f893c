"""What a backend of cross-entropy offers.

Shapes: R rows, N classes, D inputs of a layer.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from anymax.kernels.cross_entropy import native, reference


class CrossEntropyKernel(Protocol):
    """Rows are float32 or float64. Targets are one class per row, in range."""

    def why_unsupported(self, scores_RN: Tensor, /) -> str | None:
        """Why this backend cannot take the scores, or None if it can."""

    def cross_entropy_(
        self, scores_RN: Tensor, target_R: Tensor, label_smoothing: float, wants_gradient: bool
    ) -> Tensor:
        """The loss of every row. The scores become softmax(scores) - target if that is wanted; else they may be lost.

        Rows may stand apart.
        """

    def prefers_layer(self, hidden_RD: Tensor, weight_ND: Tensor) -> bool:
        """Whether `layer_cross_entropy` is faster here than matrix products and `cross_entropy_`."""

    def layer_cross_entropy(
        self,
        hidden_RD: Tensor,
        weight_ND: Tensor,
        bias_N: Tensor | None,
        target_R: Tensor,
        label_smoothing: float,
        coefficient_R: Tensor | None,
        wanted: Sequence[bool],
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The loss of every row of a linear layer, and what is wanted of the gradients of the first three tensors.

        Args:
            coefficient_R: how much each loss weighs in what is differentiated; None where there is no gradient.
        """


if TYPE_CHECKING:
    OWN: tuple[CrossEntropyKernel, ...] = (native, reference)
