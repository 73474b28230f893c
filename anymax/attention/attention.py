"""Attention by any mapping: fused where it is entmax, by torch's own function where it is softmax.

Shapes as in `arguments.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anymax.attention.arguments import Inputs, draw_seed, prepare, sink_per_head
from anymax.attention.entmax_attention import entmax_of_inputs
from anymax.attention.unfused import Choose, Watch, gather, probs_of
from anymax.mappings import Entmax, LearnedEntmax, entmax, softmax, sparsemax

# Called with scores and mask=..., it maps the last dimension: a function of anymax.mappings, or a Module over one.
Mapping = Callable[..., Tensor]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: Mapping | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    sink: float | Tensor | None = None,
) -> Tensor:
    """Every query gathers the values of the keys that any mapping chooses.

        out = mapping(scale query key^T + attn_mask) value

    Entmax, learned or not, is `entmax_attention`, and softmax torch's own function; every other mapping holds all
    scores at once, in float32 for half precision.

    Args:
        query: (..., heads, queries, E); this and all arguments after `mapping` as in `entmax_attention`.
        mapping: what turns scores (batch, heads, queries, keys) into probabilities over keys, called with `mask`, true
            where a query may attend to a key: a function such as `anymax.sparsemax` or a Module over one; by default
            softmax.
        sink: one more score of each row, whose probability is left out.
    """
    check_mapping(mapping)
    inputs, lead = prepare(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    out_BHQF = attend(inputs, lead, mapping, sink)
    return out_BHQF.reshape(*lead, *out_BHQF.shape[-2:])


def attend(
    inputs: Inputs,
    lead: torch.Size,
    mapping: Mapping | None,
    sink: float | Tensor | None = None,
    *,
    watch: Watch | None = None,
) -> Tensor:
    """The same for arguments that were checked.

    Args:
        watch: is given the probabilities, without dropout and gradient; the result is the same with and without.
    """
    alpha = alpha_of(mapping)
    if alpha is None:
        sink_BH, seed = sink_per_head(sink, inputs, lead), draw_seed(inputs)
        return gather(inputs, _chooser(mapping), sink_BH, seed, watch)
    if watch is not None:
        with torch.no_grad():
            watch(probs(inputs, lead, mapping, sink))
    return entmax_of_inputs(inputs, lead, alpha, sink)


def probs(inputs: Inputs, lead: torch.Size, mapping: Mapping | None, sink: float | Tensor | None = None) -> Tensor:
    """Where every head looks: (B, H, Q, K), without dropout."""
    return probs_of(inputs, _chooser(mapping), sink_per_head(sink, inputs, lead))


def alpha_of(mapping: Mapping | None) -> float | Tensor | None:
    """The alpha of a mapping that is entmax, as a number or per head of the batch; None for every other mapping."""
    if mapping is None or mapping is softmax:
        return 1.0
    if mapping is entmax:
        return 1.5
    if mapping is sparsemax:
        return 2.0
    # Not of a subclass, which may map otherwise, nor where a hook waits for the scores.
    if type(mapping) is Entmax and not _has_hooks(mapping):
        return mapping.alpha
    if type(mapping) is LearnedEntmax and not _has_hooks(mapping):
        alpha = mapping.alpha
        if alpha.numel() == 1:
            return alpha.reshape(())
        return alpha[..., 0, 0] if alpha.shape[-2:] == (1, 1) else None
    return None


def check_mapping(mapping: Mapping | None) -> None:
    if mapping is not None and not callable(mapping):
        raise TypeError(
            f"mapping must be a Module or a function of scores and mask, got {type(mapping).__name__}; "
            "as in anymax.Entmax(1.5)"
        )
    if isinstance(mapping, Entmax | LearnedEntmax) and mapping.dim not in (-1, 3):
        raise ValueError(f"mapping must map the keys, the last dimension, got one with dim={mapping.dim}")


def _chooser(mapping: Mapping | None) -> Choose:
    chosen = softmax if mapping is None else mapping
    return lambda scores, allowed: chosen(scores, mask=allowed)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
