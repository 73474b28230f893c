"""Linear losses as one differentiable step: arguments checked, rows selected, gradients kept for the backward.

A block of scores is computed, gives way to its gradient in place, and is multiplied with the weight and the hidden
states at once, in the forward already where the reduction allows; the backward then only scales. Shapes as in
blocks.py.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anymax.kernels.backend import is_plain
from anymax.kernels.operator import operator
from anymax.losses.blocks import (
    Gradients,
    Piece,
    columns_of,
    default_budget,
    num_classes,
    score_blocks,
    targets_per_block,
)
from anymax.losses.linear_arguments import check_options, check_pieces
from anymax.losses.rules import Rule, RuleInputs, Selection, select
from anymax.mappings.arguments import COMPUTED_IN, computed_in

MakeRule = Callable[[RuleInputs], Rule]


class Settings(NamedTuple):
    """The operator that computes a linear loss, or the rule of one that holds a module; then its plain numbers."""

    name: str
    make_rule: MakeRule | None
    num_pieces: int
    reduction: str
    ignore_index: int
    label_smoothing: float
    memory_budget: int


def flatten(pieces: Sequence[Piece[Any]], extras: Sequence[Any]) -> list[Any]:
    """Pieces and the loss's own tensors in one list, as operators and autograd take them."""
    return [*chain.from_iterable(pieces), *extras]


def unflatten(flat: Sequence[Any], num_pieces: int) -> tuple[list[Piece[Any]], Sequence[Any]]:
    size = len(Piece._fields)
    pieces = [Piece(*flat[size * i : size * (i + 1)]) for i in range(num_pieces)]
    return pieces, flat[size * num_pieces :]


def compute(
    make_rule: MakeRule,
    tensors: Sequence[Tensor | None],
    target: Tensor,
    coefficient: Tensor | None,
    num_pieces: int,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    memory_budget: int,
    needed: Sequence[bool],
) -> tuple[Tensor, list[Tensor]]:
    """Losses of all targets, zero where ignored, and the gradients of the tensors that need one.

    In half precision the sums stay in float32, and the gradient of a mean is that of the sum: dividing here would lose
    small numbers before a scaled loss can save them.

    Args:
        tensors, needed: see `flatten`.
        coefficient: how much the loss of each target weighs in what is differentiated; one number serves all.
    """
    given, extras = unflatten(tensors, num_pieces)
    needed_pieces, needed_extras = unflatten(needed, num_pieces)
    selection = select(target, num_classes(given), ignore_index)
    pieces = [
        Piece(selection.take(hidden).reshape(-1, weight.shape[1]).contiguous(), weight, bias)
        for hidden, weight, bias in given
    ]
    num_targets, group = selection.target_T.shape[0], math.prod(given[0].hidden.shape[1:-1])
    per_block = targets_per_block(memory_budget, pieces, group)
    if coefficient is not None:
        is_mean = reduction == "mean" and not _is_half(pieces)
        coefficient = selection.weights(coefficient, is_mean=is_mean)
    with _without_autocast(target.device.type):
        rule = make_rule(RuleInputs(extras, needed_extras, selection, label_smoothing))
        whole = rule.without_blocks(pieces, coefficient, needed_pieces[0])
        if whole is not None:
            losses_T, sums = whole[0], [whole[1]]
        else:
            losses_T = torch.zeros(num_targets, dtype=_loss_dtype(pieces), device=target.device)
            gradients = [Gradients(*each) for each in zip(pieces, needed_pieces, strict=True)]
            for targets, rows, scores_BN in score_blocks(pieces, num_targets, group, per_block):
                here = None if coefficient is None else coefficient[targets]
                block = rule.block_(scores_BN, targets, here, gradients)
                losses_T[targets] = block.losses
                if coefficient is not None and not block.is_multiplied:
                    for gradient, columns in zip(gradients, columns_of(pieces), strict=True):
                        gradient.add(scores_BN[:, columns], rows, block.coefficient_B)
            sums = [each.sums for each in gradients]
    return selection.put_back_(losses_T), _collect(selection, given, sums, rule, needed)


