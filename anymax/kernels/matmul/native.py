"""Matrix products in C++: native.cpp beside this file, called through ctypes."""

import functools

import torch
from torch import Tensor

from anymax.kernels import library

_MATMUL = library.Function("anymax_matmul", "pillpillplpillli")
_IS_AMD = library.Function("anymax_is_amd", "")
# What half precision is called there.
_STORED = {torch.float16: 1, torch.bfloat16: 2}
# With fewer rows or columns of the result most of a tile in registers would be padding.
_LEAST = 16


def why_unsupported(out_MN: Tensor) -> str | None:
    if not out_MN.is_cpu:
        return f"it runs on the CPU, and the matrices are on {out_MN.device}"
    return library.why_missing()


def widens_half(out_MN: Tensor) -> bool:
    return True


def prefers_matmul(out_MN: Tensor, a_MK: Tensor, b_KN: Tensor) -> bool:
    if out_MN.dtype not in library.PRECISIONS:
        return False
    # Torch would widen whole matrices of half precision, and multiplies those of float16 very slowly.
    is_half = a_MK.dtype != out_MN.dtype or b_KN.dtype != out_MN.dtype
    return is_half or (min(out_MN.shape) >= _LEAST and _is_slow_in_torch(library.current_level()))


@functools.cache
def _is_slow_in_torch(level: str) -> bool:
    """Whether torch's products come from a library that uses half of what the processor has: Intel's on AMD's."""
    return torch.backends.mkl.is_available() and level != "baseline" and _IS_AMD.of(None)() != 0


def matmul_(out_MN: Tensor, a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None, adds: bool) -> None:
    assert out_MN.stride(1) == 1 or out_MN.shape[1] <= 1
    assert all(matrix.dtype == out_MN.dtype or matrix.dtype in _STORED for matrix in (a_MK, b_KN))
    a_MK, b_KN = _side_by_side(a_MK), _side_by_side(b_KN)
    bias_N = None if bias_N is None else bias_N.to(out_MN.dtype).contiguous()
    status = _MATMUL.of(out_MN.dtype)(
        a_MK.data_ptr(),
        _STORED.get(a_MK.dtype, 0),
        *a_MK.stride(),
        b_KN.data_ptr(),
        _STORED.get(b_KN.dtype, 0),
        *b_KN.stride(),
        out_MN.data_ptr(),
        out_MN.stride(0),
        None if bias_N is None else bias_N.data_ptr(),
        int(adds),
        out_MN.shape[0],
        a_MK.shape[1],
        out_MN.shape[1],
        torch.get_num_threads(),
    )
    if status != 0:
        raise MemoryError(
            "no memory for the packed matrices of the matmul kernel, some megabytes and more for wide ones"
        )


def _side_by_side(matrix: Tensor) -> Tensor:
    return matrix if 1 in matrix.stride() else matrix.contiguous()
