"""What functional attention does with its arguments: check them, and lay them out in four dimensions.

Shapes: B batch, H heads of queries, G heads of keys and values, which divides H, Q queries, K keys, E numbers per head
of queries and keys, F of values.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.checks import check_shares
from anymax.mappings.arguments import check_device, check_number, computed_in
from anymax.mappings.sink import check_sink

# Fewer than the kernel takes, since it adds the number of a row.
_NUM_SEEDS = 2**62


class Inputs(NamedTuple):
    """Arguments of attention that were checked.

    Args:
        mask: None or what broadcasts to (B, H, Q, K) in four dimensions: boolean, true where a query may attend to a
            key, or floating, added to the scores.
        scale: what the products of queries and keys are multiplied with.
        dropout: the rate at which probabilities are dropped.
        causal_offset: None, or query q attends to keys up to q + causal_offset alone.
        transform: what scores go through before the mask.
    """

    query_BHQE: Tensor
    key_BGKE: Tensor
    value_BGKF: Tensor
    mask: Tensor | None
    scale: float
    dropout: float
    causal_offset: int | None
    transform: Callable[[Tensor], Tensor] | None = None


def prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[Inputs, torch.Size]:
    """The arguments of torch's `scaled_dot_product_attention`, checked, and the leading dimensions of the result."""
    _check_vectors(query, key, value)
    check_shares(dropout_p=dropout_p)
    if is_causal and attn_mask is not None:
        raise ValueError("is_causal must be False with attn_mask, got both; forbid later keys in the mask")
    if scale is not None:
        check_number("scale", scale)
    query, key, value = (in_autocast(vectors) for vectors in (query, key, value))
    width = query.shape[-1]
    if scale is None:
        scale = 1 / math.sqrt(width) if width else 1.0
    lead = _leading_shape(query, key, value, enable_gqa)
    heads = lead[-1:].numel()
    if attn_mask is not None:
        attn_mask = _in_four_dims(attn_mask, query, torch.Size((*lead, query.shape[-2], key.shape[-2])))
    num_groups = max([vectors.shape[-3] for vectors in (key, value) if vectors.dim() > 2], default=1)
    inputs = Inputs(
        _expanded(query, lead[:-1], heads),
        _expanded(key, lead[:-1], num_groups),
        _expanded(value, lead[:-1], num_groups),
        attn_mask,
        float(scale),
        float(dropout_p),
        0 if is_causal else None,
    )
    return inputs, lead


def per_head(name: str, value: float | Tensor, inputs: Inputs, lead: torch.Size) -> Tensor:
    """A number or a tensor as one number for each head of the batch, (B, H), in the dtype that scores have."""
    query_BHQE = inputs.query_BHQE
    dtype = computed_in(query_BHQE.dtype)
    if not isinstance(value, Tensor):
        return query_BHQE.new_full(query_BHQE.shape[:2], value, dtype=dtype)
    check_device(name, value, query_BHQE, "query")
    if value.is_complex() or value.dtype == torch.bool:
        advice = "; a mask is given as attn_mask" if value.dtype == torch.bool else ""
        raise TypeError(f"{name} must be a tensor of real numbers, got {value.dtype}{advice}")
    if not _broadcasts(value.shape, lead):
        raise ValueError(
            f"{name} must broadcast to (batch, heads), here {tuple(lead)}, got shape {tuple(value.shape)}; "
            "one number per head has shape (heads,)"
        )
    return value.to(dtype).expand(lead).reshape(query_BHQE.shape[:2]).contiguous()


def sink_per_head(sink: float | Tensor | None, inputs: Inputs, lead: torch.Size) -> Tensor | None:
    """The score of a sink for each head of the batch; None without one."""
    if sink is None:
        return None
    check_sink(sink)
    return per_head("sink", sink, inputs, lead)


def draw_seed(inputs: Inputs) -> Tensor | None:
    """What decides which probabilities are dropped, from torch's generator; None where none is."""
    if inputs.dropout == 0:
        return None
    return torch.randint(_NUM_SEEDS, (), dtype=torch.int64, device=inputs.query_BHQE.device)