def _collect(
    selection: Selection,
    given: Sequence[Piece[Tensor]],
    sums: Sequence[Piece[Tensor | None]],
    rule: Rule,
    needed: Sequence[bool],
) -> list[Tensor]:
    """The gradients that are needed, each in the shape of its tensor."""
    if not any(needed):
        return []
    in_shape = []
    for piece, (hidden, weight, bias) in zip(given, sums, strict=True):
        if hidden is not None:
            hidden = selection.put_back_(hidden.reshape(selection.target_T.shape[0], *piece.hidden.shape[1:]))
        in_shape.append(Piece(hidden, weight, bias))
    found = zip(flatten(in_shape, rule.gradients()), needed, strict=True)
    return [selection.clear_if_empty_(gradient) for gradient, is_needed in found if is_needed]


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    # Entering a context costs as much as a small kernel.
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _is_half(pieces: Sequence[Piece[Tensor]]) -> bool:
    return pieces[0].weight.dtype in COMPUTED_IN


def _loss_dtype(pieces: Sequence[Piece[Tensor]]) -> torch.dtype:
    return computed_in(pieces[0].weight.dtype)


def define(name: str, make_rule: MakeRule) -> None:
    """Make an operator of a linear loss, which compilers take as one step."""
    operator(
        f"{name}(Tensor?[] tensors, Tensor target, Tensor? coefficient, int num_pieces, str reduction, "
        "int ignore_index, float label_smoothing, int memory_budget, bool[] needed) -> (Tensor, Tensor[])",
        partial(compute, make_rule),
        fake=_fake,
    )


