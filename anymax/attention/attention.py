"""Attention by any mapping: fused where it is entmax or softmax.

Shapes as in `arguments.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anymax.attention.arguments import Inputs, draw_seed, prepare, sink_per_head
from anymax.attention.entmax_attention import entmax_of_inputs
from anymax.attention.unfused import Mapping, Watch, gather, num_allowed, probs_of
from anymax.mappings import (
    Entmax,
    LearnedEntmax,
    Rectified,
    Sigmoid,
    Softpick,
    entmax,
    softmax,
    sparsemax,
)
from anymax.mappings.arguments import computed_in
from anymax.mappings.sink import WithSink, check_takes_sink
from anymax.transforms import LengthScale

# Called with scores alone; LengthScale is told what may be attended to as well.
Transform = Callable[..., Tensor]
_WITH_DIM = (Entmax, LearnedEntmax, LengthScale, Rectified, Sigmoid, Softpick, WithSink)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: Mapping | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    transform: Transform | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    sink: float | Tensor | None = None,
) -> Tensor:
    """Every query gathers the values of the keys that any mapping chooses.

        out = mapping(transform(scale query key^T) + attn_mask) value

    Entmax, learned or not, is `entmax_attention`, and so is softmax as alpha 1; every other mapping holds all
    scores at once, in float32 for half precision.

    Args:
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa: as in `entmax_attention`.
        mapping: what turns scores (batch, heads, queries, keys) into probabilities over keys, called with `mask`, true
            where a query may attend to a key: a function such as `anymax.sparsemax` or a Module over one; by default
            softmax.
        transform: what scores go through before the mask: a function or Module of `anymax.transforms`. `LengthScale`
            multiplies the queries, so that entmax stays fused; others have all scores held at once.
        sink: one more score of each row, whose probability is left out. A mapping to weights that do not depend on each
            other, as `anymax.sigmoid`, refuses it.

    Example:
        >>> query, key, value = torch.randn(3, 2, 4, 5, 8)  # each (batch, heads, positions, numbers)
        >>> anymax.attention.attention(query, key, value, anymax.mappings.softpick, is_causal=True).shape
        torch.Size([2, 4, 5, 8])
        >>> gathered = anymax.attention.attention(query, key, value)
        >>> torch.allclose(gathered, torch.nn.functional.scaled_dot_product_attention(query, key, value), atol=1e-5)
        True
    """
    check_mapping(mapping, transform, sink)
    inputs, lead = prepare(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    out_BHQF = attend(transformed(inputs, transform), lead, mapping, sink)
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
    if alpha is None or inputs.transform is not None:
        sink_BH, seed = sink_per_head(sink, inputs, lead), draw_seed(inputs)
        return gather(inputs, softmax if mapping is None else mapping, sink_BH, seed, watch)
    if watch is not None:
        with torch.no_grad():
            watch(probs(inputs, lead, mapping, sink))
    return entmax_of_inputs(inputs, lead, alpha, sink)


def probs(inputs: Inputs, lead: torch.Size, mapping: Mapping | None, sink: float | Tensor | None = None) -> Tensor:
    """Where every head looks: (B, H, Q, K), without dropout."""
    return probs_of(inputs, softmax if mapping is None else mapping, sink_per_head(sink, inputs, lead))


def transformed(inputs: Inputs, transform: Transform | None) -> Inputs:
    """The inputs with scores that go through a transform."""
    if not isinstance(transform, LengthScale):
        return inputs._replace(transform=transform)
    query_BHQE = inputs.query_BHQE
    factor_BHQ1 = transform.factor(num_allowed(inputs).to(computed_in(query_BHQE.dtype)))
    return inputs._replace(query_BHQE=(query_BHQE * factor_BHQ1).to(query_BHQE.dtype))


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


def check_mapping(mapping: Mapping | None, transform: Transform | None = None, sink: object = None) -> None:
    """That the three fit together; the value of a sink is checked elsewhere."""
    if mapping is not None and not callable(mapping):
        raise TypeError(
            f"mapping must be a Module or a function of scores and mask, got {type(mapping).__name__}; "
            "as in anymax.Entmax(1.5)"
        )
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be a Module or a function of scores, got {type(transform).__name__}")
    for name, module in (("mapping", mapping), ("transform", transform)):
        if isinstance(module, _WITH_DIM) and module.dim not in (-1, 3):
            raise ValueError(f"{name} must be along the keys, the last dimension, got one with dim={module.dim}")
    if sink is not None and mapping is not None:
        check_takes_sink(mapping)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
