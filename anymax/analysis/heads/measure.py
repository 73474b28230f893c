"""What heads do, added up over examples: how many keys they keep, how much they differ, and what role each plays.

Shapes: G heads of all layers of a kind of attention, H heads of one layer, L layers, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.special import entr

from anymax.analysis.heads.alphas import Head
from anymax.analysis.heads.diversity import diversity
from anymax.analysis.heads.roles import Role, roles_seen
from anymax.attention.capture import Kind
from anymax.training.observed import Example, Observed


@dataclass(frozen=True)
class HeadMeasures:
    """What a head does.

    Args:
        density: the share of weights above zero among the keys that queries may attend to.
        entropy: of its weights at a query, as a share of that of equal weights: the mean over queries that may attend
            to several keys and where it has weight; None where there are none.
        nowhere: the share of queries at which it has no weight above zero.
        confidence: its mean score in each role that can be seen, by the role's name.
    """

    head: Head
    density: float
    entropy: float | None
    nowhere: float
    confidence: dict[str, float]


@dataclass(frozen=True)
class LayerMeasures:
    """What the heads of a layer do together.

    Args:
        density: the mean of its heads.
        union: the share of keys on which any head has weight.
        diversity_by_heads: the Jensen-Shannon divergence of the heads by the logarithm of their number, the mean over
            queries; None where no query has two heads that look anywhere.
        diversity_by_keys: the same by the logarithm of the number of keys that the query may attend to.
    """

    kind: Kind
    layer: int
    num_heads: int
    density: float
    union: float
    diversity_by_heads: float | None
    diversity_by_keys: float | None


@dataclass(frozen=True)
class Measured:
    """What the heads of a model do in the examples that were looked at.

    Args:
        num_examples: how many there were.
        num_queries: of each kind of attention, how many queries they have together.
        counts: of each kind, how often each role that it has could be seen, by the role's name.
    """

    num_examples: int
    num_queries: dict[Kind, int]
    counts: dict[Kind, dict[str, int]]
    layers: tuple[LayerMeasures, ...]
    heads: tuple[HeadMeasures, ...]

    @property
    def kinds(self) -> list[Kind]:
        return list(self.num_queries)

    def of_kind(self, kind: Kind) -> list[HeadMeasures]:
        return [each for each in self.heads if each.head.kind == kind]

    def best(self, kind: Kind, role: str) -> HeadMeasures | None:
        """The head that is most confident in a role; None where the role could not be seen."""
        heads = [each for each in self.of_kind(kind) if role in each.confidence]
        return max(heads, key=lambda each: each.confidence[role], default=None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "num_examples": self.num_examples,
            "num_queries": self.num_queries,
            "counts": self.counts,
            "layers": [asdict(layer) for layer in self.layers],
            "heads": [
                {
                    **each.head._asdict(),
                    "density": each.density,
                    "entropy": each.entropy,
                    "nowhere": each.nowhere,
                    "confidence": each.confidence,
                }
                for each in self.heads
            ],
        }


def measure(observed: Iterable[Observed], roles: Sequence[Role]) -> Measured:
    """Add up what heads do over batches of examples, of which one at a time is held.

    Densities are of all examples together, as in Correia et al. 2019: the number of weights above zero over the number
    of cells there are, which is queries x keys, and in a decoder t (t + 1) / 2 for t positions.
    """
    of_kinds: dict[Kind, _Sums] = {}
    num_examples = 0
    for batch in observed:
        for kind, num_heads in batch.num_heads().items():
            of_kinds.setdefault(kind, _Sums(kind, num_heads))
        for example in batch.examples():
            of_kinds[example.kind].add(example, roles)
        num_examples += len(next(iter(batch.queries.values()), ()))
    if not num_examples:
        raise ValueError("observed must have at least one example to be measured, got none")
    return Measured(
        num_examples,
        {kind: sums.num_queries for kind, sums in of_kinds.items()},
        {kind: sums.counts for kind, sums in of_kinds.items()},
        tuple(layer for sums in of_kinds.values() for layer in sums.layers()),
        tuple(head for sums in of_kinds.values() for head in sums.heads()),
    )


class _Sums:
    """Sums over the examples of one kind of attention; numbers are float64."""

    def __init__(self, kind: Kind, num_heads: list[int]) -> None:
        self.kind = kind
        self.num_heads = num_heads
        self.num_queries = 0
        self.counts: dict[str, int] = {}
        self._num_cells = 0
        self._above_G = torch.zeros(sum(num_heads), dtype=torch.long)
        self._nowhere_G = torch.zeros(sum(num_heads), dtype=torch.long)
        # The sums of shares of entropy, and over how many queries.
        self._entropy_2G = torch.zeros(2, sum(num_heads), dtype=torch.float64)
        self._union_L = torch.zeros(len(num_heads), dtype=torch.long)
        # Of diversity by heads and by keys, and of the queries where there is any.
        self._diversity_L3 = torch.zeros(len(num_heads), 3, dtype=torch.float64)
        self._roles: dict[str, Tensor] = {}

    def add(self, example: Example, roles: Sequence[Role]) -> None:
        if not bool(example.weights.isfinite().all()):
            raise ValueError("weights must be finite numbers, got others; look for the step at which the model broke")
        above_GQK = (example.weights > 0) & example.allowed
        self.num_queries += len(example.queries)
        self._num_cells += int(example.allowed.sum())
        self._above_G += above_GQK.sum((1, 2))
        self._nowhere_G += (~above_GQK.any(-1)).sum(-1)
        self._entropy_2G += _entropies(example)
        of_layers = zip(example.weights.split(self.num_heads), above_GQK.split(self.num_heads), strict=True)
        for number, (weights_HQK, above_HQK) in enumerate(of_layers):
            self._union_L[number] += above_HQK.any(0).sum()
            by_heads_N, by_keys_N = diversity(weights_HQK, example.allowed)
            sums = torch.stack([by_heads_N.sum(), by_keys_N.sum(), torch.ones_like(by_heads_N).sum()])
            self._diversity_L3[number] += sums
        for role, (queries_N, scores_GN) in roles_seen(roles, example):
            self.counts[role.name] = self.counts.get(role.name, 0) + len(queries_N)
            sums_G = scores_GN.sum(-1, dtype=torch.float64)
            self._roles[role.name] = self._roles.get(role.name, torch.zeros_like(sums_G)) + sums_G

    def layers(self) -> list[LayerMeasures]:
        densities = [float(part.mean()) for part in self._densities_G().split(self.num_heads)]
        unions = (self._union_L.double() / self._num_cells).tolist()
        found = []
        for number, (by_heads, by_keys, count) in enumerate(self._diversity_L3.tolist()):
            shares = (by_heads / count, by_keys / count) if count else (None, None)
            num_heads = self.num_heads[number]
            found.append(LayerMeasures(self.kind, number, num_heads, densities[number], unions[number], *shares))
        return found

    def heads(self) -> list[HeadMeasures]:
        numbers = [(layer, head) for layer, num_heads in enumerate(self.num_heads) for head in range(num_heads)]
        densities, nowhere = self._densities_G().tolist(), (self._nowhere_G.double() / self.num_queries).tolist()
        entropies = [total / count if count else None for total, count in self._entropy_2G.T.tolist()]
        confidences = {name: (sums_G / self.counts[name]).tolist() for name, sums_G in self._roles.items()}
        return [
            HeadMeasures(
                Head(self.kind, layer, head),
                densities[place],
                entropies[place],
                nowhere[place],
                {name: of_heads[place] for name, of_heads in confidences.items()},
            )
            for place, (layer, head) in enumerate(numbers)
        ]

    def _densities_G(self) -> Tensor:
        return self._above_G.double() / self._num_cells


def _entropies(example: Example) -> Tensor:
    """Of each head the sum over queries of its entropy as a share of its bound, and over how many; two rows."""
    weights_GQK = (example.weights * example.allowed).double()
    total_GQ, num_keys_Q = weights_GQK.sum(-1), example.allowed.sum(-1)
    counts_GQ = (total_GQ > 0) & (num_keys_Q > 1)
    # Weights that do not sum to one, as with a sink, are scaled.
    of_weights_GQ = entr(weights_GQK / total_GQ.where(total_GQ > 0, 1)[..., None]).sum(-1)
    shares_GQ = of_weights_GQ / num_keys_Q.clamp(min=2).log()
    return torch.stack([(shares_GQ * counts_GQ).sum(-1), counts_GQ.sum(-1).double()])
