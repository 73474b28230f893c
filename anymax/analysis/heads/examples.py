"""Heads with a role, and the sentences in which each is clearest.

Shapes: G heads of all layers, Q queries, K keys, N queries that count, P parts of a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from anymax.analysis.heads.alphas import Head
from anymax.analysis.heads.measure import Measured
from anymax.analysis.heads.roles import Role
from anymax.training.observed import Example, Observed

# Units of a sentence that are drawn at most; of a longer one, those where the head is clearest.
SHOWN = 22


@dataclass(frozen=True, eq=False)
class Drawn:
    """A sentence, or a part of it, and where a head looks in it.

    Args:
        score: the mean of the head's scores in what is drawn.
        queries, keys: the units.
        weights: (queries, keys).
        outside: the share of the weight of these queries that is on keys not drawn.
    """

    score: float
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Tensor = field(repr=False)
    outside: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        weights = [[round(weight, 6) for weight in row] for row in self.weights.tolist()]
        texts = {"queries": list(self.queries), "keys": list(self.keys)}
        return {"score": self.score, **texts, "outside": self.outside, "weights": weights}


@dataclass(frozen=True, eq=False)
class Named:
    """The head that plays a role best among those of a kind of attention.

    Args:
        confidence: the mean of its scores.
        count: over how many queries, or of subwords over how many words.
        alpha: what it learned; None where it learns none.
        examples: where it is clearest, first the clearest.
    """

    role: Role
    head: Head
    confidence: float
    count: int
    density: float
    alpha: float | None
    examples: tuple[Drawn, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = {"role": self.role.name, "meaning": self.role.meaning, **self.head._asdict()}
        found |= {"confidence": self.confidence, "count": self.count, "density": self.density, "alpha": self.alpha}
        return {**found, "examples": [example.as_dict() for example in self.examples]}


def name_heads(
    measured: Measured, roles: Sequence[Role], alphas: dict[Head, float], observed: Iterable[Observed], *, most: int
) -> list[Named]:
    """The best head of every role and kind of attention, with the sentences it is clearest in.

    Args:
        alphas: those that heads learned.
        observed: the examples that were measured, once more.
        most: sentences for each head.
    """
    found = [(kind, role, measured.best(kind, role.name)) for kind in measured.kinds for role in roles]
    clearest = {
        (kind, role.name): _Clearest(role, _place(measured, best.head), most)
        for kind, role, best in found
        if best is not None
    }
    for batch in observed if most else ():
        for example in batch.examples():
            for (kind, _), one in clearest.items():
                if kind == example.kind:
                    one.add(example)
    return [
        Named(
            role,
            best.head,
            best.confidence[role.name],
            measured.counts[kind][role.name],
            best.density,
            alphas.get(best.head),
            one.drawn() if (one := clearest[kind, role.name]) else (),
        )
        for kind, role, best in found
        if best is not None
    ]


class _Clearest:
    """Keeps the sentences that a head is clearest in.

    By the sum of its scores over one more than their number, so that of two sentences in which it always plays its role
    the one that has more of it comes first.
    """

    def __init__(self, role: Role, place: int, most: int) -> None:
        self.role = role
        self.place = place
        self.most = most
        self._kept: list[tuple[float, Drawn]] = []

    def add(self, example: Example) -> None:
        alone = replace(example, weights=example.weights[self.place : self.place + 1])
        scores = self.role.scores(alone)
        if scores is None or not len(scores.queries_N):
            return
        clear, begin = _clearest_part(scores.queries_N, scores.scores_GN[0], len(example.queries))
        # Where it has no weight at all there is nothing to see.
        if clear > 0 and (len(self._kept) < self.most or clear > self._kept[-1][0]):
            counted = dict(zip(scores.queries_N.tolist(), scores.scores_GN[0].tolist(), strict=True))
            drawn = _draw(alone, counted, begin)
            # Sentences that repeat, as headings do, are drawn once.
            if all(drawn.queries != other.queries for _, other in self._kept):
                self._kept = sorted([*self._kept, (clear, drawn)], key=lambda kept: -kept[0])[: self.most]

    def drawn(self) -> tuple[Drawn, ...]:
        return tuple(drawn for _, drawn in self._kept)


def _clearest_part(queries_N: Tensor, scores_N: Tensor, length: int) -> tuple[float, int]:
    """How clear a head is in the part of a sentence where it is clearest, and where that begins."""
    scores_2Q = torch.zeros(2, length, dtype=torch.float64)
    scores_2Q[0, queries_N], scores_2Q[1, queries_N] = scores_N.double(), 1.0
    sum_P, count_P = scores_2Q.unfold(1, min(SHOWN, length), 1).sum(-1)
    clear_P = sum_P / (count_P + 1)
    begin = int(clear_P.argmax())
    return float(clear_P[begin]), begin


def _draw(alone: Example, counted: dict[int, float], begin: int) -> Drawn:
    """A part of an example of one head, from a query on."""
    queries = slice(begin, min(begin + SHOWN, len(alone.queries)))
    weights_QK = alone.weights[0]
    inside = [query for query in counted if queries.start <= query < queries.stop]
    keys = _keys_of(alone, weights_QK[inside].sum(0).tolist(), queries)
    total, drawn_QK = float(weights_QK[queries].sum()), weights_QK[queries, keys].clone()
    return Drawn(
        sum(counted[query] for query in inside) / len(inside),
        alone.queries.units[queries],
        alone.keys.units[keys],
        drawn_QK,
        1 - float(drawn_QK.sum()) / total if total else 0.0,
    )


def _keys_of(example: Example, weights: list[float], queries: slice) -> slice:
    """The keys to draw: the positions of the queries, or where most of the weights are if that is elsewhere."""
    if example.kind != "cross" and sum(weights[queries]) >= 0.5 * sum(weights):
        return queries
    begins = range(max(1, len(weights) - SHOWN + 1))
    begin = max(begins, key=lambda begin: sum(weights[begin : begin + SHOWN]))
    return slice(begin, min(begin + SHOWN, len(weights)))


def _place(measured: Measured, head: Head) -> int:
    """Where a head stands among all of its kind."""
    return [each.head for each in measured.of_kind(head.kind)].index(head)
