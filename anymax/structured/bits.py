"""All bit-vectors, and what polytopes of bit-vectors share: two ways to square a bit, marginals in closed form."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

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


@dataclass(frozen=True)
class Bits(BitPolytope):
    """All bit-vectors of scores (..., D): a bit that is on adds its score, and -inf keeps it off.

    Args:
        symmetric: true takes every bit as a choice between on, with its score, and off, with score 0, and squares
            both: SparseMAP's marginals are clip((score + 1) / 2, 0, 1), the sparse counterpart of a sigmoid. False
            squares the bits that are on alone: clip(score, 0, 1). For bit-vector latents the published code computes
            the first, the published text defines the second.

    Example:
        >>> from anymax.structured import Bits, sparsemap
        >>> found = sparsemap(torch.tensor([0.4, -0.5, 3.0]), Bits())
        >>> found.marginals
        tensor([0.7000, 0.2500, 1.0000])
        >>> found.structures, found.probs
        (tensor([[1., 0., 1.],
                [0., 0., 1.],
                [1., 1., 1.]]), tensor([0.4500, 0.3000, 0.2500]))
    """

    symmetric: bool = True
    decompositions: ClassVar[tuple[str, ...]] = ("chain", "systematic", "active set")

    def best(self, scores: Tensor) -> Tensor:
        return (scores > 0).to(scores.dtype)

    def log_total(self, scores: Tensor) -> Tensor:
        return functional.softplus(scores).sum(-1)

    def nearest(self, plain_scores: Tensor) -> Tensor:
        return clip(plain_scores)


def clip(scores: Tensor) -> Tensor:
    """Scores clipped to [0, 1], with no gradient where a bit is surely on or off."""
    return torch.where((scores > 0) & (scores < 1), scores, (scores >= 1).to(scores.dtype))
