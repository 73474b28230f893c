"""How runs learned: loss and metrics, learning rate, gradients and what their tasks log, by steps, items and time."""

from __future__ import annotations

import bisect
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from anymax.analysis.report.runs import Run
from anymax.display import LOW, Axis, Chart, Paragraph, Part, lines
from anymax.display.printable import printable
from anymax.evaluation.translation import NAMES
from anymax.training.run_folder.metrics import METRICS

# Points of a line at most; of more records, the mean of as many as it takes is one point.
MOST_POINTS = 300
# Evaluations are marked where there are no more.
FEW = 40
# Values whose greatest is this many times the least are shown in decades.
DECADES = 30.0
# Metrics that count what was measured.
_COUNT = "num_"


@dataclass(frozen=True)
class Curve:
    """A value of a run over training.

    Args:
        steps, items, hours: where each point stands.
        values: one for each of them.
    """

    run: Run
    steps: tuple[int, ...]
    items: tuple[float, ...]
    hours: tuple[float, ...]
    values: tuple[float, ...]


def learning(runs: Sequence[Run], without: Collection[str] = ()) -> list[Part]:
    """Charts of everything that runs recorded, all runs in one; a sentence where they recorded nothing.

    Args:
        without: names of records that are shown elsewhere.
    """
    charts = [chart for chart in _charts(runs, without) if len(chart)]
    if not charts:
        return [Paragraph("No steps are recorded yet.")]
    hint = "Drag to move, Ctrl and the wheel to zoom, double click for the whole."
    if any(len(run.trained) > MOST_POINTS for run in runs):
        hint += " A point of training is the mean of several records."
    still = {chart.title: chart.columns["value"][0] for chart in charts if _is_constant(chart)}
    constant = [Paragraph(f"Constant: {', '.join(f'{title.lower()} {value:g}' for title, value in still.items())}.")]
    moving = [chart for chart in charts if chart.title not in still]
    return [Paragraph(hint, is_dim=True), *moving, *(constant if still else [])]


def _is_constant(chart: Chart) -> bool:
    return len(chart) > 1 and len(set(chart.columns["value"])) == 1


def _charts(runs: Sequence[Run], without: Collection[str]) -> Iterator[Chart]:
    yield _chart("Training loss", "loss", runs, partial(_of_training, name="loss"))
    for name in _names(runs, "metrics", without):
        yield _chart(f"Validation: {words(name)}", words(name), runs, partial(_of_evaluations, name=name), is_few=True)
    of_training = (
        ("Learning rate", "learning rate", "lr"),
        ("Norm of gradients", "norm, before clipping", "gradient_norm"),
        ("Speed", f"{_item(runs)}s a second", "items_per_second"),
    )
    for title, value, name in of_training:
        yield _chart(title, value, runs, partial(_of_training, name=name), height=LOW)
    for name in _names(runs, "log", without):
        yield _chart(
            f"Logged: {words(name)}", words(name), runs, partial(_of_training, name=name, within="log"), height=LOW
        )


def _chart(
    title: str,
    value: str,
    runs: Sequence[Run],
    curve_of: Callable[[Run], Curve],
    *,
    is_few: bool = False,
    height: int = 260,
) -> Chart:
    """One value of all runs; of a group with several seeds the mean, in a band from the least to the greatest."""
    curves = [curve for curve in map(curve_of, runs) if curve.steps]
    groups = list(dict.fromkeys(run.group for run in runs))
    has_seeds = len({run.group for run in runs}) < len(runs)
    # Seeds of a group make a band where they have their points at the same steps.
    aligned = has_seeds and all(_aligned([c for c in curves if c.run.group == group]) for group in groups)
    names = groups if aligned else [run.label for run in runs]
    columns: dict[str, Sequence[float | int | str | None]] = {
        "steps": [step for curve in curves for step in curve.steps],
        "items": [count for curve in curves for count in curve.items],
        "hours": [hour for curve in curves for hour in curve.hours],
        "value": [point for curve in curves for point in curve.values],
        "run": [curve.run.group if aligned else curve.run.label for curve in curves for _ in curve.steps],
    }
    found = [point for curve in curves for point in curve.values if math.isfinite(point)]
    is_log = bool(found) and min(found) > 0 and max(found) > DECADES * min(found)
    colour = Axis("run", "", kind="nominal", order=tuple(names)) if len(names) > 1 else None
    points = is_few and max((len(curve.steps) for curve in curves), default=0) <= FEW
    spec = lines(Axis("steps", "steps"), Axis("value", value, is_log=is_log), colour, points=points, band=aligned)
    choices = [("steps", "steps"), (f"{_item(runs)}s", "items")]
    # A band needs its points at one place, which seeds have by steps and items alone.
    choices += [] if aligned else [("hours", "hours")]
    note = "The mean over seeds, and from the least to the greatest of them." if aligned else ""
    return Chart(title, columns, spec, METRICS, note, tuple(choices), height)


def _aligned(curves: Sequence[Curve]) -> bool:
    return all(curve.steps == curves[0].steps for curve in curves)


def _of_training(run: Run, name: str, within: str | None = None) -> Curve:
    """A value of the records of training, thinned."""
    found = []
    for record in run.trained:
        value = record.get(name) if within is None else _part(record, within).get(name)
        if is_number(value):
            found.append((record["step"], _number(record, "items"), _number(record, "seconds") / 3600, float(value)))
    size = math.ceil(len(found) / MOST_POINTS) or 1
    parts = [found[begin : begin + size] for begin in range(0, len(found), size)]
    return Curve(
        run,
        tuple(part[-1][0] for part in parts),
        tuple(part[-1][1] for part in parts),
        tuple(part[-1][2] for part in parts),
        tuple(math.fsum(point[3] for point in part) / len(part) for part in parts),
    )


def _of_evaluations(run: Run, name: str) -> Curve:
    """A metric of the evaluations; those that were not measured at one of them are left out there."""
    steps = [record["step"] for record in run.trained]
    items = [_number(record, "items") for record in run.trained]
    found = [record for record in run.evaluated if is_number(record["metrics"].get(name))]

    def items_at(step: int) -> float:
        place = bisect.bisect_right(steps, step)
        return items[place - 1] if place else 0.0

    return Curve(
        run,
        tuple(record["step"] for record in found),
        tuple(items_at(record["step"]) for record in found),
        tuple(_number(record, "seconds") / 3600 for record in found),
        tuple(float(record["metrics"][name]) for record in found),
    )


def _names(runs: Sequence[Run], within: str, without: Collection[str]) -> list[str]:
    """What any run recorded under a name, but counts."""
    parts = [_part(record, within) for run in runs for record in run.records]
    found = dict.fromkeys(name for part in parts for name, value in part.items() if is_number(value))
    return [name for name in found if not name.startswith(_COUNT) and name not in without]


def _part(record: dict[str, Any], name: str) -> dict[str, Any]:
    part = record.get(name)
    return part if isinstance(part, dict) else {}


def _number(record: dict[str, Any], name: str) -> float:
    value = record.get(name)
    return float(value) if is_number(value) else 0.0


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of a file is a number that a float can be."""
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)


def _item(runs: Sequence[Run]) -> str:
    """What is counted, where all count the same."""
    items = {item for run in runs if isinstance(item := run.summary.get("item"), str)}
    return printable(items.pop()) if len(items) == 1 else "item"


def words(name: str) -> str:
    """The name of a metric, to be read."""
    return NAMES.get(name) or printable(name).replace("_", " ").replace("/", " ")
