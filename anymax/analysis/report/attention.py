"""Where the heads of a run look: a map of what each does, its alpha over training, and examples to open it on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anymax.analysis.heads.alphas import Head
from anymax.analysis.heads.page import KINDS
from anymax.analysis.heads.page import page as tables_of
from anymax.analysis.heads.roles import Role
from anymax.analysis.heads.study import Heads
from anymax.attention.capture import Kind
from anymax.display import Attended, AttentionView, Axis, Chart, HeadRow, Paragraph, Part, Table, lines
from anymax.display.printable import printable
from anymax.training.observed import Example, Observed
from anymax.training.run_folder.metrics import METRICS

# Units of an example on each axis, bytes of all examples together, and examples at most.
MOST_UNITS, MOST_BYTES, MOST_EXAMPLES = 36, 1_400_000, 24
# Points of a path at most.
MOST_STEPS = 60
# The confidence from which a head is said to have a role.
CONFIDENT = 0.5


@dataclass(frozen=True, eq=False)
class Opened:
    """An example with all its kinds of attention, cut to what is shown."""

    of_kinds: dict[Kind, Example]
    is_cut: bool


def attention(heads: Heads, observed: Iterator[Observed], source: str) -> list[Part]:
    """The map, the paths of alphas, and the tables of `anymax analyze heads`, which are of the same numbers.

    Args:
        observed: the examples that were measured, once more.
        source: what they are from.
    """
    chosen = choose(list(_opened(observed)), heads)
    parts: list[Part] = [Paragraph("Click a head, or move by the arrow keys, to see where it looks.", is_dim=True)]
    parts.append(view(heads, chosen, source))
    if heads.alphas is not None and len(heads.alphas.steps) > 1:
        parts.append(paths(heads))
    tables = [part for part in tables_of(heads, "").parts if isinstance(part, Table)]
    return [*parts, *(replace(table, source=source) for table in tables)]


def choose(examples: Sequence[Opened], heads: Heads) -> list[Opened]:
    """As many examples as a page has room for: those where heads with a role are clearest, then drawn by the seed."""
    if not examples:
        return []
    size = max(sum(example.weights.numel() for example in one.of_kinds.values()) for one in examples)
    number = max(1, min(MOST_EXAMPLES, MOST_BYTES // max(1, size)))
    places = list(range(len(examples)))
    random.Random(heads.seed).shuffle(places)
    first = dict.fromkeys(place for place in _clearest(examples, heads) if place is not None)
    return [examples[place] for place in [*first, *(place for place in places if place not in first)][:number]]


def _clearest(examples: Sequence[Opened], heads: Heads) -> Iterator[int | None]:
    """For each role the number of the example where its head is clearest."""
    for named in heads.named:
        kind = named.head.kind
        place = [each.head for each in heads.measured.of_kind(kind)].index(named.head)
        scores = [_at(_scores(named.role, one.of_kinds.get(kind)), place) for one in examples]
        yield max(range(len(examples)), key=scores.__getitem__) if max(scores) > 0 else None


def view(heads: Heads, examples: Sequence[Opened], source: str) -> AttentionView:
    """The map with the examples."""
    measured = heads.measured
    orders = {kind: _orders(kind, heads.roles, heads, examples) for kind in measured.kinds}
    rows = []
    for each in measured.heads:
        place = [other.head for other in measured.of_kind(each.head.kind)].index(each.head)
        role, confidence = max(each.confidence.items(), key=lambda item: item[1], default=("", 0.0))
        rows.append(
            HeadRow(
                each.head.kind,
                each.head.layer,
                each.head.number,
                _values(heads, each.head),
                _path(heads, each.head),
                orders[each.head.kind][place],
                printable(role) if confidence >= CONFIDENT else "",
            )
        )
    measures = dict(_measures(heads))
    shares = {name: (0.0, 1.0) for name in measures if name not in ("alpha", "diversity")}
    ranges = shares | ({} if heads.alphas is None else {"alpha": (heads.alphas.low, heads.alphas.high)})
    note = f"{measured.num_examples:,} examples were measured, and {len(examples)} of them can be opened."
    return AttentionView(
        "Heads by layer",
        {kind: KINDS[kind] for kind in measured.kinds},
        measures,
        ranges,
        tuple(rows),
        tuple(_thin([] if heads.alphas is None else heads.alphas.steps)),
        tuple({kind: _attended(one, kind) for kind in one.of_kinds} for one in examples),
        source,
        note,
    )


def paths(heads: Heads) -> Chart:
    """The alphas of all heads over training, by kind of attention."""
    assert heads.alphas is not None
    columns: dict[str, list[Any]] = {"step": [], "alpha": [], "layer": [], "head": [], "kind": []}
    steps = _thin(heads.alphas.steps)
    for head, path in heads.alphas.path.items():
        columns["step"] += steps
        columns["alpha"] += _thin(path)
        columns["layer"] += [str(head.layer)] * len(steps)
        columns["head"] += [str(head)] * len(steps)
        columns["kind"] += [KINDS[head.kind]] * len(steps)
    layers = tuple(dict.fromkeys(columns["layer"]))
    domain = (heads.alphas.low, heads.alphas.high)
    colour = Axis("layer", "layer", kind="nominal", order=layers)
    spec = lines(Axis("step", "step"), Axis("alpha", "alpha", domain=domain), colour)
    for layer in spec["layer"]:
        layer["encoding"]["detail"] = {"field": "head"}
    spec["layer"][-1]["encoding"]["tooltip"] = [{"field": "head"}, {"field": "kind"}, {"field": "alpha"}]
    kinds = list(dict.fromkeys(columns["kind"]))
    faceted = {"facet": {"field": "kind", "title": None, "sort": kinds}, "columns": len(kinds), "spec": spec}
    return Chart("Alphas over training", columns, faceted, METRICS)


def _measures(heads: Heads) -> Iterator[tuple[str, str]]:
    if heads.alphas is not None:
        yield "alpha", "what the head learned; 1 is softmax, 2 sparsemax"
    yield "entropy", "of the weights of a query, as a share of that of equal weights; 0 where one key has all"
    yield "density", "weights above zero, of all that queries may attend to"
    yield "diversity", "Jensen-Shannon divergence of all heads of the layer, as a share of its bound"
    seen = {name for of_kind in heads.measured.counts.values() for name in of_kind}
    for role in heads.roles:
        if role.name in seen:
            yield printable(role.name), printable(role.meaning)


def _values(heads: Heads, head: Head) -> dict[str, float | None]:
    each = next(each for each in heads.measured.heads if each.head == head)
    layer = next(layer for layer in heads.measured.layers if (layer.kind, layer.layer) == (head.kind, head.layer))
    alpha = {} if heads.alphas is None else {"alpha": heads.alphas.now.get(head)}
    confidences = {printable(name): value for name, value in each.confidence.items()}
    own = {"density": each.density, "entropy": each.entropy, "diversity": layer.diversity_by_heads}
    return {**alpha, **own, **confidences}


def _path(heads: Heads, head: Head) -> tuple[float, ...]:
    return () if heads.alphas is None else tuple(_thin(heads.alphas.path.get(head, [])))


def _thin(values: Sequence[Any]) -> list[Any]:
    """Some of many values, the last among them."""
    size = -(-len(values) // MOST_STEPS) or 1
    return list(values[(len(values) - 1) % size :: size]) if values else []


def _opened(observed: Iterator[Observed]) -> Iterator[Opened]:
    """Examples with all their kinds together, cut where they are long."""
    for batch in observed:
        of_kinds: dict[Kind, Example] = {}
        for example in batch.examples():
            if example.kind in of_kinds:
                yield _cut(of_kinds)
                of_kinds = {}
            of_kinds[example.kind] = example
        if of_kinds:
            yield _cut(of_kinds)


def _cut(of_kinds: dict[Kind, Example]) -> Opened:
    is_cut = any(max(one.weights.shape[1:]) > MOST_UNITS for one in of_kinds.values())
    return Opened({kind: _front(example) for kind, example in of_kinds.items()}, is_cut)


def _front(example: Example) -> Example:
    queries, keys = example.queries, example.keys
    return Example(
        example.kind,
        example.weights[:, :MOST_UNITS, :MOST_UNITS].float().clone(),
        type(queries)(queries.units[:MOST_UNITS], queries.words[:MOST_UNITS]),
        type(keys)(keys.units[:MOST_UNITS], keys.words[:MOST_UNITS]),
    )


def _attended(one: Opened, kind: Kind) -> Attended:
    example = one.of_kinds[kind]
    note = f"The first {MOST_UNITS} units are shown." if one.is_cut else ""
    queries, keys = (tuple(map(printable, side.units)) for side in (example.queries, example.keys))
    return Attended(queries, keys, as_bytes(example.weights), note)


def as_bytes(weights: Tensor) -> bytes:
    """Weights as bytes: 0 is exactly zero, and what is above is at least 1."""
    roots = (weights.clamp(0, 1).sqrt() * 255).round()
    return bytes(torch.where(weights > 0, roots.clamp(min=1), 0).to(torch.uint8).flatten().tolist())


def _orders(kind: Kind, roles: Sequence[Role], heads: Heads, examples: Sequence[Opened]) -> list[tuple[int, ...]]:
    """Of each head of a kind the numbers of examples, by its score in the role it has most of."""
    all_heads = heads.measured.of_kind(kind)
    scores = {role.name: [_scores(role, one.of_kinds.get(kind)) for one in examples] for role in roles}
    found = []
    for place, each in enumerate(all_heads):
        numbers = [number for number, one in enumerate(examples) if kind in one.of_kinds]
        if each.confidence:
            role = max(each.confidence, key=lambda name: each.confidence[name])
            of_role = scores[role]
            numbers.sort(key=lambda number: -(_at(of_role[number], place)))
        found.append(tuple(numbers))
    return found


def _scores(role: Role, example: Example | None) -> Tensor | None:
    """The mean score of all heads in an example; None where the role cannot be seen in it."""
    found = None if example is None else role.scores(example)
    return None if found is None or not len(found.queries_N) else found.scores_GN.double().mean(-1)


def _at(scores: Tensor | None, place: int) -> float:
    return -1.0 if scores is None else float(scores[place])
