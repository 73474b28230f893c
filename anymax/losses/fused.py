"""Linear losses as one differentiable step: arguments checked, ignored rows dropped, gradients kept for the backward.

Shapes as in blocks.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anymax.kernels.backend import is_plain
from anymax.kernels.operator import operator
from anymax.losses.blocks import Piece, Rule, default_budget, run, targets_per_block
from anymax.losses.linear_arguments import check_options, check_pieces
from anymax.mappings.arguments import COMPUTED_IN, computed_in


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
WithoutBlocks = Callable[
    [Sequence[Piece], RuleInputs, Tensor | None, Sequence[bool]], tuple[Tensor, list[Tensor | None]] | None
]


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
    without_blocks: WithoutBlocks | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Losses of all targets, zero where ignored, and the gradients of the wanted tensors.

    In half precision the sums stay in float32, and the gradient of a mean is that of the sum: dividing here would lose
    small numbers before a scaled loss can save them.

    Args:
        coefficient: how much the loss of each target weighs in what is differentiated; one number serves all.
        without_blocks: what does the same as the rule in blocks, or gives None where it cannot.
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
    per_block = targets_per_block(settings.memory_budget, pieces, num_kept)
    extras = [tensor for tensor in tensors[end:] if tensor is not None]
    inputs = RuleInputs(extras, wanted[end:], kept, settings.label_smoothing)
    if not any(wanted):
        coefficient = None
    else:
        assert coefficient is not None
        coefficient = kept.of(coefficient) if coefficient.dim() else coefficient.expand(num_kept)
        if settings.reduction == "mean" and not _is_half(tensors):
            coefficient = coefficient / max(num_kept, 1)
    result = without_blocks(pieces, inputs, coefficient, wanted) if without_blocks is not None else None
    if result is None:
        with torch.autocast(target_T.device.type, enabled=False):
            result = run(make_rule(inputs), pieces, num_kept, coefficient, per_block=per_block, wanted=wanted)
    losses, gradients = result
    found = []
    for i, (gradient, tensor) in enumerate(zip(gradients, tensors, strict=False)):
        if not wanted[i] or gradient is None or tensor is None:
            continue
        if i < end and i % 3 == 0:
            gradient = kept.spread(gradient.reshape(num_kept, *tensor.shape[1:]))
        found.append(gradient.to(_gradient_dtype(i, tensor, end)))
    return kept.spread(losses), found


def _gradient_dtype(index: int, tensor: Tensor, end: int) -> torch.dtype:
    """Of what `compute` returns: the hidden states' own, else float32 at least."""
    is_hidden = index < end and index % 3 == 0
    return tensor.dtype if is_hidden else computed_in(tensor.dtype)


def _is_half(tensors: Sequence[Tensor | None]) -> bool:
    weight = tensors[1]
    return weight is not None and weight.dtype in COMPUTED_IN


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


def define(name: str, make_rule: MakeRule, without_blocks: WithoutBlocks | None = None) -> None:
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
        return compute(make_rule, tensors, target, coefficient, settings, wanted, without_blocks)

    def fake(
        tensors: list[Tensor | None], target: Tensor, coefficient: Tensor | None, num_pieces: int, *rest: Any
    ) -> tuple[Tensor, list[Tensor]]:
        losses = target.new_empty(target.shape[0], dtype=_loss_dtype(tensors))
        gradients = [
            tensor.new_empty(tensor.shape, dtype=_gradient_dtype(i, tensor, 3 * num_pieces))
            for i, (tensor, is_wanted) in enumerate(zip(tensors, rest[-1], strict=True))
            if is_wanted and tensor is not None
        ]
        return losses, gradients

    operator(
        f"{name}(Tensor?[] tensors, Tensor target, Tensor? coefficient, int num_pieces, str reduction, "
        "int ignore_index, float label_smoothing, int memory_budget, bool[] wanted) -> (Tensor, Tensor[])",
        kernel,
        fake=fake,
    )


