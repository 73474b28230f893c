"""Attention by entmax in Triton, for GPUs: the kernels stand in the files triton_*.py beside this one."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from anymax.kernels.attention import triton_keys, triton_whole
from anymax.kernels.attention.protocol import Choice, Gathered, Gradients
from anymax.kernels.dropout.reference import scale as scale_of_kept
from anymax.kernels.dropout.reference import threshold
from anymax.kernels.entmax.triton import on_device_of
from anymax.kernels.entmax.triton import why_unsupported as why_unsupported


class Blocks(NamedTuple):
    """How many queries, keys and columns of a head a tile has, and how many warps compute it."""

    queries: int
    keys: int
    columns: int
    value_columns: int
    warps: int

    def options(self) -> dict[str, int]:
        """As the kernels name them."""
        return {
            "BLOCK_Q": self.queries,
            "BLOCK_K": self.keys,
            "BLOCK_E": self.columns,
            "BLOCK_F": self.value_columns,
            "num_warps": self.warps,
            "num_stages": 1,
        }


def longest_on_chip(dtype: torch.dtype) -> int:
    """The most keys whose scores a program holds at once."""
    return 128 if dtype == torch.float32 else 256


def blocks_of_rows(num_keys: int, widths: tuple[int, int], dtype: torch.dtype) -> Blocks:
    """For kernels that hold whole rows."""
    keys = max(16, triton.next_power_of_2(num_keys))
    columns = 32 if dtype == torch.float32 else 64
    of_queries, of_values = (min(columns, max(16, triton.next_power_of_2(width))) for width in widths)
    return Blocks(16 if keys > 128 or dtype == torch.float32 else 32, keys, of_queries, of_values, 4)


def blocks_of_tiles(widths: tuple[int, int], dtype: torch.dtype) -> Blocks:
    """For kernels that walk through queries or keys."""
    side, columns = (32, 32) if dtype == torch.float32 else (64, 64)
    of_queries, of_values = (min(columns, max(16, triton.next_power_of_2(width))) for width in widths)
    return Blocks(32, side, of_queries, of_values, 4)


def forward(query_BHQE: Tensor, key_BGKE: Tensor, value_BGKF: Tensor, choice: Choice, *, keeps_lists: bool) -> Gathered:
    """The values gathered for each query; the backward computes scores again, so nothing is listed."""
    shape_BHQ = query_BHQE.shape[:3]
    out_BHQF = value_BGKF.new_zeros(*shape_BHQ, value_BGKF.shape[-1])
    shift_BHQ = choice.alpha_BH.new_full(shape_BHQ, torch.inf)
    lists = torch.empty(0, dtype=torch.uint8, device=query_BHQE.device)
    gathered = Gathered(out_BHQF, shift_BHQ, lists)
    if 0 in (*shape_BHQ, *value_BGKF.shape) and (choice.sink_BH is None or 0 in shape_BHQ):
        return gathered
    job = _job(query_BHQE, key_BGKE, value_BGKF, choice)
    blocks = blocks_of_rows(key_BGKE.shape[2], job.widths, query_BHQE.dtype)
    grid = (choice.alpha_BH.numel() * triton.cdiv(query_BHQE.shape[2], blocks.queries),)
    with on_device_of(query_BHQE):
        triton_whole.forward[grid](*job.arguments, out_BHQF, shift_BHQ, **job.constants, **blocks.options())
    return gathered


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
    by_query, by_key, by_value = (like.new_zeros(like.shape) for like in (query_BHQE, key_BGKE, value_BGKF))
    gradients = Gradients(
        by_query, by_key, by_value, torch.zeros_like(choice.alpha_BH), torch.zeros_like(choice.alpha_BH)
    )
    if 0 in (*query_BHQE.shape, *key_BGKE.shape, *value_BGKF.shape):
        return gradients
    job = _job(query_BHQE, key_BGKE, value_BGKF, choice)
    grad_BHQF = grad_BHQF.to(query_BHQE.dtype)
    blocks = blocks_of_rows(key_BGKE.shape[2], job.widths, query_BHQE.dtype)
    num_blocks = triton.cdiv(query_BHQE.shape[2], blocks.queries)
    num_heads = choice.alpha_BH.numel()
    # The score or lambda that each row is counted from, the probability of its last entry, its mean gradient.
    of_rows = choice.alpha_BH.new_empty(3, *query_BHQE.shape[:3])
    by_alpha = choice.alpha_BH.new_empty(*choice.alpha_BH.shape, num_blocks) if wants_alpha else None
    by_sink = None if choice.sink_BH is None else choice.alpha_BH.new_empty(*choice.alpha_BH.shape, num_blocks)
    with on_device_of(query_BHQE):
        triton_whole.backward_of_queries[(num_heads * num_blocks,)](
            *job.arguments,
            grad_BHQF,
            grad_BHQF.stride(),
            gathered.shift_BHQ.contiguous(),
            by_query,
            *of_rows,
            by_alpha,
            by_sink,
            **job.constants,
            **blocks.options(),
        )
        tiles = blocks_of_tiles(job.widths, query_BHQE.dtype)
        _backward_of_keys(job, tiles, grad_BHQF, of_rows, None, by_key, by_value, None)
    if by_alpha is not None:
        gradients.alpha_BH.copy_(by_alpha.sum(-1))
    if by_sink is not None:
        gradients.sink_BH.copy_(by_sink.sum(-1))
    return gradients


class _Job(NamedTuple):
    """What all kernels take."""

    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    widths: tuple[int, int]
    num_groups: int
    num_keys: int


def _job(query_BHQE: Tensor, key_BGKE: Tensor, value_BGKF: Tensor, choice: Choice) -> _Job:
    batch, heads, num_queries, width = query_BHQE.shape
    groups, num_keys = key_BGKE.shape[1:3]
    assert choice.alpha_BH.is_contiguous() and choice.alpha_BH.dtype == torch.float32
    mask, mask_strides = choice.mask, (0, 0, 0, 0)
    if mask is not None:
        mask = mask.expand(batch, heads, num_queries, num_keys)
        mask_strides = mask.stride()
        # Bytes can be loaded, booleans are bits to Triton.
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
        mask = mask.float() if mask.dtype == torch.float64 else mask
    arguments = (
        query_BHQE,
        query_BHQE.stride(),
        key_BGKE,
        key_BGKE.stride(),
        value_BGKF,
        value_BGKF.stride(),
        choice.alpha_BH,
        mask,
        mask_strides if mask is None else mask.stride(),
        None if choice.sink_BH is None else choice.sink_BH.contiguous(),
        choice.seed,
        float(choice.scale),
        threshold(choice.dropout),
        scale_of_kept(choice.dropout),
        choice.causal_offset or 0,
        (heads, groups, num_queries, num_keys),
    )
    widths = (width, value_BGKF.shape[-1])
    constants = {
        "IS_CAUSAL": choice.causal_offset is not None,
        "WIDTH": width,
        "VALUE_WIDTH": widths[1],
        # Three products of TensorFloat-32 are as exact as one of float32; AMD's have float32.
        "PRECISION": "ieee" if torch.version.hip else "tf32x3",
    }
    return _Job(arguments, constants, widths, batch * groups, num_keys)


def _backward_of_keys(
    job: _Job,
    blocks: Blocks,
    grad_BHQF: Tensor,
    of_rows: Tensor,
    is_chosen: Tensor | None,
    by_key: Tensor,
    by_value: Tensor,
    visits: Tensor | None,
) -> None:
    chunks = max(triton.cdiv(job.widths[0], blocks.columns), triton.cdiv(job.widths[1], blocks.value_columns))
    triton_keys.backward_of_keys[(job.num_groups * triton.cdiv(job.num_keys, blocks.keys), chunks)](
        *job.arguments,
        grad_BHQF,
        grad_BHQF.stride(),
        *of_rows,
        is_chosen,
        by_key,
        by_value,
        visits,
        **job.constants,
        **blocks.options(),
    )
