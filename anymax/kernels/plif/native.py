"""The piecewise linear increasing function in C++: native.cpp beside this file, called through ctypes."""

import torch
from torch import Tensor

from anymax.kernels import library
from anymax.kernels.rows import computed_in

_FORWARD = library.Function("anymax_plif_forward", "ppplldi")
_BACKWARD = library.Function("anymax_plif_backward", "ppppplldi")


def why_unsupported(scores: Tensor) -> str | None:
    if scores.device.type != "cpu":
        return f"it runs on the CPU, and the scores are on {scores.device}"
    if computed_in(scores.dtype) not in library.PRECISIONS:
        return f"it takes float16, bfloat16, float32 and float64, and the scores are {scores.dtype}"
    return library.why_missing()


def forward(scores: Tensor, slopes_K: Tensor, bound: float) -> Tensor:
    """f of every entry, in the dtype of the scores."""
    dtype = computed_in(scores.dtype)
    x, slopes = _ready(scores, dtype), _ready(slopes_K, dtype)
    out = torch.empty_like(x)
    pointers = (x.data_ptr(), slopes.data_ptr(), out.data_ptr())
    status = _FORWARD.of(dtype)(*pointers, x.numel(), slopes.shape[0], bound, torch.get_num_threads())
    _check(status, slopes.shape[0], bound)
    return out if dtype == scores.dtype else out.to(scores.dtype)


def backward(grad: Tensor, scores: Tensor, slopes_K: Tensor, bound: float) -> Tensor:
    """Gradient by the scores."""
    return _backward(grad, scores, slopes_K, bound, by_slopes=None)


def backward_both(grad: Tensor, scores: Tensor, slopes_K: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Gradients by the scores and by the slopes."""
    by_slopes_K = slopes_K.new_empty(slopes_K.shape, dtype=computed_in(scores.dtype))
    by_scores = _backward(grad, scores, slopes_K, bound, by_slopes=by_slopes_K)
    return by_scores, by_slopes_K.to(slopes_K.dtype)


def _backward(grad: Tensor, scores: Tensor, slopes_K: Tensor, bound: float, *, by_slopes: Tensor | None) -> Tensor:
    dtype = computed_in(scores.dtype)
    g, x, slopes = (_ready(tensor, dtype) for tensor in (grad, scores, slopes_K))
    by_scores = torch.empty_like(x)
    by_slopes_at = None if by_slopes is None else by_slopes.data_ptr()
    pointers = (g.data_ptr(), x.data_ptr(), slopes.data_ptr(), by_scores.data_ptr(), by_slopes_at)
    status = _BACKWARD.of(dtype)(*pointers, x.numel(), slopes.shape[0], bound, torch.get_num_threads())
    _check(status, slopes.shape[0], bound)
    return by_scores if dtype == scores.dtype else by_scores.to(scores.dtype)


def _ready(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # A call that changes nothing still takes time, and large scores leave none of torch in the caches.
    return tensor if tensor.dtype == dtype and tensor.is_contiguous() else tensor.to(dtype).contiguous()


def _check(status: int, num_pieces: int, bound: float) -> None:
    if status == -1:
        raise MemoryError(
            f"no memory for the tables of the PLIF kernel, one of {num_pieces} numbers per thread; use fewer pieces"
        )
    if status == -2:
        raise ValueError(
            f"pieces must be below 2**31 and wide enough for double precision, got {num_pieces} within bound {bound}; "
            "scale the scores instead of the bound"
        )
