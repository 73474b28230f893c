"""The attention functions that transformers calls in place of its own, found by name in its registry.

Shapes: B batch, H heads of queries, G heads of keys and values, Q queries, K keys, E numbers per head.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.utils.output_capturing import _active_collector

from anymax.attention import entmax_attention
from anymax.attention.arguments import per_head, prepare
from anymax.attention.attention import probs
from anymax.hf.settings import alpha_of
from anymax.mappings import entmax

ENTMAX = "anymax_entmax"
SPARSEMAX = "anymax_sparsemax"

# What models hand to every attention function, and what a caller of a model may, and what says nothing of the scores:
# the mask has the window and the sequences that are packed already, for any function but those of flash attention.
_HARMLESS = {
    "cache_position",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "encoder_attention_mask",
    "encoder_hidden_states",
    "max_length_k",
    "max_length_q",
    "mm_token_type_ids",
    "num_items_in_batch",
    "output_hidden_states",
    "position_embeddings",
    "position_ids",
    "seq_idx",
    "shift_labels",
    "sliding_window",
    "token_type_ids",
}
# What is known to change them; of others, tensors and everything else but flags, whole numbers and names is refused.
_CHANGING = {"block_indices", "cache", "indices", "sinks", "softcap"}


def register() -> None:
    """Make the functions known to transformers, each with a mask function.

    Without a mask function, transformers leaves out padding and windows in silence.
    """
    for name, function in ((ENTMAX, entmax_forward), (SPARSEMAX, sparsemax_forward)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, make_mask)


def make_mask(*positions: Any, config: Any = None, **options: Any) -> Tensor | None:
    """The mask that torch's fused attention gets, where a model is made for that, else that of eager attention.

    The first is boolean, true where a query may attend to a key, and None where `is_causal` of the module says it all.
    The second is added to the scores, which is all that some models expect: they take -inf for true, or say nothing of
    causality.
    """
    make = sdpa_mask if _is_made_for_sdpa(type(config)) else eager_mask
    return make(*positions, config=config, **options)


def _find_support(config: type) -> bool | None:
    """Whether the model of a config supports torch's fused attention; None for a config that has no model."""
    if config not in _SUPPORT:
        found = MODEL_MAPPING.get(config, ())
        models = found if isinstance(found, list | tuple) else (found,)
        _SUPPORT[config] = all(model._supports_sdpa for model in models) if models else None
    return _SUPPORT[config]


_SUPPORT: dict[type, bool | None] = {}
# So that a compiled model does not trace how it is found.
_is_made_for_sdpa: Callable[[type], bool | None] = torch.compiler.assume_constant_result(_find_support)


def entmax_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention by entmax with the alphas of the module, or the one alpha of its config, by default 1.5."""
    return _attend(module, query, key, value, attention_mask, alpha_of(module, query.shape[1]), **options)


def sparsemax_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention by sparsemax."""
    return _attend(module, query, key, value, attention_mask, 2.0, **options)


def _attend(
    module: nn.Module,
    query_BHQE: Tensor,
    key_BGKE: Tensor,
    value_BGKE: Tensor,
    mask: Tensor | None,
    alpha: float | Tensor,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    output_attentions: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """What transformers wants: the gathered values as (B, Q, H, E), and the weights (B, H, Q, K) if they are asked for.

    Args:
        is_causal: by default what the module says; ignored where there is a mask.
        position_bias: added to the scores, as T5 does.
        s_aux: the scores of sinks, one per head, as in GPT-OSS.
    """
    _refuse(module, others)
    num_queries, num_keys = query_BHQE.shape[2], key_BGKE.shape[2]
    is_grouped = query_BHQE.shape[1] != key_BGKE.shape[1]
    if is_causal is None:
        # With the mask of eager attention, no mask means no mask, whatever the module says of itself.
        is_made = _is_made_for_sdpa(type(getattr(module, "config", None)))
        is_causal = is_made is not False and getattr(module, "is_causal", is_made is True)
    # One query is the last position. Keys of a static cache that no query has reached are hidden by causality.
    is_causal = mask is None and is_causal and num_queries > 1
    mask = _mask(mask, position_bias, query_BHQE, num_keys)
    if is_causal and mask is not None:
        causal_QK = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query_BHQE.device).tril()
        mask, is_causal = mask.masked_fill(~causal_QK, -math.inf), False
    if output_attentions or _are_weights_captured():
        inputs, lead = prepare(query_BHQE, key_BGKE, value_BGKE, mask, 0.0, is_causal, scaling, is_grouped)
        mapping = functools.partial(entmax, alpha=per_head("alpha", alpha, inputs, lead)[..., None, None])
        weights_BHQK = F.dropout(probs(inputs, lead, mapping, s_aux).to(query_BHQE.dtype), dropout)
        value_BHKE = value_BGKE.repeat_interleave(query_BHQE.shape[1] // value_BGKE.shape[1], 1)
        return (weights_BHQK @ value_BHKE).transpose(1, 2).contiguous(), weights_BHQK
    gathered_BHQE = entmax_attention(
        query_BHQE,
        key_BGKE,
        value_BGKE,
        alpha,
        mask,
        dropout,
        is_causal,
        scale=scaling,
        enable_gqa=is_grouped,
        sink=s_aux,
    )
    return gathered_BHQE.transpose(1, 2).contiguous(), None


def _are_weights_captured() -> bool:
    """Whether weights are asked for in a model that does not pass this on, as GPT-2: hooks wait for them then."""
    captured = None if torch.compiler.is_compiling() else _active_collector.get()
    return captured is not None and any(name.endswith("attentions") for name in captured)


def _mask(mask: Tensor | None, position_bias: Tensor | None, query: Tensor, num_keys: int) -> Tensor | None:
    """The mask of these keys alone, with the bias: a static cache makes both longer than the keys that are passed."""
    if mask is not None:
        mask = mask[..., :num_keys]
        if mask.is_floating_point():
            # Half precision's least number would leave a trace where alpha is below 1.
            mask = mask.masked_fill(mask <= torch.finfo(mask.dtype).min, -math.inf)
            mask = mask if mask.dtype == torch.float32 else mask.to(query.dtype)
    if position_bias is None:
        return mask
    position_bias = position_bias[..., :num_keys]
    if mask is None:
        return position_bias
    return position_bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else position_bias + mask


def _refuse(module: nn.Module, others: dict[str, Any]) -> None:
    """Refuse what a model passes to its attention and may change the scores: ignored, it would give other results."""
    for name, value in others.items():
        if value is None or name in _HARMLESS or (name not in _CHANGING and isinstance(value, bool | int | str)):
            continue
        raise ValueError(
            f"{name} must be None for {ENTMAX} and {SPARSEMAX}, got {type(value).__name__} in "
            f"{type(module).__name__}: it may change the scores, which they would not follow; use "
            "attn_implementation='eager' for this model"
        )
