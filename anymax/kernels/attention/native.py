"""Attention by entmax in C++: native.cpp beside this file, called through ctypes."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.kernels import library
from anymax.kernels.attention.protocol import Choice, Gathered, Gradients
from anymax.kernels.dropout.reference import scale, threshold
from anymax.kernels.entmax.protocol import alpha_error
from anymax.kernels.rows import computed_in

IS_FUSED = True
_FORWARD = library.Function("anymax_attention_forward", "pppppppppdldilppi", takes_half=True)
_BACKWARD = library.Function("anymax_attention_backward", "pppppppppdldilppppppppi", takes_half=True)


def why_unsupported(query_BHQE: Tensor) -> str | None:
    if not query_BHQE.is_cpu:
        return f"it runs on the CPU, and the queries are on {query_BHQE.device}"
    if query_BHQE.dtype not in _FORWARD.precisions:
        return f"it takes float16, bfloat16, float32 and float64, and the queries are {query_BHQE.dtype}"
    return library.why_missing()


def forward(query_BHQE: Tensor, key_BGKE: Tensor, value_BGKF: Tensor, choice: Choice, *, keeps_lists: bool) -> Gathered:
    """The values gathered for each query; the backward computes scores again, so nothing is listed."""
    job = _job(query_BHQE, key_BGKE, value_BGKF, choice)
    shape_BHQ = query_BHQE.shape[:3]
    out_BHQF = value_BGKF.new_empty(*shape_BHQ, value_BGKF.shape[-1])
    shift_BHQ = choice.alpha_BH.new_empty(shape_BHQ)
    status = _FORWARD.of(query_BHQE.dtype)(
        *job.arguments, out_BHQF.data_ptr(), shift_BHQ.data_ptr(), torch.get_num_threads()
    )
    if status > 0:
        raise alpha_error(choice.alpha_BH.flatten()[status - 1].item())
    _check_memory(status)
    return Gathered(out_BHQF, shift_BHQ, torch.empty(0, dtype=torch.uint8))


def backward(
    grad_BHQF: Tensor,
    query_BHQE: Tensor,
    key_BGKE: Tensor,
    value_BGKF: Tensor,
    choice: Choice,
    gathered: Gathered,
    *,
    wants_alpha: bool,
) -> Gradients:
    """Gradients by queries, keys, values, alpha and sink."""
    job = _job(query_BHQE, key_BGKE, value_BGKF, choice)
    grad_BHQF = _rows_side_by_side(grad_BHQF.to(query_BHQE.dtype))
    by_query, by_key, by_value = (like.new_empty(like.shape) for like in (query_BHQE, key_BGKE, value_BGKF))
    by_alpha, by_sink = torch.zeros_like(choice.alpha_BH), torch.zeros_like(choice.alpha_BH)
    gradients = Gradients(by_query, by_key, by_value, by_alpha, by_sink)
    status = _BACKWARD.of(query_BHQE.dtype)(
        *job.arguments,
        gathered.shift_BHQ.data_ptr(),
        grad_BHQF.data_ptr(),
        (ctypes.c_int64 * 3)(*grad_BHQF.stride()[:3]),
        gradients.query_BHQE.data_ptr(),
        gradients.key_BGKE.data_ptr(),
        gradients.value_BGKF.data_ptr(),
        gradients.alpha_BH.data_ptr() if wants_alpha else None,
        None if choice.sink_BH is None else gradients.sink_BH.data_ptr(),
        torch.get_num_threads(),
    )
    _check_memory(status)
    return gradients


class _Job(NamedTuple):
    """What both functions take, and the tensors that the pointers among it point into."""

    arguments: tuple[object, ...]
    tensors: tuple[Tensor | None, ...]


def _job(query_BHQE: Tensor, key_BGKE: Tensor, value_BGKF: Tensor, choice: Choice) -> _Job:
    dtype = computed_in(query_BHQE.dtype)
    tensors = tuple(_rows_side_by_side(tensor) for tensor in (query_BHQE, key_BGKE, value_BGKF))
    batch, heads, num_queries, width = query_BHQE.shape
    groups, num_keys = key_BGKE.shape[1:3]
    sizes = [batch, heads, groups, num_queries, num_keys, width, value_BGKF.shape[-1]]
    for tensor in tensors:
        sizes += tensor.stride()[:3]
    mask = choice.mask
    if mask is None:
        sizes += [0] * 4
    else:
        mask = mask if mask.dtype == torch.bool else mask.to(dtype)
        sizes += mask.expand(batch, heads, num_queries, num_keys).stride()
    assert choice.alpha_BH.is_contiguous() and choice.alpha_BH.dtype == dtype
    sink_BH = None if choice.sink_BH is None else choice.sink_BH.contiguous()
    is_boolean = mask is not None and mask.dtype == torch.bool
    masks = (mask, None) if is_boolean else (None, mask)
    parts = (*tensors, choice.alpha_BH, *masks, sink_BH, choice.seed)
    pointers = (None if part is None else part.data_ptr() for part in parts)
    arguments = (
        *pointers,
        (ctypes.c_int64 * len(sizes))(*sizes),
        choice.scale,
        threshold(choice.dropout),
        scale(choice.dropout),
        int(choice.causal_offset is not None),
        choice.causal_offset or 0,
    )
    return _Job(arguments, parts)


def _rows_side_by_side(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _check_memory(status: int) -> None:
    if status != 0:
        raise MemoryError("no memory for the scratch space of the attention kernel, some rows of keys per thread")
