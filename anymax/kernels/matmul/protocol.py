"""What a backend of matrix products offers."""

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from anymax.kernels.matmul import native, reference


class MatmulKernel(Protocol):
    """Of A, B and the result the entries of a row or of a column stand side by side, of the result those of a row."""

    def why_unsupported(self, out_MN: Tensor, /) -> str | None:
        """Why this backend cannot write such a result, or None if it can."""

    def widens_half(self, out_MN: Tensor) -> bool:
        """Whether matrices of half precision are multiplied into float32 without float32 copies of them."""

    def prefers_matmul(self, out_MN: Tensor, a_MK: Tensor, b_KN: Tensor) -> bool:
        """Whether `matmul_` takes the dtypes, and is faster here than torch's product."""

    def matmul_(self, out_MN: Tensor, a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None, adds: bool) -> None:
        """Write A B, and a bias on every row, or add A B to what is there."""


if TYPE_CHECKING:
    OWN: tuple[MatmulKernel, ...] = (native, reference)
