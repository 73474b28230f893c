"""Matrix products into memory that is there, where torch's own may leave half of the processor idle.

Shapes: C = A B is M x N, with A M x K and B K x N.
"""

from torch import Tensor

from anymax.kernels.backend import Kernels
from anymax.kernels.matmul.protocol import MatmulKernel

kernels = Kernels[MatmulKernel]("matmul")


def matmul_(out_MN: Tensor, a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None, *, adds: bool = False) -> None:
    """Write A B, and a bias on every row, or add A B to what is there; by torch where that is as fast.

    Args:
        out_MN: rows may stand apart.
        a_MK, b_KN: in its dtype or, if that is float32, in half precision; each by rows or by columns.
        bias_N: not with `adds`.
    """
    assert bias_N is None or not adds
    kernel = kernels.choose(out_MN)
    if not kernel.prefers_matmul(out_MN, a_MK, b_KN):
        from anymax.kernels.matmul import reference as kernel
    kernel.matmul_(out_MN, a_MK, b_KN, bias_N, adds)


def widens_half(like: Tensor) -> bool:
    """Whether matrices of half precision, on the device of a tensor, are multiplied into float32 without copies."""
    return kernels.choose(like).widens_half(like)
