"""Bit-vectors with a budget: at most k bits are on."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anymax.kernels.backend import widest
from anymax.mappings.arguments import check_positive
from anymax.mappings.subset_marginals import subset_marginals
from anymax.structured.bit_polytope import BitPolytope, clip
from anymax.structured.polytope import FORBIDDEN


@dataclass(frozen=True)
class Budget(BitPolytope):
    """The bit-vectors of scores (..., D) with at most k bits on; -inf keeps a bit off.

    Args:
        symmetric: true squares both values of a bit, as `Bits` does: SparseMAP's marginals are clip((score + 1) / 2 -
            nu, 0, 1), with nu zero, or what makes them sum to k where they would sum to more. False squares the bits
            that are on alone: clip(score - nu, 0, 1).
    """

    k: int
    symmetric: bool = True
    decompositions: ClassVar[tuple[str, ...]] = ("systematic", "active set")

    def __post_init__(self) -> None:
        check_positive(k=self.k)

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
        scores = scores.clamp(min=FORBIDDEN)
        # Entry j: the log of the total over the bits so far, where j of them are on.
        totals = torch.cat([scores.new_zeros(len(scores), 1), scores.new_full((len(scores), self.k), FORBIDDEN)], 1)
        for score in scores.unbind(1):
            # Not logaddexp: its second derivative is NaN where one of the two is forbidden.
            counted = torch.stack([totals[:, 1:], totals[:, :-1] + score[:, None]]).logsumexp(0)
            totals = torch.cat([totals[:, :1], counted], 1)
        return totals.logsumexp(1)

    def nearest(self, plain_scores: Tensor) -> Tensor:
        # Wide, so that the marginals sum to k however large the scores are.
        wide = plain_scores.to(widest(plain_scores))
        free = clip(wide)
        is_over = free.sum(-1, keepdim=True) > self.k
        return torch.where(is_over, _summing_to(self.k, wide), free).to(plain_scores.dtype)


def _summing_to(k: int, scores: Tensor) -> Tensor:
    marginals = subset_marginals(scores, k)
    is_free = (marginals > 0) & (marginals < 1)
    # What rounding has left of the sum, where scores are large.
    excess = (marginals.detach().sum(-1, keepdim=True) - k) / is_free.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(is_free, marginals - excess, marginals)
