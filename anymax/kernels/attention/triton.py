"""Attention by entmax in Triton, for GPUs: the kernels stand in the files triton_*.py beside this one."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from anymax.kernels.attention import triton_keys, triton_stream, triton_whole
from anymax.kernels.attention.protocol import Choice, Gathered, Gradients
from anymax.kernels.dropout.reference import scale as scale_of_kept
from anymax.kernels.dropout.reference import threshold
from anymax.kernels.entmax.triton import on_device_of
from anymax.kernels.entmax.triton import why_unsupported as why_unsupported

IS_FUSED = True
_IS_AMD = torch.version.hip is not None


class Blocks(NamedTuple):
    """How many queries, keys and columns of a head a tile has, and how many warps of NVIDIA's compute it."""

    queries: int
    keys: int
    columns: int
    value_columns: int
    warps: int

    def options(self, *, is_amd: bool) -> dict[str, int]:
        """As the kernels name them. A warp of AMD's has twice as many lanes."""
        names = ("BLOCK_Q", "BLOCK_K", "BLOCK_E", "BLOCK_F")
        options = dict(zip(names, self[:4], strict=True)) | {"num_stages": 1}
        # Left to itself, NVIDIA's assembler moves numbers to memory so that more programs run beside each other.
        return options | ({"num_warps": 4} if is_amd else {"num_warps": self.warps, "maxnreg": 255})


def longest_on_chip(dtype: torch.dtype) -> int:
    """The most keys whose scores a program holds at once."""
    return 128 if dtype == torch.float32 else 256


def blocks_of_rows(num_keys: int, widths: tuple[int, int], dtype: torch.dtype, *, is_amd: bool) -> Blocks:
    """For kernels that hold whole rows: as many as leave all numbers in registers, or nearly."""
    keys = max(16, triton.next_power_of_2(num_keys))
    queries = 16 if dtype == torch.float32 or keys > (64 if is_amd else 128) else 32
    return Blocks(queries, keys, *_columns(widths, dtype), 8 if keys >= 128 else 4)


def blocks_of_tiles(widths: tuple[int, int], dtype: torch.dtype) -> Blocks:
    """For kernels that walk through keys or queries: the same, as one skips the tiles where the other found nothing."""
    return Blocks(32, 32 if dtype == torch.float32 else 64, *_columns(widths, dtype), 8)


def of_keys(tiles: Blocks) -> Blocks:
    """The same tiles for keys that walk through queries, whose sums are wider than a row."""
    return tiles._replace(warps=4)


def precision(*, is_amd: bool) -> str:
    """How float32 is multiplied: three products of TensorFloat-32 are as exact as one of float32, which AMD's have."""
    return "ieee" if is_amd else "tf32x3"


def _columns(widths: tuple[int, int], dtype: torch.dtype) -> tuple[int, int]:
    most = 32 if dtype == torch.float32 else 64
    of_keys, of_values = (min(most, max(16, triton.next_power_of_2(width))) for width in widths)
    return of_keys, of_values