def _forward(
    settings: Settings,
    make_rule: MakeRule | None,
    wanted: Sequence[bool],
    target_T: Tensor,
    tensors: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    """The loss, and the gradients of the wanted tensors where they can be computed now."""
    if settings.reduction == "none":
        losses_T, _ = _call(settings, make_rule, tensors, target_T, None, [False] * len(wanted))
        return (losses_T,)
    one = target_T.new_ones((), dtype=_loss_dtype(tensors)) if any(wanted) else None
    losses_T, gradients = _call(settings, make_rule, tensors, target_T, one, wanted)
    loss = losses_T.sum()
    return loss / _num_counted(settings, target_T) if settings.reduction == "mean" else loss, *gradients


def _num_counted(settings: Settings, target_T: Tensor) -> Tensor:
    return (target_T != settings.ignore_index).sum().clamp(min=1)


class Fused(torch.autograd.Function):
    """The reduced loss. With "mean" and "sum" the gradients are there before the backward, which only scales them."""

    @staticmethod
    def forward(
        settings: Settings,
        make_rule: MakeRule | None,
        wanted: Sequence[bool],
        target_T: Tensor,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        return _forward(settings, make_rule, wanted, target_T, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.settings, ctx.make_rule, ctx.wanted, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.gradients = list(output[1:])
        ctx.mark_non_differentiable(*ctx.gradients)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        target_T, *tensors = ctx.saved_tensors
        with torch.no_grad():
            if ctx.gradients:
                # Handed over, not copied; a second backward computes them anew.
                gradients, ctx.gradients, factor = ctx.gradients, [], grad
            else:
                factor = grad.new_ones(())
                gradients = _call(ctx.settings, ctx.make_rule, tensors, target_T, grad, ctx.wanted)[1]
            if ctx.settings.reduction == "mean" and _is_half(tensors):
                factor = factor / _num_counted(ctx.settings, target_T)
            sources = [tensor for tensor, is_wanted in zip(tensors, ctx.wanted, strict=True) if is_wanted]
            gradients = _scaled(gradients, factor, [source.dtype for source in sources])
        if torch.is_grad_enabled():
            others = [tensor for tensor in (grad, *tensors) if tensor is not None]
            gradients = Final.apply(ctx.settings.name, len(gradients), *gradients, *others)
        found = iter(gradients)
        return None, None, None, None, *(next(found) if is_wanted else None for is_wanted in ctx.wanted)


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


def _call(
    settings: Settings,
    make_rule: MakeRule | None,
    tensors: Sequence[Tensor | None],
    target_T: Tensor,
    coefficient: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, list[Tensor]]:
    if make_rule is not None:
        return compute(make_rule, tensors, target_T, coefficient, settings, wanted)
    overload = getattr(torch.ops.anymax, settings.name)
    losses_T, gradients = overload(list(tensors), target_T, coefficient, *settings[1:], list(wanted))
    return losses_T, gradients


def _loss_dtype(tensors: Sequence[Tensor | None]) -> torch.dtype:
    weight = tensors[1]
    assert weight is not None
    return computed_in(weight.dtype)


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
    check_options(reduction, label_smoothing, memory_budget)
    check_pieces(name, pieces, target, group)
    pieces = [_in_autocast(piece) for piece in pieces]
    if memory_budget is None:
        memory_budget = default_budget(pieces, group or 1)
    settings = Settings(name, len(pieces), reduction, ignore_index, float(label_smoothing), memory_budget)
    flat: list[Tensor | None] = []
    for hidden, weight, bias in pieces:
        inner = hidden.shape[target.dim() :]
        flat += [hidden.reshape(-1, *inner), weight, bias]
    tensors = [*flat, *extras]
    wanted = [torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in tensors]
    target_T = target.reshape(-1).long()
    if any(wanted):
        losses, *_ = Fused.apply(settings, make_rule, wanted, target_T, *tensors)
    else:
        (losses,) = _forward(settings, make_rule, wanted, target_T, tensors)
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