def is_autocast(device: str) -> bool:
    """Whether automatic mixed precision is on for a type of device, some of which have none."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def in_autocast(vectors: Tensor) -> Tensor:
    """The vectors in the precision that automatic mixed precision gives to matrix products."""
    device = vectors.device.type
    if not is_autocast(device) or vectors.dtype == torch.float64:
        return vectors
    return vectors.to(torch.get_autocast_dtype(device))


def _check_vectors(query: Tensor, key: Tensor, value: Tensor) -> None:
    named = {"query": query, "key": key, "value": value}
    for name, vectors in named.items():
        if not isinstance(vectors, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(vectors).__name__}; wrap it with torch.as_tensor")
        if not vectors.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {vectors.dtype}; convert it with .float()")
        if vectors.dim() < 2:
            raise ValueError(f"{name} must be (..., positions, width), got shape {tuple(vectors.shape)}")
        check_device(name, vectors, query, "query")
    dtypes = {vectors.dtype for vectors in named.values()}
    if len(dtypes) > 1 and not is_autocast(query.device.type):
        got = ", ".join(str(vectors.dtype) for vectors in named.values())
        raise TypeError(f"query, key and value must have one dtype, got {got}; convert some or use torch.autocast")
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key must have the width of query, {query.shape[-1]}, got shape {tuple(key.shape)}")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(f"value must have as many positions as key, {key.shape[-2]}, got shape {tuple(value.shape)}")


def _leading_shape(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> torch.Size:
    """The dimensions before positions and width that all broadcast to; those of the queries where heads are grouped."""
    shapes = [vectors.shape[:-2] for vectors in (query, key, value)]
    if shapes[0] == shapes[1] == shapes[2] and shapes[0]:
        return shapes[0]
    got = ", ".join(str(tuple(vectors.shape)) for vectors in (query, key, value))
    if enable_gqa:
        if min(len(shape) for shape in shapes) < 1:
            raise ValueError(f"query, key and value must have heads for enable_gqa, got shapes {got}")
        num_heads, *groups = (shape[-1] for shape in shapes)
        if groups[0] != groups[1] or groups[0] == 0 or num_heads % groups[0]:
            raise ValueError(
                "heads of key and value must be equal and divide those of query with enable_gqa, got "
                f"{num_heads}, {groups[0]} and {groups[1]} in shapes {got}"
            )
        batches = [shape[:-1] for shape in shapes]
        whole = _broadcast(batches)
        if whole is not None:
            return torch.Size((*whole, num_heads))
    else:
        whole = _broadcast(shapes)
        if whole is not None:
            return whole
    advice = "make them equal"
    if not enable_gqa and all(shapes) and 0 < shapes[1][-1] < shapes[0][-1] and shapes[0][-1] % shapes[1][-1] == 0:
        advice = "pass enable_gqa=True if every head of key and value serves several of query"
    raise ValueError(f"batch and heads of query, key and value must be equal, got shapes {got}; {advice}")


def _broadcast(shapes: list[torch.Size]) -> torch.Size | None:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None


def _expanded(vectors: Tensor, batch: torch.Size, heads: int) -> Tensor:
    """Vectors in four dimensions: those of the batch made one."""
    if vectors.dim() == 4 and vectors.shape[:2] == (*batch, heads):
        return vectors
    return vectors.expand(*batch, heads, *vectors.shape[-2:]).reshape(batch.numel(), heads, *vectors.shape[-2:])


def _in_four_dims(mask: Tensor, query: Tensor, shape: torch.Size) -> Tensor:
    if not isinstance(mask, Tensor):
        advice = "make one with torch.tensor(mask)" if isinstance(mask, list | tuple) else "give the others by name"
        raise TypeError(f"attn_mask must be a tensor, got {type(mask).__name__}; {advice}")
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        advice = "pass attn_mask == 1 if it is 1 where a query may attend and 0 elsewhere"
        if mask.is_floating_point():
            advice = "convert it with .to(query.dtype)"
        raise TypeError(
            "attn_mask must be boolean, true where a query may attend to a key, or floating point in the dtype of "
            f"query or float32, added to the scores, got {mask.dtype}; {advice}"
        )
    check_device("attn_mask", mask, query, "query")
    if not _broadcasts(mask.shape, shape):
        raise ValueError(
            f"attn_mask must broadcast to (batch, heads, queries, keys), here {tuple(shape)}, got {tuple(mask.shape)}; "
            "a mask of keys per example has shape (batch, 1, 1, keys)"
        )
    mask = mask[(None,) * (max(4, len(shape)) - mask.dim())]
    if mask.dim() == 4:
        return mask
    of_heads = mask.shape[-3:]
    if mask.shape[:-3].numel() > 1:
        mask = mask.expand(*shape[:-3], *of_heads)
    return mask.reshape(-1, *of_heads)


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    if len(shape) > len(target):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(target), strict=False))
