"""Cross-entropy of a linear layer, and of a pointwise transform of one, without its scores in memory."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.func import functional_call

from anymax.kernels.cross_entropy import cross_entropy_, layer_cross_entropy, prefers_layer
from anymax.losses.blocks import NARROW, Gradients, Piece
from anymax.losses.fused import define, fused_loss
from anymax.losses.rules import Block, Rule, RuleInputs
from anymax.mappings.arguments import computed_in

# A transform makes copies of the scores it works on: it gets as many bytes of a block at a time as stay in a cache.
CHUNK_BYTES = 4 * 2**20


def linear_cross_entropy(
    hidden: Tensor | Sequence[Tensor],
    linear_weight: Tensor | Sequence[Tensor],
    target: Tensor,
    linear_bias: Tensor | Sequence[Tensor | None] | None = None,
    *,
    transform: nn.Module | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    memory_budget: int | None = None,
) -> Tensor:
    """Cross-entropy of `hidden @ linear_weight.T + linear_bias`, computed in blocks of rows and never held whole.

    Works in float32 at least and returns that. The backward of "none" computes the scores again; a second derivative
    is refused.

    Args:
        hidden: (..., dimension). Several tensors, with as many weights, put the scores of all side by side.
        linear_weight: (classes, dimension).
        target: classes, in the leading shape of `hidden`.
        linear_bias: (classes), added to the scores; by default nothing is.
        transform: a module applied to every score by itself, as PLIF; its parameters get their gradient. Nothing in it
            may be random, since it may be called again for the gradient.
        reduction: "mean" over the targets that are not ignored, "sum", or "none" for one loss per target.
        ignore_index: the class of targets to leave out. On a CPU their rows are dropped before anything is computed; on
            other devices they are computed with weight zero, so that nothing waits for their number.
        label_smoothing: how much of the target to spread evenly over all classes.
        memory_budget: bytes that a block of scores may take; by default as many as the weight takes, from 16 to 64 MiB,
            or a quarter of a weight that takes more than 256 MiB; 4 MiB where the dimension is below 16. On a CPU a
            small layer of such a dimension is computed row by row, and needs no block.

    Example:
        >>> hidden, weight = torch.randn(6, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
        >>> target = torch.arange(6)
        >>> loss = anymax.linear_cross_entropy(hidden, weight, target)
        >>> torch.allclose(loss, torch.nn.functional.cross_entropy(hidden @ weight.T, target), atol=1e-5)
        True
        >>> loss.backward()
        >>> weight.grad.shape
        torch.Size([50, 8])
    """
    pieces = as_pieces(hidden, linear_weight, linear_bias)
    parameters = trained(transform)

    def make_rule(inputs: RuleInputs) -> Rule:
        assert transform is not None
        return Transformed(transform, dict(zip(parameters, inputs.extras, strict=True)), CrossEntropy(inputs))

    take = fused_loss_outside_graphs if transform is not None and torch.compiler.is_compiling() else fused_loss
    return take(
        "linear_cross_entropy",
        pieces,
        target,
        list(parameters.values()),
        make_rule=None if transform is None else make_rule,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        memory_budget=memory_budget,
    )


# Differentiating a module inside a step is nothing a compiler can follow: it breaks its graph there. The public
# torch.compiler.disable does the same, but imports the compiler at once.
fused_loss_outside_graphs = _disable_dynamo(fused_loss)


def trained(module: nn.Module | None) -> dict[str, Tensor]:
    """The parameters of a transform that get a gradient, by name."""
    if module is None:
        return {}
    if not isinstance(module, nn.Module):
        raise TypeError(f"transform must be an nn.Module, got {type(module).__name__}; wrap a function in a Module")
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def as_pieces(
    hidden: Tensor | Sequence[Tensor],
    weight: Tensor | Sequence[Tensor],
    bias: Tensor | Sequence[Tensor | None] | None,
) -> list[Piece[Tensor]]:
    """Pieces of one tensor each, or of several."""
    several = [isinstance(value, list | tuple) for value in (hidden, weight, bias)]
    if not any(several):
        return [Piece(hidden, weight, bias)]  # type: ignore[arg-type]
    if not (several[0] and several[1] and (several[2] or bias is None)):
        raise TypeError("hidden, linear_weight and linear_bias must be tensors, or all of them sequences of tensors")
    biases = [None] * len(weight) if bias is None else list(bias)
    if not len(hidden) == len(weight) == len(biases) or not hidden:
        raise ValueError(
            "hidden, linear_weight and linear_bias must have as many tensors each, at least one, "
            f"got {len(hidden)}, {len(weight)}, {len(biases)}"
        )
    return [Piece(*piece) for piece in zip(hidden, weight, biases, strict=True)]


class CrossEntropy(Rule):
    """The gradient in place of the scores is that of each row's own loss; here each row is a target by itself."""

    group = 1

    def __init__(self, inputs: RuleInputs) -> None:
        self.selection, self.smoothing = inputs.selection, inputs.label_smoothing

    def block_(
        self, scores_BN: Tensor, targets: slice, coefficient: Tensor | None, gradients: Sequence[Gradients]
    ) -> Block:
        target_B = self.selection.target_T[targets].repeat_interleave(self.group)
        losses_B = cross_entropy_(scores_BN, target_B, self.smoothing, wants_gradient=coefficient is not None)
        return Block(*self.weigh(losses_B, targets, coefficient))

    def weigh(self, losses_B: Tensor, targets: slice, coefficient: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Losses of targets from those of their rows, and what the gradient of each row is to be multiplied with."""
        return losses_B, coefficient

    def without_blocks(
        self, pieces: Sequence[Piece[Tensor]], coefficient: Tensor | None, needed: Piece[bool]
    ) -> tuple[Tensor, Piece[Tensor | None]] | None:
        """A small layer of narrow hidden states, row by row."""
        hidden, weight, bias = pieces[0]
        if len(pieces) > 1 or weight.shape[1] >= NARROW or not prefers_layer(hidden, weight):
            return None
        losses_T, gradients = layer_cross_entropy(
            hidden, weight, bias, self.selection.target_T, self.smoothing, coefficient, [bool(each) for each in needed]
        )
        return losses_T, Piece(*gradients)


class Transformed(Rule):
    """The cross-entropy of a transform of the scores, in chunks of a block's rows."""

    def __init__(self, transform: nn.Module, parameters: dict[str, Tensor], rule: CrossEntropy) -> None:
        self.transform, self.rule = transform, rule
        # Leaves of our own, as precise as the scores, apart from what the caller differentiates.
        self.parameters = {
            name: value.detach().to(computed_in(value.dtype)).requires_grad_() for name, value in parameters.items()
        }
        self.sums = [torch.zeros_like(value) for value in self.parameters.values()]

    def block_(
        self, scores_BN: Tensor, targets: slice, coefficient: Tensor | None, gradients: Sequence[Gradients]
    ) -> Block:
        group = self.rule.group
        num_targets = targets.stop - targets.start
        per_chunk = max(1, CHUNK_BYTES // (group * scores_BN.shape[1] * scores_BN.element_size()))
        losses = []
        for first in range(0, num_targets, per_chunk):
            last = min(first + per_chunk, num_targets)
            here = None if coefficient is None else coefficient[first:last]
            chunk = slice(targets.start + first, targets.start + last)
            losses.append(self._chunk_(scores_BN[first * group : last * group], chunk, here, gradients))
        return Block(torch.cat(losses), None)

    def _chunk_(
        self, scores_CN: Tensor, targets: slice, coefficient: Tensor | None, gradients: Sequence[Gradients]
    ) -> Tensor:
        if coefficient is None:
            with torch.no_grad():
                return self.rule.block_(self._image(scores_CN).contiguous(), targets, None, gradients).losses
        with torch.enable_grad():
            scores = scores_CN.detach().requires_grad_()
            image = self._image(scores)
        # A module may keep its image for its own backward: work on a copy.
        grad_CN = image.detach().clone(memory_format=torch.contiguous_format)
        block = self.rule.block_(grad_CN, targets, coefficient, gradients)
        assert block.coefficient_B is not None
        grad_CN.mul_(block.coefficient_B[:, None])
        leaves = [scores, *self.parameters.values()]
        grad_scores, *grads = torch.autograd.grad(image, leaves, grad_CN, allow_unused=True)
        scores_CN.zero_() if grad_scores is None else scores_CN.copy_(grad_scores)
        for total, grad in zip(self.sums, grads, strict=True):
            if grad is not None:
                total.add_(grad)
        return block.losses

    def _image(self, scores_CN: Tensor) -> Tensor:
        image: Tensor = functional_call(self.transform, self.parameters, (scores_CN,))
        return image

    def gradients(self) -> list[Tensor]:
        return [*self.rule.gradients(), *self.sums]


define("linear_cross_entropy", CrossEntropy)
