"""How scores of bits become a distribution over bit-vectors: as plain data, chosen when a `BitVector` is made."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from anymax.latent.bit_distribution import BitDistribution
from anymax.latent.independent_bits import IndependentBits
from anymax.latent.listed_bits import ListedBits
from anymax.mappings import sparsemax
from anymax.mappings.arguments import check_positive, computed_in
from anymax.structured import Bits, Polytope, sparsemap, topk_bits


@runtime_checkable
class BitMapping(Protocol):
    """Gives the distribution that scores (rows, bits) stand for."""

    def distribution(self, scores: Tensor) -> BitDistribution: ...


@dataclass(frozen=True)
class Independent:
    """Every bit is on with the probability sigmoid(score), whatever the others are."""

    def distribution(self, scores: Tensor) -> BitDistribution:
        return IndependentBits(scores)


@dataclass(frozen=True)
class TopKSparsemax:
    """Sparsemax over the k best bit-vectors, where a bit-vector scores what its bits that are on score together.

    Where fewer than k end above zero, it is sparsemax over all bit-vectors: `BitVector.is_exact` tells.

    Correia et al. 2020.
    """

    k: int

    def __post_init__(self) -> None:
        check_positive(k=self.k)

    def distribution(self, scores: Tensor) -> BitDistribution:
        num_bits = scores.shape[-1]
        wide = scores.to(computed_in(scores.dtype))
        top = topk_bits(wide, self.k)
        # Measured from the best bit-vector: their own scores may be too large to tell them apart.
        flips = top.bits - top.bits[:, :1]
        probs = sparsemax(torch.where(flips == 0, 0, flips * wide[:, None]).sum(-1))
        is_exact = ((probs > 0).sum(-1) < self.k) | (self.k == 2**num_bits)
        return ListedBits(scores, top.bits.to(scores.dtype), probs, is_exact)


@dataclass(frozen=True)
class SparseMap:
    """SparseMAP: the few bit-vectors whose mean are the sparse marginals of a polytope.

    Args:
        polytope: which bit-vectors there are: `Bits()` for all, `Budget(k)` for those with at most k bits on.
        decomposition: how the marginals are written as a mean of bit-vectors, by the names of
            `anymax.structured.sparsemap`; the expected loss depends on it. By default the polytope's own.

    Niculae et al. 2018, Correia et al. 2020.
    """

    polytope: Polytope = field(default_factory=Bits)
    decomposition: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.polytope, Polytope) or self.polytope.event_dim != 1:
            raise ValueError(f"polytope must be one of bit-vectors, Bits() or Budget(k), got {self.polytope!r}")
        self.polytope.decomposition(self.decomposition)

    def distribution(self, scores: Tensor) -> BitDistribution:
        found = sparsemap(scores.to(computed_in(scores.dtype)), self.polytope, decomposition=self.decomposition)
        return ListedBits(scores, found.structures.to(scores.dtype), found.probs, found.converged)
