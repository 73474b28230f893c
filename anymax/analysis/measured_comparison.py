"""Several recipes of a task that measures itself, side by side: their metrics over seeds as a table and as curves."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from anymax.display import COLOURS, clean
from anymax.files import read_json
from anymax.training import read_metrics
from anymax.training.folder import SUMMARY, TESTED, reading_results


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


def head(results: Sequence[Measured]) -> tuple[str, ...]:
    """The columns: every metric of the task, and what it cost."""
    return ("recipe", *results[0].test, "parameters", "ms a step", "seconds", "memory")


def cells(results: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """The table as text, the head left out: means over seeds, with the standard deviation where there are several."""
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


def terminal(results: Sequence[Measured]) -> Table:
    """The table for a terminal."""
    table = Table()
    for name in head(results):
        # A name that is cut off could be that of another recipe.
        table.add_column(name, justify="left" if name == "recipe" else "right", overflow="fold")
    for row in cells(results):
        table.add_row(*row)
    return table


def markdown(results: Sequence[Measured], command: str) -> str:
    """A page with the table, what its columns mean, and the command that made it."""
    seeds = sorted({result.seed for result in results})
    columns = head(results)
    lines = [
        f"| {' | '.join(columns)} |",
        "|---" + "|---:" * (len(columns) - 1) + "|",
        *(f"| {' | '.join(row)} |" for row in cells(results)),
        "",
        f"Metrics of the test split, the mean over seeds {', '.join(map(str, seeds))} with their standard deviation. "
        "`ms a step` and `seconds`: of training. `memory`: the most that the process held.",
        "",
        f"    {command}",
        "",
    ]
    return "\n".join(lines)


def plot(path: str | os.PathLike[str], results: Sequence[Measured]) -> None:
    """Every metric of the validation split by step."""
    from matplotlib.figure import Figure

    metrics = list(results[0].test)
    columns = min(3, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    figure = Figure(figsize=(5 * columns, 3.6 * rows + 0.5), dpi=120, facecolor="white", layout="constrained")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(len(metrics))]
    recipes = list(dict.fromkeys(result.recipe for result in results))
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
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False)
    figure.savefig(path)


def _mean(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.4g}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2g}"
