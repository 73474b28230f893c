"""What polytopes of bit-vectors share: the two ways to square a bit, and marginals in closed form."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from anymax.structured.polytope import Polytope


class BitPolytope(Polytope):
    """Bit-vectors of scores (..., D): a bit that is on adds its score, and -inf keeps a bit off."""

    symmetric: bool
    event_dim: ClassVar[int] = 1

    def check(self, shape: torch.Size) -> None:
        """Every number of bits fits."""

    def plain(self, scores: Tensor) -> Tensor:
        # score * mu - (mu^2 + (1 - mu)^2) / 2 is twice (score + 1) / 2 * mu - mu^2 / 2, up to a constant.
        return (scores + 1) / 2 if self.symmetric else scores

    def bounded(self, plain_scores: Tensor) -> Tensor:
        # Below 0 a bit is surely off, from 1 on surely on; large scores would take the digits of the others.
        return plain_scores.clamp(-1, 2)

    @abstractmethod
    def nearest(self, plain_scores: Tensor) -> Tensor:
        """The point of the polytope nearest to rows (N, D): SparseMAP's marginals."""


def clip(scores: Tensor) -> Tensor:
    """Scores clipped to [0, 1], with no gradient where a bit is surely on or off."""
    return torch.where((scores > 0) & (scores < 1), scores, (scores >= 1).to(scores.dtype))
