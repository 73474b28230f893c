"""Linear losses as one differentiable step: arguments checked, ignored rows dropped, gradients kept for the backward.

Shapes as in blocks.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anymax.kernels.operator import library as operators
from anymax.losses.blocks import Piece, Rule, default_budget, run
from anymax.losses.targets import REDUCTIONS
from anymax.mappings.arguments import COMPUTED_IN


class Kept(NamedTuple):
    """The targets that take part: their classes, and their places among all, None if all of them do."""

    target: Tensor
    places: Tensor | None
    num_targets: int

    def of(self, value: Tensor) -> Tensor:
        return value if self.places is None else value[self.places]

    def spread(self, value: Tensor) -> Tensor:
        """Values of the kept targets at their places, zero at the others."""
        if self.places is None:
            return value
        return value.new_zeros(self.num_targets, *value.shape[1:]).index_copy_(0, self.places, value)


class RuleInputs(NamedTuple):
    """What a rule is made from: the loss's own tensors, and whether their gradients are wanted."""

    extras: Sequence[Tensor]
    wanted: Sequence[bool]
    kept: Kept
    label_smoothing: float


MakeRule = Callable[[RuleInputs], Rule]


class Settings(NamedTuple):
    """The plain numbers of a linear loss; `name` is the operator that computes it."""

    name: str
    num_pieces: int
    reduction: str
    ignore_index: int
    label_smoothing: float
    memory_budget: int


def compute(
    make_rule: MakeRule,
    tensors: Sequence[Tensor | None],
    target_T: Tensor,
    coefficient: Tensor | None,
    settings: Settings,
    wanted: Sequence[bool],
) -> tuple[Tensor, list[Tensor]]:
    """Losses of all targets, zero where ignored, and the gradients of the wanted tensors.

    Args:
        coefficient: how much the loss of each target weighs in what is differentiated; one number serves all.
    """
    counted_T = target_T != settings.ignore_index
    end = 3 * settings.num_pieces
    _check_range(target_T, counted_T, [weight for weight in tensors[1:end:3] if weight is not None], settings)
    places = None if bool(counted_T.all()) else counted_T.nonzero()[:, 0]
    kept = Kept(target_T if places is None else target_T[places], places, target_T.shape[0])
    num_kept = kept.target.shape[0]
    pieces = []
    for i in range(0, end, 3):
        hidden, weight, bias = tensors[i : i + 3]
        assert hidden is not None and weight is not None
        pieces.append(Piece(kept.of(hidden).reshape(-1, weight.shape[1]).contiguous(), weight, bias))
    extras = [tensor for tensor in tensors[end:] if tensor is not None]
    rule = make_rule(RuleInputs(extras, wanted[end:], kept, settings.label_smoothing))
    scale = 1 / max(num_kept, 1) if settings.reduction == "mean" else 1.0
    if any(wanted):
        assert coefficient is not None
        coefficient = kept.of(coefficient) if coefficient.dim() else coefficient.expand(num_kept)
        if pieces[0].weight.dtype not in COMPUTED_IN:
            # No risk of underflow: the scale may go where it costs nothing.
            coefficient, scale = coefficient * scale, 1.0
    with torch.autocast(target_T.device.type, enabled=False):
        losses, gradients = run(
            rule,
            pieces,
            num_kept,
            coefficient if any(wanted) else None,
            scale=scale,
            memory_budget=settings.memory_budget,
            wanted=wanted,
        )
    found = {i: grad for i, grad in enumerate(gradients) if wanted[i] and grad is not None}
    for i in range(0, end, 3):
        if i in found:
            shape = tensors[i].shape[1:]  # type: ignore[union-attr]
            found[i] = kept.spread(found[i].reshape(num_kept, *shape))
    return kept.spread(losses), list(found.values())


