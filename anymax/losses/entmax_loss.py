"""Entmax losses: cross-entropy at alpha 1, sparsemax loss at alpha 2, with alpha learnable.

Shapes: R rows, N classes, A is R or 1.
"""

from typing import Any

import torch
from torch import Tensor

from anymax.kernels import entmax as kernel
from anymax.kernels.backend import is_plain
from anymax.kernels.entmax.omega import tsallis, tsallis_by_alpha
from anymax.losses.targets import as_distribution, check_arguments, inner, is_counted, prepare_scores, reduce
from anymax.mappings.entmax import alpha_per_row, check_alpha_of_loss, entmax_of_last, sum_over_rows


def entmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: float | Tensor = 1.5,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The Fenchel-Young loss of entmax: its gradient by the scores is entmax(scores) - target.

    For alpha above 1 it is zero once the target's score leads all others by 1/(alpha-1), where cross-entropy never
    ends. Below 1 it never ends either.

    Args:
        scores: classes in the last dimension, any leading shape.
        target: classes (integers, in the leading shape) or distributions (floating point, in the shape of scores).
        alpha: above 0; a number, or a tensor that broadcasts against `scores` with size 1 in the last dimension,
            which gets a gradient.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one loss per row.
        ignore_index: the class of rows to leave out; if all are, the loss is zero.
        label_smoothing: how much of the target to spread evenly over all classes.

    Peters et al. 2019.

    Example:
        >>> scores = torch.tensor([[2.0, 1.5, 0.5, -1.0]], requires_grad=True)
        >>> loss = anymax.entmax_loss(scores, torch.tensor([0]))
        >>> loss.backward()
        >>> loss.detach(), scores.grad  # entmax(scores) less the target
        (tensor(0.1846), tensor([[-0.3288,  0.3240,  0.0048,  0.0000]]))
    """
    prepared = prepare_scores(scores)
    check_arguments(prepared, target, reduction, ignore_index, label_smoothing)
    check_alpha_of_loss(alpha)
    alpha_A = alpha_per_row(alpha, prepared, -1, is_plain(prepared))
    counted = is_counted(target, ignore_index)
    losses = _losses(prepared, target, alpha_A, counted, label_smoothing)
    return reduce(losses, counted, reduction).to(scores.dtype)


def sparsemax_loss(
    scores: Tensor,
    target: Tensor,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The Fenchel-Young loss of sparsemax: `entmax_loss` at alpha 2, whose other arguments it has.

    Martins and Astudillo 2016.

    Example:
        >>> scores = torch.tensor([[2.0, 1.5, 0.5], [2.0, 0.5, 0.0]])
        >>> anymax.sparsemax_loss(scores, torch.tensor([0, 0]), reduction="none")  # zero from a lead of 1
        tensor([0.0625, 0.0000])
    """
    return entmax_loss(
        scores, target, 2.0, reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
    )


def _losses(scores: Tensor, target: Tensor, alpha_A: Tensor, counted: Tensor | None, label_smoothing: float) -> Tensor:
    """One loss per row, in the leading shape."""
    n = scores.shape[-1]
    scores_RN = scores.reshape(-1, n)
    # A constant added to all scores changes nothing, and the loss is a small difference: take the maximum off first.
    top_R1 = scores_RN.detach().amax(1, keepdim=True)
    top_R1 = torch.where(top_R1.isfinite(), top_R1, 0)
    _, maximum_R = _Conjugate.apply(scores_RN, alpha_A)
    if counted is not None and label_smoothing == 0:
        classes_R1 = torch.where(counted, target, 0).long().reshape(-1, 1)
        wanted_R = (scores_RN.gather(1, classes_R1) - top_R1)[:, 0]
        # Omega of a single class is zero.
        return (maximum_R - wanted_R).reshape(scores.shape[:-1])
    wanted_RN = as_distribution(target, scores, counted, label_smoothing).reshape(-1, n)
    losses_R = maximum_R + tsallis(wanted_RN, alpha_A) - inner(scores_RN - top_R1, wanted_RN)
    return losses_R.reshape(scores.shape[:-1])


class _Conjugate(torch.autograd.Function):
    """max over p of <p, z> - Omega(p) for each row, z being the row minus its maximum: log-sum-exp at alpha 1.

    Returns the probabilities, which carry no gradient here, and the maxima.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores_RN: Tensor, alpha_A: Tensor) -> tuple[Tensor, Tensor]:
        return kernel.entmax_conjugate(scores_RN, alpha_A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[0])
        ctx.save_for_backward(*inputs, output[0])

    @staticmethod
    def backward(ctx: Any, _: Tensor, grad_R: Tensor) -> tuple[Tensor, Tensor | None]:
        scores_RN, alpha_A, probs_RN = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Attached anew, so that the second derivative is right.
            probs_RN = entmax_of_last(scores_RN, alpha_A)
        grad_scores_RN = grad_R[:, None] * probs_RN
        if not ctx.needs_input_grad[1]:
            return grad_scores_RN, None
        return grad_scores_RN, sum_over_rows(-grad_R * tsallis_by_alpha(probs_RN, alpha_A), alpha_A)


# Compiling a vmap inlines the Function's forward; the operator then needs the gradient itself.
torch.library.register_autograd("anymax::entmax_conjugate", _Conjugate.backward, setup_context=_Conjugate.setup_context)