def _fake(
    tensors: list[Tensor | None], target: Tensor, coefficient: Tensor | None, num_pieces: int, *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    """The results of `compute` without their values: gradients of hidden states in their dtype, others as computed."""
    pieces, _ = unflatten(tensors, num_pieces)
    dtypes = [None if tensor is None else computed_in(tensor.dtype) for tensor in tensors]
    of_pieces, of_extras = unflatten(dtypes, num_pieces)
    of_pieces = [of._replace(hidden=piece.hidden.dtype) for of, piece in zip(of_pieces, pieces, strict=True)]
    gradients = [
        tensor.new_empty(tensor.shape, dtype=dtype)
        for tensor, dtype, is_needed in zip(tensors, flatten(of_pieces, of_extras), rest[-1], strict=True)
        if is_needed and tensor is not None
    ]
    return target.new_empty(target.shape[0], dtype=_loss_dtype(pieces)), gradients


def _function(settings: Settings) -> Callable[..., tuple[Tensor, list[Tensor]]]:
    """`compute` with the rule, as an operator unless the rule holds a module."""
    if settings.make_rule is not None:
        return partial(compute, settings.make_rule)
    function: Callable[..., tuple[Tensor, list[Tensor]]] = getattr(torch.ops.anymax, settings.name)
    return function


class Fused(torch.autograd.Function):
    """The reduced loss. With "mean" and "sum" the gradients are there before the backward, which only scales them."""

    @staticmethod
    def forward(
        settings: Settings, needed: Sequence[bool], target_T: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The loss, and the gradients of the tensors that need one where they can be computed now."""
        now = [is_needed and settings.reduction != "none" for is_needed in needed]
        pieces, _ = unflatten(tensors, settings.num_pieces)
        one = target_T.new_ones((), dtype=_loss_dtype(pieces)) if any(now) else None
        losses_T, gradients = _function(settings)(list(tensors), target_T, one, *settings[2:], now)
        if settings.reduction == "none":
            return (losses_T,)
        loss = losses_T.sum()
        return loss / _num_counted(settings, target_T) if settings.reduction == "mean" else loss, *gradients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.settings, ctx.needed, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.gradients = list(output[1:])
        ctx.mark_non_differentiable(*ctx.gradients)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        settings, needed = ctx.settings, ctx.needed
        target_T, *tensors = ctx.saved_tensors
        with torch.no_grad():
            if ctx.gradients:
                # Handed over, not copied; a second backward computes them again.
                gradients, ctx.gradients, factor = ctx.gradients, [], grad
            else:
                factor = grad.new_ones(())
                gradients = _function(settings)(tensors, target_T, grad, *settings[2:], list(needed))[1]
            if settings.reduction == "mean" and _is_half(unflatten(tensors, settings.num_pieces)[0]):
                factor = factor / _num_counted(settings, target_T)
            sources = [tensor for tensor, is_needed in zip(tensors, needed, strict=True) if is_needed]
            gradients = _scaled(gradients, factor, [source.dtype for source in sources])
        if torch.is_grad_enabled():
            others = [tensor for tensor in (grad, *tensors) if tensor is not None]
            gradients = Final.apply(settings.name, len(gradients), *gradients, *others)
        found = iter(gradients)
        return None, None, None, *(next(found) if is_needed else None for is_needed in needed)


def _num_counted(settings: Settings, target_T: Tensor) -> Tensor:
    return (target_T != settings.ignore_index).sum().clamp(min=1)


class Final(torch.autograd.Function):
    """Gradients as they are, tied to what they depend on, so that differentiating them is refused and not zero."""

    @staticmethod
    def forward(name: str, num_gradients: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.view_as(gradient) for gradient in tensors[:num_gradients])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(
            f"{ctx.name} cannot be differentiated twice: its scores are gone; "
            "use the loss of F.linear(hidden, weight) for second derivatives"
        )


def _scaled(gradients: Sequence[Tensor], factor: Tensor, dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """Gradients times a number, in place where they are as precise as it is, in the given types."""
    # Usually the loss itself is differentiated; only on a CPU does looking cost nothing.
    is_one = is_plain(factor) and bool(factor == 1)
    scaled = []
    for gradient, dtype in zip(gradients, dtypes, strict=True):
        if is_one:
            scaled.append(gradient.to(dtype))
        elif gradient.dtype == factor.dtype and not torch.compiler.is_compiling():
            scaled.append(gradient.mul_(factor).to(dtype))
        else:
            scaled.append((gradient.to(factor.dtype) * factor).to(dtype))
    return scaled


def fused_loss(
    name: str,
    pieces: Sequence[Piece[Tensor]],
    target: Tensor,
    extras: Sequence[Tensor] = (),
    *,
    make_rule: MakeRule | None = None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float = 0.0,
    memory_budget: int | None,
    group: int | None = None,
) -> Tensor:
    """Check the arguments, lay them out as rows and take the loss; it has the shape of the target if not reduced.

    Args:
        make_rule: for a loss that holds a module, and so cannot be an operator.
        group: how many rows of scores belong to each target; the hidden states then have one dimension more.
    """
    check_options(reduction, label_smoothing, memory_budget)
    check_pieces(name, pieces, target, group)
    pieces = [_in_autocast(piece) for piece in pieces]
    if memory_budget is None:
        memory_budget = default_budget(pieces, group or 1)
    settings = Settings(name, make_rule, len(pieces), reduction, ignore_index, float(label_smoothing), memory_budget)
    pieces = [piece._replace(hidden=piece.hidden.reshape(-1, *piece.hidden.shape[target.dim() :])) for piece in pieces]
    tensors = flatten(pieces, extras)
    needed = [torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in tensors]
    take = Fused.apply if any(needed) else Fused.forward
    losses, *_ = take(settings, needed, target.reshape(-1).long(), *tensors)
    return losses.reshape(target.shape) if reduction == "none" else losses


def _in_autocast(piece: Piece[Tensor]) -> Piece[Tensor]:
    """The piece in the precision that automatic mixed precision gives to matrix products."""
    device = piece.hidden.device.type
    if not torch.is_autocast_enabled(device):
        return piece
    dtype = torch.get_autocast_dtype(device)
    if torch.float64 in (piece.hidden.dtype, piece.weight.dtype):
        return piece
    return Piece(piece.hidden.to(dtype), piece.weight.to(dtype), None if piece.bias is None else piece.bias.to(dtype))
