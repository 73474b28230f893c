"""Several recipes of a task that measures itself, side by side: their metrics over seeds as a table and as curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anymax.display import COLOURS, Code, Figure, Page, Paragraph, Row, Table, clean, legend_below
from anymax.files import read_json
from anymax.training import read_metrics
from anymax.training.run_folder.folder import SUMMARY, TESTED, reading_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Measured:
    """What one run left in its folder.

    Args:
        test: its metrics on the test split.
        curve: its metrics on the validation split, by step.
        seconds: of training, without evaluations and checkpoints.
        memory: the most bytes the process held.
    """

    recipe: str
    seed: int
    test: dict[str, float]
    curve: dict[int, dict[str, float]]
    parameters: int
    steps: int
    seconds: float
    memory: int


def read_measured(folder: Path, recipe: str, seed: int) -> Measured:
    """What a finished run left."""
    with reading_results(folder):
        tested, summary = (read_json(folder / name) for name in (TESTED, SUMMARY))
        curve = {r["step"]: r["metrics"] for r in read_metrics(folder) if r["kind"] == "evaluation"}
        return Measured(
            recipe,
            seed,
            tested["metrics"],
            curve,
            summary["num_parameters"],
            summary["steps"],
            summary["training_seconds"],
            summary["peak_memory_bytes"],
        )


def page(results: Sequence[Measured], command: str, tables: Sequence[Table] = ()) -> Page:
    """The table, what its columns mean, the task's own tables, the curves, and the command that made it."""
    seeds = sorted({result.seed for result in results})
    meaning = (
        f"Metrics of the test split, the mean over seeds {', '.join(map(str, seeds))} with their standard deviation. "
        "`ms a step` and `seconds`: of training. `memory`: the most that the process held."
    )
    measured = (Code(f"$ {command}"), table(results), Paragraph(meaning, is_dim=True))
    return Page("Recipes side by side", (*measured, *tables, figure(results)))


def table(results: Sequence[Measured]) -> Table:
    """A row for each recipe: every metric of the task, and what it cost."""
    columns = ("recipe", *results[0].test, "parameters", "ms a step", "seconds", "memory")
    return Table(columns, tuple(_rows(results)))


def _rows(results: Sequence[Measured]) -> Iterator[Row]:
    """Means over seeds, with the standard deviation where there are several."""
    for recipe in dict.fromkeys(result.recipe for result in results):
        runs = [result for result in results if result.recipe == recipe]
        milliseconds = statistics.fmean(1000 * run.seconds / run.steps for run in runs)
        yield (
            recipe,
            *(_mean([run.test[name] for run in runs]) for name in results[0].test),
            f"{runs[0].parameters:,}",
            f"{milliseconds:.1f}",
            f"{statistics.fmean(run.seconds for run in runs):,.0f}",
            f"{statistics.fmean(run.memory for run in runs) / 1e6:,.0f} MB",
        )


def figure(results: Sequence[Measured]) -> Figure:
    """Every metric of the validation split by step; some are measured on the test split alone."""
    points = [point for result in results for point in result.curve.values()]
    metrics = [name for name in results[0].test if all(name in point for point in points)]
    columns = min(3, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    recipes = list(dict.fromkeys(result.recipe for result in results))

    def draw(canvas: Canvas) -> None:
        axes = [canvas.add_subplot(rows, columns, place + 1) for place in range(len(metrics))]
        for result in results:
            colour = COLOURS[recipes.index(result.recipe) % len(COLOURS)]
            style = "-" if recipes.index(result.recipe) < len(COLOURS) else "--"
            label = result.recipe if result.seed == min(r.seed for r in results) else None
            for axis, name in zip(axes, metrics, strict=True):
                values = [point[name] for point in result.curve.values()]
                # A line needs two points.
                marker = "D" if len(values) == 1 else ""
                axis.plot(list(result.curve), values, style, color=colour, label=label, linewidth=1.4, marker=marker)
        for axis, name in zip(axes, metrics, strict=True):
            axis.set(title=name.replace("_", " "), xlabel="step")
            if all(len(result.curve) == 1 for result in results):
                axis.set_xlim(left=0)
            clean(axis)
        legend_below(canvas, axes[0], columns=5)

    return Figure("Metrics of the validation split by step", draw, size=(5 * columns, 3.6 * rows + 0.5))


def _mean(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.4g}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2g}"