def forward(query_BHQE: Tensor, key_BGKE: Tensor, value_BGKF: Tensor, choice: Choice, *, keeps_lists: bool) -> Gathered:
    """The values gathered for each query, and where many keys are read, which tiles of them are attended to."""
    shape_BHQ = query_BHQE.shape[:3]
    out_BHQF = value_BGKF.new_empty(*shape_BHQ, value_BGKF.shape[-1])
    shift_BHQ = choice.alpha_BH.new_empty(shape_BHQ)
    nothing = torch.empty(0, dtype=torch.uint8, device=query_BHQE.device)
    if 0 in shape_BHQ:
        return Gathered(out_BHQF, shift_BHQ, nothing)
    job = _job(query_BHQE, key_BGKE, value_BGKF, choice)
    with on_device_of(query_BHQE):
        if job.is_whole:
            blocks = blocks_of_rows(job.num_keys, job.widths, query_BHQE.dtype, is_amd=_IS_AMD)
            triton_whole.forward[(job.num_programs(blocks),)](
                *job.arguments, out_BHQF, shift_BHQ, **job.constants, **blocks.options(is_amd=_IS_AMD)
            )
            return Gathered(out_BHQF, shift_BHQ, nothing)
        blocks = blocks_of_tiles(job.widths, query_BHQE.dtype)
        chosen = job.tiles(blocks, torch.uint8) if keeps_lists else None
        triton_stream.forward[(job.num_programs(blocks),)](
            *job.arguments,
            out_BHQF,
            shift_BHQ,
            job.tiles(blocks, torch.int32),
            chosen,
            visited["forward"],
            **job.constants,
            **blocks.options(is_amd=_IS_AMD),
        )
    return Gathered(out_BHQF, shift_BHQ, nothing if chosen is None else chosen.flatten())


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
    by_query, by_key, by_value = (like.new_empty(like.shape) for like in (query_BHQE, key_BGKE, value_BGKF))
    zeros_BH = torch.zeros_like(choice.alpha_BH)
    if 0 in (*query_BHQE.shape[:3], key_BGKE.shape[2]):
        return Gradients(by_query.zero_(), by_key.zero_(), by_value.zero_(), zeros_BH, zeros_BH.clone())
    job = _job(query_BHQE, key_BGKE, value_BGKF, choice)
    dtype = query_BHQE.dtype
    tiles = blocks_of_tiles(job.widths, dtype)
    blocks = blocks_of_rows(job.num_keys, job.widths, dtype, is_amd=_IS_AMD) if job.is_whole else tiles
    grad_BHQF = grad_BHQF.to(dtype)
    # The score or lambda that each row is counted from, the probability of its last entry, its mean gradient.
    of_rows = choice.alpha_BH.new_empty(3, *query_BHQE.shape[:3])
    num_blocks = job.num_programs(blocks) // zeros_BH.numel()
    by_alpha = zeros_BH.new_empty(*zeros_BH.shape, num_blocks) if wants_alpha else None
    by_sink = None if choice.sink_BH is None else zeros_BH.new_empty(*zeros_BH.shape, num_blocks)
    arguments = (*job.arguments, grad_BHQF, grad_BHQF.stride())
    of_queries = (gathered.shift_BHQ, by_query, *of_rows, by_alpha, by_sink)
    options = {**job.constants, **blocks.options(is_amd=_IS_AMD)}
    chosen = None
    with on_device_of(query_BHQE):
        if job.is_whole:
            triton_whole.backward_of_queries[(job.num_programs(blocks),)](*arguments, *of_queries, **options)
        else:
            is_known = gathered.lists.numel() > 0
            chosen = gathered.lists if is_known else job.tiles(blocks, torch.uint8)
            lists = (job.tiles(blocks, torch.int32), chosen, visited["queries"])
            triton_stream.backward_of_queries[(job.num_programs(blocks),)](
                *arguments, *of_queries, *lists, KNOWS_CHOSEN=is_known, **options
            )
        chunks = max(1, triton.cdiv(job.widths[0], tiles.columns), triton.cdiv(job.widths[1], tiles.value_columns))
        triton_keys.backward_of_keys[(job.num_groups * triton.cdiv(job.num_keys, tiles.keys), chunks)](
            *arguments,
            *of_rows,
            chosen,
            by_key,
            by_value,
            visited["keys"],
            **job.constants,
            **of_keys(tiles).options(is_amd=_IS_AMD),
        )
    return Gradients(
        by_query,
        by_key,
        by_value,
        zeros_BH if by_alpha is None else by_alpha.sum(-1),
        zeros_BH.clone() if by_sink is None else by_sink.sum(-1),
    )


# Tests put tensors here, in which each program of a streaming kernel counts the tiles that it visits.
visited: dict[str, Tensor | None] = {"forward": None, "queries": None, "keys": None}


class _Job(NamedTuple):
    """What all kernels take."""

    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    widths: tuple[int, int]
    num_heads: int
    num_groups: int
    num_queries: int
    num_keys: int
    is_whole: bool

    def num_programs(self, blocks: Blocks) -> int:
        """One for each block of queries."""
        return self.num_heads * triton.cdiv(self.num_queries, blocks.queries)

    def tiles(self, blocks: Blocks, dtype: torch.dtype) -> Tensor:
        """A zero for each tile of scores."""
        shape = (self.num_programs(blocks), triton.cdiv(self.num_keys, blocks.keys))
        return torch.zeros(shape, dtype=dtype, device=self.arguments[0].device)


def _job(query_BHQE: Tensor, key_BGKE: Tensor, value_BGKF: Tensor, choice: Choice) -> _Job:
    batch, heads, num_queries, width = query_BHQE.shape
    groups, num_keys = key_BGKE.shape[1:3]
    assert choice.alpha_BH.is_contiguous() and choice.alpha_BH.dtype == torch.float32
    mask = choice.mask
    if mask is not None:
        mask = mask.expand(batch, heads, num_queries, num_keys)
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
        (0, 0, 0, 0) if mask is None else mask.stride(),
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
        "PRECISION": precision(is_amd=_IS_AMD),
    }
    is_whole = num_keys <= longest_on_chip(query_BHQE.dtype)
    return _Job(arguments, constants, widths, batch * heads, batch * groups, num_queries, num_keys, is_whole)
