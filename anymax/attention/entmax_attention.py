"""Attention by entmax, in the place of torch's `scaled_dot_product_attention`.

Shapes: B batch, H heads of queries, G heads of keys and values, Q queries, K keys, N entries of a row: the keys and, if
there is one, the sink; E numbers per head of queries and keys, F of values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active

from anymax.attention.arguments import Inputs, draw_seed, per_head, prepare, sink_per_head
from anymax.attention.unfused import gather, softmax_attention, takes_gradient, without_autocast
from anymax.kernels import attention as kernel
from anymax.kernels.backend import is_plain
from anymax.mappings import entmax
from anymax.mappings.arguments import computed_in
from anymax.mappings.entmax import check_alpha


def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor = 1.5,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    sink: float | Tensor | None = None,
) -> Tensor:
    """Every query gathers the values of the keys it attends to, which are few: entmax where torch has softmax.

        out = entmax(scale query key^T + attn_mask) value

    All arguments that torch's function has mean the same here. A query that may attend to nothing gathers zeros.

    Args:
        query: (..., heads, queries, E); torch's function says which leading dimensions there may be.
        key: (..., heads, keys, E).
        value: (..., heads, keys, F).
        alpha: at least 0, 1 is softmax and 2 is sparsemax; a number, or a tensor that broadcasts to (batch, heads),
            which gets a gradient.
        attn_mask: broadcasts to (..., heads, queries, keys): boolean, true where a query may attend to a key, or
            floating point, added to the scores.
        dropout_p: the rate at which probabilities are dropped, in evaluation too.
        is_causal: query i attends to keys 0 to i alone.
        scale: what scores are multiplied with; by default 1 / sqrt(E).
        enable_gqa: every head of keys and values serves several consecutive heads of queries.
        sink: the score of one more key, whose value is zero: a number, or a tensor that broadcasts to (batch, heads),
            which gets a gradient. It lets a query attend to nothing.

    Correia et al. 2019. The sink: Xiao et al. 2023, and OpenAI 2025.

    Example:
        >>> query, key, value = torch.randn(3, 2, 4, 5, 8)  # each (batch, heads, positions, numbers)
        >>> alpha = torch.full((4,), 1.5, requires_grad=True)  # one for each head
        >>> gathered = anymax.entmax_attention(query, key, value, alpha, is_causal=True)
        >>> gathered.sum().backward()
        >>> gathered.shape, alpha.grad.shape
        (torch.Size([2, 4, 5, 8]), torch.Size([4]))
    """
    inputs, lead = prepare(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not isinstance(alpha, Tensor):
        check_alpha(alpha, torch.finfo(computed_in(query.dtype)).max)
    out_BHQF = entmax_of_inputs(inputs, lead, alpha, sink)
    return out_BHQF.reshape(*lead, *out_BHQF.shape[-2:])


def entmax_of_inputs(
    inputs: Inputs, lead: torch.Size, alpha: float | Tensor, sink: float | Tensor | None = None
) -> Tensor:
    """The same for arguments that were checked, alpha too if it is a number."""
    sink_BH = sink_per_head(sink, inputs, lead)
    if sink_BH is None and not isinstance(alpha, Tensor) and alpha == 1 and _is_torchs_faster(inputs):
        return softmax_attention(inputs)
    alpha_BH = per_head("alpha", alpha, inputs, lead)
    with without_autocast(inputs.query_BHQE.device.type):
        return _fused(inputs, alpha_BH, sink_BH, draw_seed(inputs))


def _is_torchs_faster(inputs: Inputs) -> bool:
    """Whether softmax is left to torch's own function: on GPUs, in compiled code, and where it is fast on the CPU.

    There it holds all scores where probabilities are dropped, and its backward in half precision is slow.
    """
    # Where the scale is not above zero, torch's function gives NaN to causal queries.
    if inputs.scale <= 0:
        return False
    query_BHQE, key_BGKE, value_BGKF, mask = inputs[:4]
    is_fast = query_BHQE.dtype == computed_in(query_BHQE.dtype) and not inputs.dropout
    if is_fast or takes_gradient(mask) or not is_plain(query_BHQE, key_BGKE, value_BGKF, mask):
        return True
    return not kernel.kernels.choose(query_BHQE).IS_FUSED


def _fused(inputs: Inputs, alpha_BH: Tensor, sink_BH: Tensor | None, seed: Tensor | None) -> Tensor:
    query_BHQE, key_BGKE, value_BGKF, mask, scale, dropout, causal_offset, transform = inputs
    assert transform is None
    is_transformed = _are_functorch_transforms_active()
    # The kernel gives no gradient by the mask, and its rows are those of one batch that is not empty.
    if is_transformed or takes_gradient(mask) or alpha_BH.numel() == 0:
        return _unfused(inputs, alpha_BH, sink_BH, seed)
    tensors = (query_BHQE, key_BGKE, value_BGKF, alpha_BH, mask, sink_BH, seed)
    is_direct = is_plain(*tensors)
    # Data exists where tensors are torch's own, and so do lists whose length depends on it.
    has_data = type(query_BHQE) is Tensor and not query_BHQE.is_meta
    is_real = is_direct or (has_data and not torch.compiler.is_compiling())
    if not any(takes_gradient(tensor) for tensor in tensors):
        attention = kernel.attention_of_plain if is_direct else kernel.attention
        out_BHQF, _, _ = attention(*tensors, scale, dropout, causal_offset, False)
        return out_BHQF
    if is_direct:
        return _AttentionOfPlain.apply(*tensors, scale, dropout, causal_offset, True)
    out_BHQF, _, _ = _Attention.apply(*tensors, scale, dropout, causal_offset, is_real)
    return out_BHQF


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return kernel.attention(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *tensors, ctx.scale, ctx.dropout, ctx.causal_offset, _ = inputs
        _, shift_BHQ, lists = output
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(shift_BHQ, lists)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_BHQF: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad_BHQF is None:
            return (None,) * 11
        saved = ctx.saved_tensors
        settings = (ctx.scale, ctx.dropout, ctx.causal_offset)
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *_differentiable_backward(grad_BHQF, saved[:7], settings, needed), None, None, None, None
        is_direct = is_plain(grad_BHQF, *saved)
        backward: Callable[..., Any] = kernel.backward_of_plain if is_direct else kernel.attention_backward
        by_query, by_key, by_value, by_alpha, by_sink = backward(grad_BHQF, *saved, *settings, needed[3])
        found = (by_query, by_key, by_value, by_alpha if needed[3] else None, None, by_sink if needed[5] else None)
        return *found, None, None, None, None, None


class _AttentionOfPlain(torch.autograd.Function):
    """The same without the dispatcher and without `setup_context`, for which torch binds arguments at every call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        gathered = kernel.attention_of_plain(*inputs)
        *tensors, ctx.scale, ctx.dropout, ctx.causal_offset, _ = inputs
        ctx.save_for_backward(*tensors, *gathered)
        ctx.set_materialize_grads(False)
        return gathered.out_BHQF

    backward = staticmethod(_Attention.backward)


def _differentiable_backward(
    grad_BHQF: Tensor,
    tensors: tuple[Tensor, ...],
    settings: tuple[float, float, int | None],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """Gradients that can be differentiated again, from scores that are all held at once."""
    query_BHQE, key_BGKE, value_BGKF, alpha_BH, mask, sink_BH, seed = tensors
    inputs = Inputs(query_BHQE, key_BGKE, value_BGKF, mask, *settings)
    with without_autocast(query_BHQE.device.type):
        out_BHQF = _unfused(inputs, alpha_BH, sink_BH, seed)
        wanted = [tensor for tensor, is_needed in zip(tensors, needed, strict=False) if is_needed]
        found = iter(torch.autograd.grad(out_BHQF, wanted, grad_BHQF, create_graph=True))
    return [next(found) if is_needed else None for is_needed in needed[:7]]


def _unfused(inputs: Inputs, alpha_BH: Tensor, sink_BH: Tensor | None, seed: Tensor | None) -> Tensor:
    return gather(inputs, partial(entmax, alpha=alpha_BH[..., None, None]), sink_BH, seed)