def _check_range(target_T: Tensor, counted_T: Tensor, weights: Sequence[Tensor], settings: Settings) -> None:
    """Here and not with the other arguments, since under a compiler only the operator sees values."""
    if not target_T.is_cpu:
        return
    n = sum(weight.shape[0] for weight in weights)
    wrong_T = counted_T & ((target_T < 0) | (target_T >= n))
    if bool(wrong_T.any()):
        raise ValueError(
            f"target must be a class from 0 to {n - 1}, or ignore_index ({settings.ignore_index}), "
            f"got {target_T[wrong_T][0].item()}"
        )


def define(name: str, make_rule: MakeRule) -> None:
    """Make an operator of a linear loss, which compilers take as one step."""

    def kernel(
        tensors: list[Tensor | None],
        target: Tensor,
        coefficient: Tensor | None,
        num_pieces: int,
        reduction: str,
        ignore_index: int,
        label_smoothing: float,
        memory_budget: int,
        wanted: list[bool],
    ) -> tuple[Tensor, list[Tensor]]:
        settings = Settings(name, num_pieces, reduction, ignore_index, label_smoothing, memory_budget)
        return compute(make_rule, tensors, target, coefficient, settings, wanted)

    def fake(tensors: list[Tensor | None], target: Tensor, *rest: Any) -> tuple[Tensor, list[Tensor]]:
        weight = tensors[1]
        assert weight is not None
        losses = weight.new_empty(target.shape[0], dtype=COMPUTED_IN.get(weight.dtype, weight.dtype))
        wanted = zip(tensors, rest[-1], strict=True)
        return losses, [torch.empty_like(tensor) for tensor, is_wanted in wanted if is_wanted and tensor is not None]

    operators.define(
        f"{name}(Tensor?[] tensors, Tensor target, Tensor? coefficient, int num_pieces, str reduction, "
        "int ignore_index, float label_smoothing, int memory_budget, bool[] wanted) -> (Tensor, Tensor[])"
    )
    operators.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"anymax::{name}", fake)


class Fused(torch.autograd.Function):
    """The reduced loss. With "mean" and "sum" the gradients are there before the backward, which only scales them."""

    @staticmethod
    def forward(ctx: Any, settings: Settings, make_rule: MakeRule | None, target_T: Tensor, *tensors: Tensor) -> Tensor:
        wanted = list(ctx.needs_input_grad[3:])
        ctx.settings, ctx.make_rule = settings, make_rule
        ctx.save_for_backward(target_T, *tensors)
        is_early = any(wanted) and settings.reduction != "none"
        losses_T, gradients = _call(
            settings,
            make_rule,
            tensors,
            target_T,
            target_T.new_ones((), dtype=_loss_dtype(tensors[1])) if is_early else None,
            wanted if is_early else [False] * len(wanted),
        )
        ctx.gradients = gradients if is_early else None
        if settings.reduction == "none":
            return losses_T
        if settings.reduction == "sum":
            return losses_T.sum()
        return losses_T.sum() / (target_T != settings.ignore_index).sum().clamp(min=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{ctx.settings.name} cannot be differentiated twice: its scores are gone; "
                "use the loss of F.linear(hidden, weight) for second derivatives"
            )
        wanted = list(ctx.needs_input_grad[3:])
        if ctx.gradients is not None:
            # Handed over, not copied; a second backward computes them anew.
            gradients, ctx.gradients = ctx.gradients, None
            for gradient in gradients:
                if not (grad.is_cpu and not torch.compiler.is_compiling() and grad == 1):
                    gradient.mul_(grad)
        else:
            target_T, *tensors = ctx.saved_tensors
            _, gradients = _call(ctx.settings, ctx.make_rule, tensors, target_T, grad, wanted)
        found = iter(gradients)
        return None, None, None, *(next(found) if is_wanted else None for is_wanted in wanted)


