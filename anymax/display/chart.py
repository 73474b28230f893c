"""Chart: a plot to look into, as a specification of Vega-Lite and its numbers; drawn by the reader's browser."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

Value = float | int | str | None
# Parts of a second and more are for reading; a browser draws no finer than this anyway.
DIGITS = 6
# Pixels of plots that take half the width of a page.
LOW = 180
# Dashes in pixels, on and off, of as many lines as there are colours; they differ in a legend too.
DASHES = [[1, 0], [7, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2], [3, 5], [10, 2, 2, 2, 2, 2]]
# What is measured on an axis: numbers, or names in the order they first occur.
Kind = Literal["quantitative", "nominal", "ordinal"]


@dataclass(frozen=True)
class Chart:
    """A plot that a browser draws, to zoom and to read values from.

    Args:
        title: what it shows.
        columns: the numbers, column by column, all of one length.
        spec: a specification of Vega-Lite without data and sizes.
        source: the file that the numbers are from.
        note: what a reader needs to understand it.
        x_choices: headings and columns that may stand on the horizontal axis; the first is there at the beginning.
        height: in pixels.

    Example:
        >>> from anymax.display import Axis, Chart, lines
        >>> spec = lines(Axis("step", "step"), Axis("loss", "loss, nats"))
        >>> chart = Chart("Loss by step", {"step": [1, 2, 3], "loss": [3.0, 2.0, 1.5]}, spec)
        >>> len(chart), chart.html().startswith("<figure")
        (3, True)
    """

    title: str
    columns: Mapping[str, Sequence[Value]]
    spec: Mapping[str, Any]
    source: str = ""
    note: str = ""
    x_choices: tuple[tuple[str, str], ...] = ()
    height: int = 260

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns must be of one length, got {lengths}")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        columns = {name: list(column) for name, column in self.columns.items()}
        return {"kind": "chart", "title": self.title, "source": self.source, "columns": columns}

    def html(self) -> str:
        """An element that the script of a page draws, with a button for every column of `x_choices`."""
        given = {
            "title": self.title,
            "columns": {name: [_short(value) for value in column] for name, column in self.columns.items()},
            "spec": self.spec,
            "xChoices": self.x_choices,
            "height": self.height,
        }
        # Two low ones have room beside each other.
        return figure("chart low" if self.height <= LOW else "chart", self.title, given, self.source, self.note)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


@dataclass(frozen=True)
class Axis:
    """What stands on an axis or makes a colour.

    Args:
        column: whose values.
        title: with the unit.
        kind: "quantitative" for numbers, "nominal" or "ordinal" for names.
        is_log: in decades instead of equal steps.
        starts_at_zero: whether zero is on it though no value is near.
        format: of the numbers on the axis, as d3-format writes it, such as .1%.
        domain: the least and the greatest number on it; by default those of the values.
        order: of names; by default the order in which they occur.

    Example:
        >>> from anymax.display import Axis
        >>> Axis("loss", "loss, nats", is_log=True).encoding()
        {'field': 'loss', 'type': 'quantitative', 'title': 'loss, nats', 'scale': {'type': 'log'}}
    """

    column: str
    title: str
    kind: Kind = "quantitative"
    is_log: bool = False
    starts_at_zero: bool = False
    format: str | None = None
    domain: tuple[float, float] | None = None
    order: tuple[str, ...] = field(default=())

    def encoding(self) -> dict[str, Any]:
        """As Vega-Lite has it."""
        found: dict[str, Any] = {"field": self.column, "type": self.kind, "title": self.title or None}
        if self.kind == "quantitative":
            found["scale"] = {"type": "log"} if self.is_log else {"zero": self.starts_at_zero}
            if self.domain is not None:
                found["scale"]["domain"] = list(self.domain)
        else:
            found["sort"] = list(self.order) or None
        if self.format:
            found["axis"] = {"format": self.format}
        return found


def lines(x: Axis, y: Axis, colour: Axis | None = None, *, points: bool = False, band: bool = False) -> dict[str, Any]:
    """The specification of lines, for a `Chart`, that can be zoomed and dragged, with the values under the pointer.

    Args:
        x, y: the axes.
        colour: what there is a line of each.
        points: mark the points, as where there are few.
        band: draw the mean of what has one colour at one place, and shade from its least to its greatest.

    Example:
        >>> from anymax.display import Axis, lines
        >>> spec = lines(Axis("step", "step"), Axis("loss", "loss, nats"), Axis("run", "run", kind="nominal"))
        >>> spec["layer"][0]["mark"]["type"], spec["layer"][0]["encoding"]["x"]["field"]
        ('line', 'step')
    """
    # As lines, not as dots or areas.
    legend = {"legend": {"symbolType": "stroke", "symbolSize": 700, "symbolOpacity": 1}}
    by_colour = {} if colour is None else {"color": {**_coloured(colour), **legend}}
    value = y.encoding()
    mean = {**value, "aggregate": "mean"} if band else value
    shown = [{"field": axis.column, "type": axis.kind, "title": axis.title} for axis in (x, y)]
    tooltip = [*([] if colour is None else [{"field": colour.column, "type": colour.kind}]), *shown]
    line: dict[str, Any] = {
        "mark": {"type": "line", "strokeWidth": 1.8},
        "encoding": {"x": x.encoding(), "y": mean, **by_colour, **_dashed(colour)},
    }
    hover = {"name": "hover", "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}}
    # By the wheel alone a reader could not scroll past it.
    zoom = {"name": "zoom", "select": {"type": "interval", "zoom": "wheel![event.ctrlKey]"}, "bind": "scales"}
    seen, size = (
        {"condition": {"param": "hover", "empty": False, "value": at_pointer}, "value": elsewhere}
        for at_pointer, elsewhere in ((1, int(points)), (60, 28))
    )
    dots = {
        "mark": {"type": "point", "filled": True},
        "params": [hover, zoom],
        "encoding": {"x": x.encoding(), "y": value, **by_colour, "opacity": seen, "size": size, "tooltip": tooltip},
    }
    least, greatest = {**value, "aggregate": "min"}, {"field": y.column, "aggregate": "max"}
    shade = {
        "mark": {"type": "area", "opacity": 0.2},
        "encoding": {"x": x.encoding(), "y": least, "y2": greatest, **by_colour},
    }
    return {"layer": [*([shade] if band else []), line, dots]}


def bars(x: Axis, y: Axis, colour: Axis | None = None) -> dict[str, Any]:
    """The specification of bars, for a `Chart`; they stand side by side where they have colours.

    Args:
        x: what stands below the bars.
        y: how long they are.
        colour: what there are bars of side by side.

    Example:
        >>> from anymax.display import Axis, Chart, bars
        >>> spec = bars(Axis("mapping", "", kind="nominal"), Axis("bleu", "BLEU"))
        >>> len(Chart("BLEU by mapping", {"mapping": ["softmax", "entmax"], "bleu": [35.1, 35.4]}, spec))
        2
    """
    encoding: dict[str, Any] = {"x": x.encoding(), "y": y.encoding()}
    tooltip = [x, y]
    if colour is not None:
        encoding |= {"color": _coloured(colour), "xOffset": {"field": colour.column, "type": "nominal", "sort": None}}
        tooltip.append(colour)
    encoding["tooltip"] = [{"field": axis.column, "type": axis.kind, "title": axis.title} for axis in tooltip]
    return {"mark": {"type": "bar"}, "encoding": encoding}


def figure(kind: str, title: str, given: Mapping[str, Any], source: str, note: str = "") -> str:
    """The element of a part that a script draws: title, data as JSON, what they mean and where they are from."""
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    from_file = f'<p class="source">from {escape(source)}</p>' if source else ""
    return (
        f'<figure class="{kind}"><figcaption>{escape(title)}</figcaption><div class="drawn"></div>'
        f'<script type="application/json">{in_script(given)}</script>{below}{from_file}</figure>'
    )


def in_script(values: object) -> str:
    """JSON that may stand in an element of HTML: no text in it can end the element. NaN and infinity become null."""
    text = json.dumps(_finite(values), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # What is no character, as bytes of a file's name, cannot be encoded.
    return text.encode("utf-8", "replace").decode()


def can_be_drawn() -> bool:
    """Whether the package with Vega's scripts is installed."""
    return importlib.util.find_spec("vl_convert") is not None


@functools.cache
def vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from the package that has them."""
    if not can_be_drawn():
        raise ModuleNotFoundError(
            "a page with plots needs vl-convert; run: pip install 'anymax[report]'", name="vl_convert"
        )
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _coloured(colour: Axis) -> dict[str, Any]:
    return {
        "field": colour.column,
        "type": colour.kind,
        "sort": list(colour.order) or None,
        "title": colour.title or None,
        "scale": {"domain": list(colour.order)} if colour.order else {},
    }


def _dashed(colour: Axis | None) -> dict[str, Any]:
    """Lines of other colours have other dashes too, for eyes that do not tell the colours apart."""
    if colour is None:
        return {}
    coloured = _coloured(colour)
    # Of one domain, colours and dashes share a legend.
    return {"strokeDash": {**coloured, "scale": {**coloured["scale"], "range": DASHES}}}


def _short(value: Value) -> Value:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
