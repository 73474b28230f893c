"""What a backend of PLIF offers."""

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from anymax.kernels.plif import native, reference


class PlifKernel(Protocol):
    """Scores and their gradient are contiguous and of any shape and floating dtype; slopes are a vector of K."""

    def why_unsupported(self, scores: Tensor, /) -> str | None:
        """Why this backend cannot take `scores`, or None if it can."""

    def forward(self, scores: Tensor, slopes_K: Tensor, bound: float) -> Tensor:
        """f of every entry, in the dtype of the scores."""

    def backward(self, grad: Tensor, scores: Tensor, slopes_K: Tensor, bound: float) -> Tensor:
        """Gradient by the scores."""

    def backward_both(self, grad: Tensor, scores: Tensor, slopes_K: Tensor, bound: float) -> tuple[Tensor, Tensor]:
        """Gradients by the scores and by the slopes."""


if TYPE_CHECKING:
    OWN: tuple[PlifKernel, ...] = (native, reference)