def _call(
    settings: Settings,
    make_rule: MakeRule | None,
    tensors: Sequence[Tensor | None],
    target_T: Tensor,
    coefficient: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor, list[Tensor]]:
    if make_rule is not None:
        return compute(make_rule, tensors, target_T, coefficient, settings, wanted)
    operator = getattr(torch.ops.anymax, settings.name)
    losses_T, gradients = operator(list(tensors), target_T, coefficient, *settings[1:], wanted)
    return losses_T, gradients


def _loss_dtype(weight: Tensor) -> torch.dtype:
    return COMPUTED_IN.get(weight.dtype, weight.dtype)


def fused_loss(
    name: str,
    pieces: Sequence[Piece],
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
    _check(name, pieces, target, reduction, label_smoothing, group)
    pieces = [_in_autocast(piece) for piece in pieces]
    if memory_budget is None:
        memory_budget = default_budget(pieces, group or 1)
    settings = Settings(name, len(pieces), reduction, ignore_index, float(label_smoothing), memory_budget)
    flat: list[Tensor | None] = []
    for hidden, weight, bias in pieces:
        inner = hidden.shape[target.dim() :]
        flat += [hidden.reshape(-1, *inner), weight, bias]
    losses = Fused.apply(settings, make_rule, target.reshape(-1).long(), *flat, *extras)
    return losses.reshape(target.shape) if reduction == "none" else losses


def _in_autocast(piece: Piece) -> Piece:
    """The piece in the precision that automatic mixed precision gives to matrix products."""
    device = piece.hidden.device.type
    if not torch.is_autocast_enabled(device):
        return piece
    dtype = torch.get_autocast_dtype(device)
    if torch.float64 in (piece.hidden.dtype, piece.weight.dtype):
        return piece
    return Piece(piece.hidden.to(dtype), piece.weight.to(dtype), None if piece.bias is None else piece.bias.to(dtype))


def _check(
    name: str,
    pieces: Sequence[Piece],
    target: Tensor,
    reduction: str,
    label_smoothing: float,
    group: int | None,
) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must lie between 0 and 1, got {label_smoothing}")
    if not isinstance(target, Tensor) or target.dtype not in (torch.int64, torch.int32):
        came = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(
            f"target must be a tensor of classes, int64 or int32, got {came}; {name} takes no distributions"
        )
    leading = target.shape if group is None else (*target.shape, group)
    for piece in pieces:
        _check_piece(piece, target, tuple(leading))


def _check_piece(piece: Piece, target: Tensor, leading: tuple[int, ...]) -> None:
    hidden, weight, bias = piece
    for what, value in (("hidden", hidden), ("linear_weight", weight)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            came = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{what} must be a floating-point tensor, got {came}; convert with .float()")
    if weight.dim() != 2 or weight.shape[0] == 0:
        raise ValueError(
            f"linear_weight must be (classes, dimension) with at least one class, got {tuple(weight.shape)}"
        )
    if hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden must end in the dimension of linear_weight, {weight.shape[1]}, got shape {tuple(hidden.shape)}"
        )
    if tuple(hidden.shape[:-1]) != leading:
        raise ValueError(
            f"hidden must have the shape of target and a last dimension more, {(*leading, weight.shape[1])}, "
            f"got {tuple(hidden.shape)}"
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"linear_bias must have one entry per class, {weight.shape[0]}, got shape {tuple(bias.shape)}")
    others: list[tuple[str, Tensor | None]] = [("linear_weight", weight), ("linear_bias", bias), ("target", target)]
    for what, other in others:
        if other is not None and other.device != hidden.device:
            raise ValueError(
                f"{what} must be on the device of hidden, {hidden.device}, got {other.device}; move it with .to"
            )
    differs = hidden.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype)
    if differs and not torch.is_autocast_enabled(hidden.device.type):
        raise TypeError(
            f"hidden, linear_weight and linear_bias must have one dtype, got {hidden.dtype}, {weight.dtype}"
            + ("" if bias is None else f", {bias.dtype}")
            + "; convert one of them or use torch.autocast"
        )
