"""Heads with a role, and the sentences in which each is clearest.

Shapes: G heads of all layers, Q queries, K keys, N queries that count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
        scores = self.role.scores(example)
        if scores is None or not len(scores.queries_N):
            return
        counted = dict(zip(scores.queries_N.tolist(), scores.scores_GN[self.place].tolist(), strict=True))
        begins = range(max(1, len(example.queries) - SHOWN + 1))
        clear, begin = max(((_clearness(counted, begin), begin) for begin in begins), key=lambda found: found[0])
        # Where it has no weight at all there is nothing to see.
        if clear > 0 and (len(self._kept) < self.most or clear > self._kept[-1][0]):
            drawn = _draw(example, self.place, counted, begin)
            # Sentences that repeat, as headings do, are drawn once.
            if all(drawn.queries != other.queries for _, other in self._kept):
                self._kept = sorted([*self._kept, (clear, drawn)], key=lambda kept: -kept[0])[: self.most]

    def drawn(self) -> tuple[Drawn, ...]:
        return tuple(drawn for _, drawn in self._kept)


def _clearness(counted: dict[int, float], begin: int) -> float:
    inside = [score for query, score in counted.items() if begin <= query < begin + SHOWN]
    return sum(inside) / (len(inside) + 1)


def _draw(example: Example, place: int, counted: dict[int, float], begin: int) -> Drawn:
    queries = slice(begin, min(begin + SHOWN, len(example.queries)))
    rows_QK = example.weights[place, queries]
    inside = [query for query in counted if queries.start <= query < queries.stop]
    keys = _keys_of(example, example.weights[place, inside].sum(0).tolist(), queries)
    total = float(rows_QK.sum())
    return Drawn(
        sum(counted[query] for query in inside) / len(inside),
        example.queries.units[queries],
        example.keys.units[keys],
        rows_QK[:, keys].clone(),
        1 - float(rows_QK[:, keys].sum()) / total if total else 0.0,
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
