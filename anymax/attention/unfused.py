"""Attention that holds all scores at once, for any mapping and for what kernels leave out; and torch's own, by softmax.

Shapes as in `arguments.py`; R rows, one per query of each head of the batch, and N entries, the keys and the sink.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anymax.attention.arguments import Inputs, is_autocast
from anymax.mappings.arguments import computed_in
from anymax.mappings.sink import with_sink
from anymax.regularizers.element_dropout import dropout_of_rows

# Called with scores and mask=..., it maps the last dimension.
Mapping = Callable[..., Tensor]
# Sees the probabilities.
Watch = Callable[[Tensor], None]


def gather(
    inputs: Inputs, mapping: Mapping, sink_BH: Tensor | None, seed: Tensor | None, watch: Watch | None = None
) -> Tensor:
    """The values gathered for each query, in their dtype."""
    with without_autocast(inputs.query_BHQE.device.type):
        return _gather(inputs, mapping, sink_BH, seed, watch)


def probs_of(inputs: Inputs, mapping: Mapping, sink_BH: Tensor | None) -> Tensor:
    """What each query multiplies the values with, (B, H, Q, K), computed in float32 for half precision."""
    with without_autocast(inputs.query_BHQE.device.type):
        return _probs(inputs, mapping, sink_BH)


def _gather(
    inputs: Inputs, mapping: Mapping, sink_BH: Tensor | None, seed: Tensor | None, watch: Watch | None
) -> Tensor:
    probs_BHQK = _probs(inputs, mapping, sink_BH)
    if watch is not None:
        watch(probs_BHQK.detach())
    if seed is not None:
        probs_RK = probs_BHQK.flatten(0, 2)
        seed_R = seed + torch.arange(probs_RK.shape[0], device=seed.device)
        probs_BHQK = dropout_of_rows(probs_RK, seed_R, inputs.dropout).view_as(probs_BHQK)
    value_BGKF = inputs.value_BGKF
    return (probs_BHQK @ _per_head(value_BGKF, inputs).to(probs_BHQK.dtype)).to(value_BGKF.dtype)


def _probs(inputs: Inputs, mapping: Mapping, sink_BH: Tensor | None) -> Tensor:
    query_BHQE, key_BGKE = inputs.query_BHQE, inputs.key_BGKE
    dtype = computed_in(query_BHQE.dtype)
    scores_BHQK = (query_BHQE.to(dtype) * inputs.scale) @ _per_head(key_BGKE, inputs).to(dtype).mT
    if inputs.transform is not None:
        scores_BHQK = inputs.transform(scores_BHQK)
    mask = inputs.mask
    if mask is not None and mask.dtype != torch.bool:
        scores_BHQK = (scores_BHQK + mask).to(dtype)
    allowed = allowed_in(inputs)
    if sink_BH is None:
        return mapping(scores_BHQK, mask=allowed)
    return with_sink(scores_BHQK, sink_BH[..., None, None], mapping, mask=allowed)


def allowed_in(inputs: Inputs) -> Tensor | None:
    """Where a query may attend to a key, by the mask and by causality, in four dimensions; None for everywhere."""
    mask = inputs.mask
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.detach() != -torch.inf
    num_queries, num_keys = inputs.query_BHQE.shape[2], inputs.key_BGKE.shape[2]
    if inputs.causal_offset is None or inputs.causal_offset >= num_keys - 1:
        return mask
    device = inputs.query_BHQE.device
    causal_QK = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(inputs.causal_offset)
    return causal_QK[None, None] if mask is None else mask & causal_QK


def num_allowed(inputs: Inputs) -> Tensor:
    """How many keys each query may attend to, in four dimensions."""
    num_queries, num_keys = inputs.query_BHQE.shape[2], inputs.key_BGKE.shape[2]
    device = inputs.query_BHQE.device
    if inputs.mask is not None:
        allowed = allowed_in(inputs)
        assert allowed is not None
        # A mask that is the same for all keys counts for each.
        return allowed.expand(*allowed.shape[:3], num_keys).sum(-1, keepdim=True)
    if inputs.causal_offset is None:
        return torch.full((1, 1, 1, 1), num_keys, device=device)
    first = inputs.causal_offset + 1
    return torch.arange(first, first + num_queries, device=device).clamp(max=num_keys)[:, None]


def softmax_attention(inputs: Inputs) -> Tensor:
    """The values gathered for each query by torch's own function, and zeros where a query may attend to nothing."""
    query_BHQE, key_BGKE, value_BGKF, mask, scale, dropout, causal_offset, transform = inputs
    assert transform is None
    if mask is None and causal_offset == 0:
        is_causal, mask, is_empty = True, None, None
    else:
        is_causal, is_empty = False, None
        allowed = allowed_in(inputs)
        if allowed is not None:
            # What a row with nothing to attend to gives depends on torch's kernel, so none is ever given one.
            is_empty = ~allowed.any(-1, keepdim=True)
            if mask is None or mask.dtype == torch.bool:
                mask = allowed | is_empty
            else:
                mask = mask.masked_fill(~allowed, -torch.inf).masked_fill(is_empty, 0)
    out_BHQF = F.scaled_dot_product_attention(
        query_BHQE,
        key_BGKE,
        value_BGKF,
        mask,
        dropout,
        is_causal,
        scale=scale,
        enable_gqa=query_BHQE.shape[1] != key_BGKE.shape[1],
    )
    return out_BHQF if is_empty is None else out_BHQF.masked_fill(is_empty, 0)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    # Entering a context costs as much as a small kernel.
    return torch.autocast(device, enabled=False) if is_autocast(device) else nullcontext()


def takes_gradient(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and torch.is_grad_enabled()


def _per_head(of_groups_BGKE: Tensor, inputs: Inputs) -> Tensor:
    num_heads, num_groups = inputs.query_BHQE.shape[1], of_groups_BGKE.shape[1]
    return of_groups_BGKE if num_heads == num_groups else of_groups_BGKE.repeat_interleave(num_heads // num_groups, 1)
