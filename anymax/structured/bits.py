"""All bit-vectors: every bit is free."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from anymax.structured.bit_polytope import BitPolytope, clip


@dataclass(frozen=True)
class Bits(BitPolytope):
    """All bit-vectors of scores (..., D): a bit that is on adds its score, and -inf keeps it off.

    Args:
        symmetric: true takes every bit as a choice between on, with its score, and off, with score 0, and squares
            both: SparseMAP's marginals are clip((score + 1) / 2, 0, 1), the sparse counterpart of a sigmoid. False
            squares the bits that are on alone: clip(score, 0, 1). For bit-vector latents the published code computes
            the first, the published text defines the second.
    """

    symmetric: bool = True
    decompositions: ClassVar[tuple[str, ...]] = ("chain", "systematic", "active set")

    def best(self, scores: Tensor) -> Tensor:
        return (scores > 0).to(scores.dtype)

    def log_total(self, scores: Tensor) -> Tensor:
        return functional.softplus(scores).sum(-1)

    def nearest(self, plain_scores: Tensor) -> Tensor:
        return clip(plain_scores)
