"""Bit-vectors with a budget: at most k bits are on."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from anymax.mappings.subset_marginals import subset_marginals
from anymax.structured.bits import BitPolytope, clip
from anymax.structured.polytope import FORBIDDEN


@dataclass(frozen=True)
class Budget(BitPolytope):
    """The bit-vectors of scores (..., D) with at most k bits on; -inf keeps a bit off.

    Args:
        k: at least 0, where every bit is off.
        symmetric: true squares both values of a bit, as `Bits` does: SparseMAP's marginals are clip((score + 1) / 2 -
            nu, 0, 1), with nu zero, or what makes them sum to k where they would sum to more. False squares the bits
            that are on alone: clip(score - nu, 0, 1).

    Example:
        >>> from anymax.structured import Budget, sparsemap
        >>> sparsemap(torch.tensor([2.0, 1.0, 0.7, -1.0]), Budget(k=2)).marginals
        tensor([1.0000, 0.5750, 0.4250, 0.0000])
    """

    k: int
    symmetric: bool = True
    decompositions: ClassVar[tuple[str, ...]] = ("systematic", "active set")

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int):
            raise TypeError(f"k must be an integer, got {type(self.k).__name__}")
        if self.k < 0:
            raise ValueError(f"k must be at least 0, got {self.k}")

    def check(self, shape: torch.Size) -> None:
        if self.k > shape[-1]:
            raise ValueError(
                f"k must be at most the {shape[-1]} bits of the scores, got {self.k}; use Bits where all may be on"
            )

    def best(self, scores: Tensor) -> Tensor:
        # A stable sort, so that of equal scores the first is taken.
        leaders = scores.sort(dim=-1, descending=True, stable=True).indices[:, : self.k]
        return torch.zeros_like(scores).scatter(1, leaders, 1.0) * (scores > 0)

    def log_total(self, scores: Tensor) -> Tensor:
        # Measured from the best structure, and with j bits on from the best of those: large scores leave no rounding.
        ranked = scores.clamp(min=FORBIDDEN).sort(dim=-1, descending=True).values
        leaders = ranked[:, : self.k]
        # Entry j: the log of the total over the bits so far, where j of them are on, less the sum of the j leaders.
        totals = scores.new_zeros(len(scores), 1)
        for score in ranked.unbind(1):
            num_on = totals.shape[1] - 1
            with_bit = totals[:, : self.k] + (score[:, None] - leaders[:, : num_on + 1])
            # Not logaddexp: its second derivative is NaN where one of the two is forbidden.
            counted = torch.stack([totals[:, 1:], with_bit[:, :num_on]]).logsumexp(0)
            totals = torch.cat([totals[:, :1], counted, with_bit[:, num_on:]], 1)
        is_gain = leaders > 0
        gains, losses = torch.where(is_gain, leaders, 0), torch.where(is_gain, 0, leaders)
        missed = gains.flip(1).cumsum(1).flip(1)
        level = functional.pad(losses.cumsum(1), (1, 0)) - functional.pad(missed, (0, 1))
        return gains.sum(1) + (totals + level).logsumexp(1)

    def bounded(self, plain_scores: Tensor) -> Tensor:
        if self.k == 0:
            return super().bounded(plain_scores)
        # Where bits compete for the budget only their differences from the last that fits count.
        last = plain_scores.detach().topk(self.k, dim=-1).values[:, -1:]
        competing = (plain_scores - last).clamp(-1, 1) + 1
        return torch.where(self._is_over(plain_scores), competing, super().bounded(plain_scores))

    def nearest(self, plain_scores: Tensor) -> Tensor:
        return torch.where(self._is_over(plain_scores), subset_marginals(plain_scores, self.k), clip(plain_scores))

    def _is_over(self, plain_scores: Tensor) -> Tensor:
        """The rows that would have more than k bits on if every bit were free."""
        return clip(plain_scores.detach()).sum(-1, keepdim=True) > self.k
