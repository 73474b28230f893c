"""The latents that tests run through, each with its distribution found by other means, for one row of scores."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

import anymax
from anymax.latent import BitVector, Choice, Latent, SparseMap, TopKSparsemax
from anymax.structured import Bits, Budget, sparsemap

Listed = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Member:
    """A latent as a function of scores, and the list (values, size), (values,) of all its values with probabilities."""

    latent: Callable[[Tensor], Latent]
    listed: Callable[[Tensor], Listed]
    can_relax: bool = False
    is_sparse: bool = True

    @property
    def is_choice(self) -> bool:
        return isinstance(self.latent(torch.zeros(3)), Choice)


def choice(mapping: Callable[[Tensor], Tensor], **options: bool) -> Member:
    return Member(
        lambda scores: Choice(scores, mapping),
        lambda scores: (torch.eye(len(scores), dtype=scores.dtype), mapping(scores)),
        **options,
    )


def all_bits(size: int) -> Tensor:
    return torch.tensor(list(product([0.0, 1.0], repeat=size)), dtype=torch.float64)


def independent(scores: Tensor) -> Listed:
    values = all_bits(len(scores)).to(scores.dtype)
    on = scores.sigmoid()
    return values, (values * on + (1 - values) * (1 - on)).prod(-1)


def topk_sparsemax(scores: Tensor, k: int) -> Listed:
    values = all_bits(len(scores)).to(scores.dtype)
    return values, anymax.topk_sparsemax(values @ scores, k)


def structures(scores: Tensor, mapping: SparseMap) -> Listed:
    """The structures of SparseMAP, whose tests have their own oracles, put in their places among all bit-vectors."""
    found = sparsemap(scores, mapping.polytope, decomposition=mapping.decomposition)
    values = all_bits(len(scores)).to(scores.dtype)
    is_same = (values.unsqueeze(1) == found.structures).all(-1)
    return values, (is_same * found.probs).sum(-1)


def sparse_map(mapping: SparseMap) -> Member:
    return Member(lambda scores: BitVector(scores, mapping), lambda scores: structures(scores, mapping))


MEMBERS = {
    "softmax": choice(anymax.softmax, can_relax=True, is_sparse=False),
    "sparsemax": choice(anymax.sparsemax),
    "entmax": choice(anymax.Entmax(1.5)),
    "topk": choice(partial(anymax.topk_sparsemax, k=2)),
    "bits": Member(BitVector, independent, can_relax=True, is_sparse=False),
    "topk-bits": Member(lambda scores: BitVector(scores, TopKSparsemax(3)), lambda scores: topk_sparsemax(scores, 3)),
    "sparsemap": sparse_map(SparseMap()),
    "sparsemap-plain": sparse_map(SparseMap(Bits(symmetric=False))),
    "budget": sparse_map(SparseMap(Budget(2))),
    "active-set": sparse_map(SparseMap(Budget(2), "active set")),
}
