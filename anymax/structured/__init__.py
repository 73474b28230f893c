"""Structured choices: SparseMAP over bit-vectors, budgets, sequences and matchings, and the best of them."""

from anymax.structured.bits import Bits
from anymax.structured.budget import Budget
from anymax.structured.matching import Matching
from anymax.structured.polytope import Polytope
from anymax.structured.sequence import Sequence, transition_marginals
from anymax.structured.sparsemap import SparseStructures, sparsemap
from anymax.structured.topk_bits import TopBits, topk_bits

__all__ = [
    "Bits",
    "Budget",
    "Matching",
    "Polytope",
    "Sequence",
    "SparseStructures",
    "TopBits",
    "sparsemap",
    "topk_bits",
    "transition_marginals",
]
