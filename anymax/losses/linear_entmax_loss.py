"""Entmax loss of a linear layer without its scores in memory, and with a gradient as sparse as the choice.

Of the three matrix products of a layer's forward and backward the last two shrink to the support: where that is small
they are sums of a few rows. A block whose support is wide goes through the dense products. Shapes as in blocks.py.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anymax.kernels import entmax as kernel
from anymax.kernels.backend import is_plain, widest
from anymax.kernels.entmax.omega import tsallis, tsallis_by_alpha
from anymax.losses.blocks import Gradients, Piece
from anymax.losses.fused import define, fused_loss
from anymax.losses.rules import Block, Rule, RuleInputs
from anymax.mappings.arguments import computed_in
from anymax.mappings.entmax import alpha_per_row, check_alpha_of_loss

# Summing a chosen row of the weight takes as long as this many entries of the dense product.
COST_OF_CHOSEN = 24


def linear_entmax_loss(
    hidden: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    alpha: float | Tensor = 1.5,
    linear_bias: Tensor | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    memory_budget: int | None = None,
) -> Tensor:
    """`entmax_loss` of `hidden @ linear_weight.T + linear_bias`, computed in blocks of rows and never held whole.

    Args:
        hidden: (..., dimension).
        linear_weight: (classes, dimension).
        target: classes, in the leading shape of `hidden`.
        alpha: above 0; a number, or a tensor that broadcasts against `hidden` with size 1 in the last dimension,
            which gets a gradient.
        linear_bias: (classes), added to the scores; by default nothing is.
        reduction, ignore_index, label_smoothing, memory_budget: as in `linear_cross_entropy`.

    Example:
        >>> hidden, weight = torch.randn(6, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
        >>> target = torch.arange(6)
        >>> loss = anymax.linear_entmax_loss(hidden, weight, target, alpha=1.5)
        >>> torch.allclose(loss, anymax.entmax_loss(hidden @ weight.T, target, 1.5), atol=1e-5)
        True
        >>> loss.backward()
        >>> weight.grad.shape
        torch.Size([50, 8])
    """
    check_alpha_of_loss(alpha)
    as_scores = _as_scores(hidden)
    alpha_A = alpha_per_row(alpha, as_scores, -1, is_plain(as_scores))
    return fused_loss(
        "linear_entmax_loss",
        [Piece(hidden, linear_weight, linear_bias)],
        target,
        [alpha_A],
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        memory_budget=memory_budget,
    )


def _as_scores(hidden: Tensor) -> Tensor:
    """Something with the device, the leading shape and the precision of the scores."""
    if not isinstance(hidden, Tensor) or not hidden.is_floating_point() or hidden.dim() == 0:
        got = hidden.dtype if isinstance(hidden, Tensor) else type(hidden).__name__
        raise TypeError(f"hidden must be a floating-point tensor with at least one dimension, got {got}")
    return hidden.detach().new_empty((), dtype=computed_in(hidden.dtype)).expand(*hidden.shape[:-1], 1)


class EntmaxLoss(Rule):
    """The gradient by the scores is entmax(scores) - target."""

    def __init__(self, inputs: RuleInputs) -> None:
        alpha_A = inputs.extras[0].detach()
        self.selection, self.smoothing = inputs.selection, inputs.label_smoothing
        self.is_shared = alpha_A.shape[0] == 1
        self.alpha_A = alpha_A if self.is_shared else self.selection.take(alpha_A)
        self.wants_alpha = any(inputs.needed)
        self.grad_T = alpha_A.new_zeros(self.selection.target_T.shape[0])
        self.weight: Tensor | None = None

    def block_(
        self, scores_BN: Tensor, targets: slice, coefficient: Tensor | None, gradients: Sequence[Gradients]
    ) -> Block:
        num_rows, n = scores_BN.shape
        target_B = self.selection.target_T[targets]
        alpha_A = self.alpha_A if self.is_shared else self.alpha_A[targets]
        # In double precision where there is one: a constant added to all scores is taken off again below.
        wanted_B = scores_BN.gather(1, target_B[:, None])[:, 0].to(widest(scores_BN))
        if self.smoothing > 0:
            wanted_B = torch.lerp(wanted_B, scores_BN.mean(1, dtype=wanted_B.dtype), self.smoothing)
        capacity = num_rows * n // COST_OF_CHOSEN if gradients[0].is_wide and coefficient is not None else 0
        by_alpha = coefficient is not None and self.wants_alpha
        support = kernel.support_(scores_BN, alpha_A, capacity=capacity, wants_by_alpha=by_alpha)
        lead_B = (support.top_R - wanted_B).to(scores_BN.dtype)
        losses_B = support.conjugate_R + lead_B + self._of_target(tsallis, alpha_A, n)
        if coefficient is None:
            return Block(losses_B, None)
        if support.by_alpha_R is not None:
            by_target_B = self._of_target(tsallis_by_alpha, alpha_A, n)
            self.grad_T[targets] = coefficient * (by_target_B - support.by_alpha_R)
        if support.counts_R is None:
            scores_BN.scatter_add_(1, target_B[:, None], scores_BN.new_full((num_rows, 1), self.smoothing - 1))
            if self.smoothing > 0:
                scores_BN.sub_(self.smoothing / n)
            return Block(losses_B, coefficient)
        self._multiply(scores_BN, support.counts_R, targets, coefficient.contiguous(), gradients[0])
        return Block(losses_B, None, is_multiplied=True)

    def _of_target(self, function: Callable[[Tensor, Tensor], Tensor], alpha_A: Tensor, n: int) -> Tensor | float:
        """Omega of the smoothed target, or its derivative: one large entry and n - 1 equal small ones."""
        if self.smoothing == 0:
            return 0.0
        small = self.smoothing / n
        small_A1 = torch.full_like(alpha_A, small)[:, None]
        return function(small_A1 + (1 - self.smoothing), alpha_A) + (n - 1) * function(small_A1, alpha_A)

    def _multiply(
        self, lists_BN: Tensor, counts_B: Tensor, targets: slice, coefficient_B: Tensor, gradients: Gradients
    ) -> None:
        # Copied once at most, for all blocks.
        self.weight = weight = gradients.piece.weight.contiguous() if self.weight is None else self.weight
        hidden_BD = gradients.piece.hidden[targets].to(lists_BN.dtype)
        into_hidden, into_weight, into_bias = gradients.sums
        into_hidden_BD = None if into_hidden is None else torch.empty_like(hidden_BD)
        kernel.add_products(
            lists_BN,
            counts_B,
            self.selection.target_T[targets],
            coefficient_B,
            weight,
            hidden_BD,
            peak=1 - self.smoothing,
            into_hidden_RD=into_hidden_BD,
            into_weight_ND=into_weight,
            into_bias_N=into_bias,
        )
        if self.smoothing > 0:
            # The part of the target that is spread over all classes makes the same row of all.
            even_B1 = coefficient_B[:, None] * self.smoothing
            if into_hidden_BD is not None:
                into_hidden_BD.sub_(even_B1 * weight.mean(0, dtype=lists_BN.dtype))
            if into_weight is not None:
                into_weight.sub_((even_B1 * hidden_BD).sum(0) / weight.shape[0])
            if into_bias is not None:
                into_bias.sub_(even_B1.sum() / weight.shape[0])
        if into_hidden is not None and into_hidden_BD is not None:
            into_hidden[targets] = into_hidden_BD

    def gradients(self) -> list[Tensor]:
        return [self.grad_T.sum(0, keepdim=True) if self.is_shared else self.selection.put_back_(self.grad_T)]


define("linear_entmax_loss", EntmaxLoss)
