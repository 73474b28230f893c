"""AttentionView: a map of heads, and where the one that is chosen looks in examples; drawn by the reader's browser."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anymax.display.chart import figure


@dataclass(frozen=True)
class Attended:
    """Where all heads of a kind look in an example.

    Args:
        queries, keys: the units on the axes.
        weights: a byte for each head, query and key, in this order: 0 is exactly zero, 1 to 255 are the square root of
            the weight in equal steps.
        note: what is not shown, as the rest of a long text.

    Example:
        >>> from anymax.display import Attended
        >>> weights = bytes([255, 0, 128, 221])  # 1, 0, 1/4 and 3/4
        >>> Attended(queries=("a", "b"), keys=("a", "b"), weights=weights).keys
        ('a', 'b')
    """

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: bytes = field(repr=False)
    note: str = ""


@dataclass(frozen=True)
class HeadRow:
    """A head of the map.

    Args:
        kind: of its attention.
        layer, number: where it stands, each from 0.
        values: of the measures, by name; None where there is none.
        path: its alpha at the steps of the view.
        order: numbers of examples, those where it is clearest first.
        role: that it has; "" where it has none.

    Example:
        >>> from anymax.display import HeadRow
        >>> HeadRow("encoder", layer=0, number=3, values={"alpha": 1.3, "density": 0.4}).values["alpha"]
        1.3
    """

    kind: str
    layer: int
    number: int
    values: Mapping[str, float | None]
    path: tuple[float, ...] = ()
    order: tuple[int, ...] = ()
    role: str = ""


@dataclass(frozen=True)
class AttentionView:
    """Heads by kind and layer, coloured by a measure, and each on examples.

    Args:
        title: above the map.
        kinds: of attention, with what they are called.
        measures: names of `values` with what they mean; the first colours the map at the beginning.
        ranges: of measures that have one of their own, as 0 to 1 of shares; the others go from least to greatest.
        heads: the rows of the map.
        steps: of the paths.
        examples: each by kind.
        source: the file that the numbers are from.
        note: what a reader needs to understand it.

    Example:
        >>> from anymax.display import Attended, AttentionView, HeadRow
        >>> head = HeadRow("layer", layer=0, number=0, values={"density": 0.5})
        >>> shown = Attended(("a", "b"), ("a", "b"), bytes([255, 0, 0, 255]))
        >>> kinds, measures = {"layer": "self-attention"}, {"density": "share of weights above zero"}
        >>> view = AttentionView("Heads", kinds, measures, {"density": (0.0, 1.0)}, (head,), (), ({"layer": shown},))
        >>> view.as_dict()["heads"]
        [{'kind': 'layer', 'layer': 0, 'number': 0, 'values': {'density': 0.5}}]
    """

    title: str
    kinds: Mapping[str, str]
    measures: Mapping[str, str]
    ranges: Mapping[str, tuple[float, float]]
    heads: tuple[HeadRow, ...]
    steps: tuple[int, ...]
    examples: tuple[Mapping[str, Attended], ...]
    source: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the weights in examples."""
        heads = [
            {"kind": head.kind, "layer": head.layer, "number": head.number, "values": dict(head.values)}
            for head in self.heads
        ]
        return {"kind": "attention", "title": self.title, "measures": dict(self.measures), "heads": heads}

    def html(self) -> str:
        """An element that the script of a page draws."""
        given = {
            "kinds": self.kinds,
            "measures": self.measures,
            "ranges": self.ranges,
            "steps": self.steps,
            "heads": [_head(head) for head in self.heads],
            "examples": [{kind: _attended(one) for kind, one in example.items()} for example in self.examples],
        }
        return figure("attention", self.title, given, self.source, self.note)


def _head(head: HeadRow) -> dict[str, Any]:
    values = {name: None if value is None else float(f"{value:.5g}") for name, value in head.values.items()}
    path: Sequence[float] = [float(f"{alpha:.4g}") for alpha in head.path]
    names = {"kind": head.kind, "layer": head.layer, "number": head.number, "role": head.role}
    return {**names, "values": values, "path": path, "order": head.order}


def _attended(attended: Attended) -> dict[str, Any]:
    weights = base64.b64encode(attended.weights).decode()
    return {"queries": attended.queries, "keys": attended.keys, "weights": weights, "note": attended.note}
