"""How scores of bits become a distribution over bit-vectors, as plain data that imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from anymax.latent.bit_mappings import BitMapping


@dataclass(frozen=True)
class IndependentBits:
    """Every bit by itself."""

    def build(self) -> BitMapping:
        """The mapping."""
        from anymax.latent import Independent

        return Independent()


@dataclass(frozen=True)
class TopKBits:
    """Sparsemax over the k best bit-vectors."""

    k: int

    def build(self) -> BitMapping:
        """The mapping."""
        from anymax.latent import TopKSparsemax

        return TopKSparsemax(self.k)


@dataclass(frozen=True)
class SparseMapBits:
    """The few bit-vectors whose mean are the sparse marginals of the bits.

    Args:
        budget: the most bits that may be on; None leaves all.
        decomposition: how marginals become a mean of bit-vectors; None takes what fits: chain, or systematic with a
            budget.
    """

    budget: int | None = None
    _: KW_ONLY
    decomposition: Literal["chain", "systematic", "active set"] | None = None

    def build(self) -> BitMapping:
        """The mapping."""
        from anymax.latent import SparseMap
        from anymax.structured import Bits, Budget

        return SparseMap(Bits() if self.budget is None else Budget(self.budget), self.decomposition)


BitMappingConfig = IndependentBits | TopKBits | SparseMapBits
