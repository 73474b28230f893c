"""The Fenchel-Young loss of any mapping that comes from a convex regularizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anymax.losses.targets import as_distribution, check_arguments, inner, is_counted, prepare_scores, reduce


def fenchel_young_loss(
    scores: Tensor,
    target: Tensor,
    *,
    mapping: Callable[[Tensor], Tensor],
    omega: Callable[[Tensor], Tensor],
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss that goes with a mapping: zero exactly where the mapping gives the target, with gradient probs - target.

        max over p of (<p, scores> - omega(p))  +  omega(target)  -  <target, scores>

    Args:
        scores: classes in the last dimension, any leading shape.
        target: classes (integers, in the leading shape) or distributions (floating point, in the shape of scores).
        mapping: scores to the distribution that attains the maximum, along the last dimension.
        omega: the regularizer of that mapping, as `regularized_argmax` takes it: one distribution, a vector, to a
            number. It must be defined at zeros (`-torch.special.entr(p).sum()`, not `(p * p.log()).sum()`). A parameter
            inside it gets its first derivative only; the scores get their second as well.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one loss per row.
        ignore_index: the class of rows to leave out; if all are, the loss is zero.
        label_smoothing: how much of the target to spread evenly over all classes.

    Blondel et al. 2020.

    Example:
        >>> scores = torch.tensor([[2.0, 1.5, 0.5, -1.0]])
        >>> def omega(probs):
        ...     return probs.square().sum() / 2
        >>> anymax.fenchel_young_loss(scores, torch.tensor([0]), mapping=anymax.sparsemax, omega=omega)
        tensor(0.0625)
    """
    prepared = prepare_scores(scores)
    check_arguments(prepared, target, reduction, ignore_index, label_smoothing)
    counted = is_counted(target, ignore_index)
    wanted = as_distribution(target, prepared, counted, label_smoothing)
    # A constant added to all scores changes nothing, and the loss is a small difference: take the maximum off first.
    top = prepared.detach().amax(-1, keepdim=True)
    shifted = prepared - torch.where(top.isfinite(), top, 0)
    probs = mapping(shifted)
    attained = _Maximum.apply(shifted, probs)
    losses = attained - _each_row(omega, probs.detach()) + _each_row(omega, wanted) - inner(shifted, wanted)
    return reduce(losses, counted, reduction).to(scores.dtype)


def _each_row(omega: Callable[[Tensor], Tensor], probs: Tensor) -> Tensor:
    rows = probs.reshape(-1, probs.shape[-1])
    if rows.shape[0] == 0:
        return probs.new_zeros(probs.shape[:-1])
    return torch.func.vmap(omega)(rows).reshape(probs.shape[:-1])


class _Maximum(torch.autograd.Function):
    """<probs, scores> where probs attain a maximum: their own change counts for nothing in the first derivative.

    The probabilities stay attached in the backward, so that the second derivative is right.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, probs: Tensor) -> Tensor:
        return inner(scores, probs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (probs,) = ctx.saved_tensors
        return grad[..., None] * probs, None
