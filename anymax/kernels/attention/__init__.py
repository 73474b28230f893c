"""Attention by entmax, as torch operators that choose their backend when they run.

Nothing of the size of queries times keys is kept where the backend can avoid it. Shapes as in `protocol.py`.
"""

import torch
from torch import Tensor

from anymax.kernels.attention.protocol import AttentionKernel, Choice, Gathered, Gradients
from anymax.kernels.backend import Kernels
from anymax.kernels.operator import operator

kernels = Kernels[AttentionKernel]("attention")


def attention_of_plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Tensor,
    mask: Tensor | None,
    sink: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
    causal_offset: int | None,
    keeps_lists: bool,
) -> Gathered:
    """The operator `attention` without the dispatcher, for tensors that `is_plain` of."""
    choice = Choice(alpha, mask, sink, seed, scale, dropout, causal_offset)
    return kernels.choose(query).forward(query, key, value, choice, keeps_lists=keeps_lists)


def backward_of_plain(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Tensor,
    mask: Tensor | None,
    sink: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    shift: Tensor,
    lists: Tensor,
    scale: float,
    dropout: float,
    causal_offset: int | None,
    wants_alpha: bool,
) -> Gradients:
    """The operator `attention_backward` without the dispatcher."""
    choice = Choice(alpha, mask, sink, seed, scale, dropout, causal_offset)
    gathered = Gathered(out, shift, lists)
    kernel = kernels.choose(query)
    return kernel.backward(grad, query, key, value, choice, gathered, wants_alpha=wants_alpha)


def _fake_attention(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *others: object) -> Gathered:
    # Of lists the length is not known before the data is: who traces leaves them out.
    assert others[-1] is False
    shape_BHQ = query.shape[:3]
    return Gathered(
        value.new_empty(*shape_BHQ, value.shape[-1]),
        alpha.new_empty(shape_BHQ),
        torch.empty(0, dtype=torch.uint8, device=query.device),
    )


def _fake_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, *others: object
) -> Gradients:
    return Gradients(*(like.new_empty(like.shape) for like in (query, key, value, alpha, alpha)))


attention = operator(
    "attention(Tensor query, Tensor key, Tensor value, Tensor alpha, Tensor? mask, Tensor? sink, Tensor? seed, "
    "float scale, float dropout, int? causal_offset, bool keeps_lists) -> (Tensor, Tensor, Tensor)",
    attention_of_plain,
    fake=_fake_attention,
)
attention_backward = operator(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor alpha, Tensor? mask, Tensor? sink, "
    "Tensor? seed, Tensor out, Tensor shift, Tensor lists, float scale, float dropout, int? causal_offset, "
    "bool wants_alpha) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    backward_of_plain,
    fake=_fake_backward,
)
