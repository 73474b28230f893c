"""Entmax of rows, as torch operators that choose their backend when they run.

Shapes: R rows, N entries, and one alpha per row or one for all (A is R or 1). Scores have shape (..., N), with R rows
in the leading dimensions, and any floating dtype; alpha has the dtype they are computed in.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anymax.kernels.backend import Kernels
from anymax.kernels.entmax.protocol import EntmaxKernel, Support
from anymax.kernels.operator import operator
from anymax.kernels.rows import computed_in

kernels = Kernels[EntmaxKernel]("entmax")


def _pick(scores: Tensor, alpha_A: Tensor) -> EntmaxKernel:
    num_alphas = alpha_A.numel()
    if alpha_A.dtype != computed_in(scores.dtype) or not (num_alphas == 1 or num_alphas == _num_rows(scores)):
        raise ValueError(
            f"alpha must be {computed_in(scores.dtype)} with 1 or {_num_rows(scores)} entries, one per row, "
            f"got {alpha_A.dtype} with {num_alphas}"
        )
    return kernels.choose(scores)


def _num_rows(scores: Tensor) -> int:
    return math.prod(scores.shape[:-1])


def entmax_of_plain(scores: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
    """The operator `entmax` without the dispatcher, for tensors that `is_plain` of."""
    return _pick(scores, alpha_A).forward(scores.contiguous(), alpha_A.contiguous(), mask)


def _conjugate(scores: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
    return _pick(scores, alpha_A).conjugate(scores.contiguous(), alpha_A.contiguous())


def backward_of_plain(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None) -> Tensor:
    """The operator `entmax_backward` without the dispatcher."""
    arguments = (grad.contiguous(), probs.contiguous(), alpha_A.contiguous())
    return _pick(probs, alpha_A).backward(*arguments, mask)


def backward_both_of_plain(
    grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The operator `entmax_backward_both` without the dispatcher."""
    arguments = (grad.contiguous(), probs.contiguous(), alpha_A.contiguous())
    return _pick(probs, alpha_A).backward_both(*arguments, mask)


def differentiable_backward(grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None) -> Tensor:
    """A gradient by the scores that can be differentiated again, which only that of plain torch can."""
    from anymax.kernels.entmax import reference

    return reference.backward(grad, probs, alpha_A, mask)


def differentiable_backward_both(
    grad: Tensor, probs: Tensor, alpha_A: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same, and the gradient by alpha."""
    from anymax.kernels.entmax import reference

    return reference.backward_both(grad, probs, alpha_A, mask)


def support_(scores_RN: Tensor, alpha_A: Tensor, *, capacity: int, wants_by_alpha: bool) -> Support:
    """Entmax in place, of rows that may stand apart: as lists of what was chosen if those hold `capacity` at most."""
    assert scores_RN.dtype == computed_in(scores_RN.dtype)
    return _pick(scores_RN, alpha_A).support_(scores_RN, alpha_A.contiguous(), capacity, wants_by_alpha)


def add_products(
    lists_RN: Tensor,
    counts_R: Tensor,
    target_R: Tensor,
    coefficient_R: Tensor,
    weight_ND: Tensor,
    hidden_RD: Tensor,
    *,
    peak: float,
    into_hidden_RD: Tensor | None,
    into_weight_ND: Tensor | None,
    into_bias_N: Tensor | None,
) -> None:
    """Multiply the gradient of rows that `support_` made lists of with a layer; see `EntmaxKernel.add_products`."""
    kernels.choose(lists_RN).add_products(
        lists_RN,
        counts_R,
        target_R,
        coefficient_R,
        weight_ND,
        hidden_RD,
        peak=peak,
        into_hidden_RD=into_hidden_RD,
        into_weight_ND=into_weight_ND,
        into_bias_N=into_bias_N,
    )


def _like(scores: Tensor) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _per_row(scores: Tensor, dtype: torch.dtype) -> Tensor:
    return scores.new_empty(_num_rows(scores), dtype=dtype)


def _batched(num_scores: int) -> Callable[[Any], Callable[..., Any]]:
    """The vmap rule of an operator whose first arguments have shape (..., N): a batch has more rows."""

    def of(overload: Any) -> Callable[..., Any]:
        def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
            in_front = [
                tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
                for tensor, dim in zip(arguments[: num_scores + 1], in_dims, strict=False)
            ]
            *scores, alpha_BA = in_front
            alpha, *others = arguments[num_scores:]
            num_rows = math.prod(scores[0].shape[1:-1])
            if in_dims[num_scores] is not None or alpha.shape[0] != 1:
                alpha = alpha_BA.expand(-1, num_rows).flatten()
            if others and in_dims[num_scores + 1] is not None:
                # Its own dimensions stay at the end, where they broadcast.
                mask = others[0].movedim(in_dims[num_scores + 1], 0)
                others[0] = mask.unflatten(0, (-1, *(1,) * (scores[0].dim() - mask.dim())))
            results = overload(*scores, alpha, *others)
            if isinstance(results, Tensor):
                return results, 0
            entries, per_row = results
            return (entries, per_row.unflatten(0, (info.batch_size, num_rows))), (0, 0)

        return rule

    return of


entmax = operator(
    "entmax(Tensor scores, Tensor alpha, Tensor? mask=None) -> Tensor",
    entmax_of_plain,
    fake=lambda scores, alpha, mask=None: _like(scores),
    batched=_batched(1),
)
entmax_conjugate = operator(
    "entmax_conjugate(Tensor scores, Tensor alpha) -> (Tensor, Tensor)",
    _conjugate,
    fake=lambda scores, alpha: (_like(scores), _per_row(scores, scores.dtype)),
    batched=_batched(1),
)
entmax_backward = operator(
    "entmax_backward(Tensor grad, Tensor probs, Tensor alpha, Tensor? mask=None) -> Tensor",
    backward_of_plain,
    fake=lambda grad, probs, alpha, mask=None: _like(probs),
    batched=_batched(2),
)
entmax_backward_both = operator(
    "entmax_backward_both(Tensor grad, Tensor probs, Tensor alpha, Tensor? mask=None) -> (Tensor, Tensor)",
    backward_both_of_plain,
    fake=lambda grad, probs, alpha, mask=None: (_like(probs), _per_row(probs, alpha.dtype)),
    batched=_batched(2),
)
