"""The part of a linear loss that differs from one to another, its rule, and the targets it is given.

Shapes as in blocks.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.losses.blocks import Gradients, Piece


class Selection(NamedTuple):
    """The targets whose rows are computed: their classes, and the row of each among all, None if it is every row.

    On a CPU the rows of ignored targets are dropped. Their number decides the shapes, and an accelerator would have to
    wait for it, so there an ignored target becomes a copy of the first one that counts, with weight zero: it adds
    exactly nothing, and is finite wherever the row that counts is.
    """

    target_T: Tensor
    rows_T: Tensor | None
    is_counted: Tensor
    has_copies: bool

    def take(self, values: Tensor) -> Tensor:
        return values if self.rows_T is None else values[self.rows_T]

    def put_back_(self, values: Tensor) -> Tensor:
        """Values of the selected targets at their places among all, zero at ignored ones."""
        if self.has_copies:
            return values.masked_fill_(~self.is_counted.view(-1, *(1,) * (values.dim() - 1)), 0)
        if self.rows_T is None:
            return values
        return values.new_zeros(self.is_counted.shape[0], *values.shape[1:]).index_copy_(0, self.rows_T, values)

    def clear_if_empty_(self, gradient: Tensor) -> Tensor:
        """A gradient summed over targets: zero if none counts, for then all are copies of an ignored one."""
        return gradient.masked_fill_(~self.is_counted.any(), 0) if self.has_copies else gradient

    def weights(self, weights: Tensor, *, is_mean: bool) -> Tensor:
        """The weight of every selected target, from those of all or from one number."""
        num_targets = self.target_T.shape[0]
        if self.has_copies:
            weights = torch.where(self.is_counted, weights, 0)
            return weights / self.is_counted.sum().clamp(min=1) if is_mean else weights
        weights = self.take(weights) if weights.dim() else weights.expand(num_targets)
        return weights / max(num_targets, 1) if is_mean else weights


def select(target: Tensor, num_classes: int, ignore_index: int) -> Selection:
    is_counted = target != ignore_index
    if can_read(target):
        _check_range(target, is_counted, num_classes, ignore_index)
        rows = None if bool(is_counted.all()) else is_counted.nonzero()[:, 0]
        return Selection(target if rows is None else target[rows], rows, is_counted, has_copies=False)
    if target.shape[0] == 0:
        return Selection(target, None, is_counted, has_copies=False)
    first = is_counted.byte().argmax()
    rows = torch.where(is_counted, torch.arange(target.shape[0], device=target.device), first)
    return Selection(torch.where(is_counted, target, 0)[rows], rows, is_counted, has_copies=True)


def can_read(target: Tensor) -> bool:
    """Whether values can be read without waiting for a device."""
    return target.is_cpu


def _check_range(target: Tensor, is_counted: Tensor, num_classes: int, ignore_index: int) -> None:
    """Here and not with the other arguments, since under a compiler only the operator sees values."""
    is_wrong = is_counted & ((target < 0) | (target >= num_classes))
    if bool(is_wrong.any()):
        raise ValueError(
            f"target must be a class from 0 to {num_classes - 1}, or ignore_index ({ignore_index}), "
            f"got {target[is_wrong][0].item()}"
        )


class RuleInputs(NamedTuple):
    """The loss's own tensors, whether they need a gradient, and the targets."""

    extras: Sequence[Tensor]
    needed: Sequence[bool]
    selection: Selection
    label_smoothing: float


class Block(NamedTuple):
    """What a rule leaves of a block of scores.

    `coefficient_B` is still to be multiplied to the gradient that stands in place of the scores; None where it has
    been. A rule whose gradient is sparse has done the products itself and sets `is_multiplied`.
    """

    losses: Tensor
    coefficient_B: Tensor | None
    is_multiplied: bool = False


class Rule(ABC):
    """How the scores of a block turn into losses and gradients: what sets one linear loss apart from another."""

    @abstractmethod
    def block_(
        self, scores_BN: Tensor, targets: slice, coefficient: Tensor | None, gradients: Sequence[Gradients]
    ) -> Block:
        """Losses of a block's targets; the scores give way to their gradient unless `coefficient` is None."""

    def without_blocks(
        self, pieces: Sequence[Piece[Tensor]], coefficient: Tensor | None, needed: Piece[bool]
    ) -> tuple[Tensor, Piece[Tensor | None]] | None:
        """Losses of all targets and the gradients of the one piece, where a kernel computes them without blocks."""
        return None

    def gradients(self) -> list[Tensor]:
        """Gradients of the rule's own tensors, after the last block."""
        return []
