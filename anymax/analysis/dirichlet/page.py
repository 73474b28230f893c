"""The Dirichlet study as a page: means over seeds with their confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from anymax.analysis.dirichlet.study import CIRCLE, Result, Untrained, as_dict
from anymax.display import COLOURS, Code, Figure, Page, Paragraph, Part, Row, Section, Table, clean, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean, and how far its confidence interval reaches to either side; None for a single value."""

    mean: float
    half: float | None


class Shown(NamedTuple):
    """A metric as the page shows it: its title, the digits after the point, what it is multiplied by."""

    title: str
    digits: int
    scale: float = 1.0


METRICS = {
    "mode_matching": Shown("Mode matching: contexts whose likeliest word is right, percent", 1, 100),
    "kl": Shown("KL divergence from the target, nats", 3),
    "smoothed_kl": Shown("The same with 1e-6 added to every probability, for outputs with zeros too", 3),
    "total_variation": Shown("Total variation distance from the target", 3),
    "mode_ties": Shown("Contexts with several likeliest words, percent", 1, 100),
    "rank": Shown("Numerical rank of the matrix of log-probabilities", 1),
}


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent values with the interval by Student's t that covers the true one in 95 percent."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * error)


def t_quantile(probability: float, freedom: int) -> float:
    """Where the distribution function of Student's t reaches a probability above a half."""
    low, high = 0.0, math.pi / 2
    # In terms of the angle, whose tangent is t over the root of the freedom, the function is smooth and bounded.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_probability(middle, freedom) < probability else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def page(results: Sequence[Result], untrained: Sequence[Untrained], command: str) -> Page:
    """A table for every metric: outputs below each other, dimensions side by side, concentrations in sections."""
    seeds, seconds = sorted({each.seed for each in results}), max(each.seconds for each in results)
    parts: list[Part] = [Code(f"$ {command}")]
    for name in METRICS:
        found = [each.metrics[name] for each in results if name in each.metrics]
        # Nothing to see where no context of any run has a tie.
        if found and (name != "mode_ties" or any(found)):
            parts.append(_table(results, name))
    if untrained:
        parts.append(_untrained_table(untrained))
    about = (
        f"Means over seeds {', '.join(map(str, seeds))}, with 95 percent confidence intervals by Student's t. The "
        f"longest training took {seconds:.0f} seconds on one thread."
    )
    parts += [Paragraph(about, is_dim=True), figure(results, untrained)]
    return Page("Distributions drawn at random", tuple(parts), as_dict(results, untrained))


def figure(results: Sequence[Result], untrained: Sequence[Untrained]) -> Figure:
    """Mode matching against the dimension: a panel for each concentration, a line with its interval for each output."""
    concentrations = sorted({each.concentration for each in results})

    def draw(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(concentrations), sharey=True, squeeze=False)[0]
        for axes, concentration in zip(panels, concentrations, strict=True):
            _draw(axes, [each for each in results if each.concentration == concentration])
            _mark(axes, [each for each in untrained if (each.name, each.concentration) == (CIRCLE, concentration)])
            axes.set(title=f"concentration {concentration:g}", xlabel="numbers in a vector", ylim=(-3, 105))
            clean(axes)
        panels[0].set_ylabel("contexts whose mode is right, percent")
        legend_below(canvas, panels[0])

    return Figure("Contexts whose mode is right, by the dimension", draw, size=(4.6 * len(concentrations) + 0.4, 4.6))


def _draw(axes: Axes, results: Sequence[Result]) -> None:
    dims = sorted({each.dim for each in results})
    for number, output in enumerate(dict.fromkeys(each.output for each in results)):
        intervals = [_of(results, "mode_matching", output, dim) for dim in dims]
        found = [(dim, each) for dim, each in zip(dims, intervals, strict=True) if each is not None]
        places, means = [dim for dim, _ in found], [100 * each.mean for _, each in found]
        halves = [100 * (each.half or 0.0) for _, each in found]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(places, means, color=colour, label=output, linewidth=1.6, marker="o", markersize=3.5)
        # Beyond 0 and 100 there is nothing.
        lower = [max(0.0, mean - half) for mean, half in zip(means, halves, strict=True)]
        upper = [min(100.0, mean + half) for mean, half in zip(means, halves, strict=True)]
        axes.fill_between(places, lower, upper, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(dims, [str(dim) for dim in dims])
    axes.minorticks_off()


def _mark(axes: Axes, circles: Sequence[Untrained]) -> None:
    if circles:
        height = 100 * statistics.fmean(each.mode_matching for each in circles)
        axes.plot([2], [height], "*", color="#495057", markersize=11, label=f"{CIRCLE}, not trained", clip_on=False)


def _table(results: Sequence[Result], name: str) -> Table:
    dims = sorted({each.dim for each in results})
    rows: list[Row | Section] = []
    for concentration in sorted({each.concentration for each in results}):
        of_it = [each for each in results if each.concentration == concentration]
        outputs = dict.fromkeys(each.output for each in of_it)
        cells = {output: [_cell(_of(of_it, name, output, dim), METRICS[name]) for dim in dims] for output in outputs}
        rows += [_section(concentration), *((output, *of_output) for output, of_output in cells.items())]
    return Table(("output", *(f"{dim} wide" for dim in dims)), tuple(rows), METRICS[name].title)


def _section(concentration: float) -> Section:
    return Section(f"concentration {concentration:g}")


def _of(results: Sequence[Result], name: str, output: str, dim: int) -> Interval | None:
    """None where the output has no such metric, or was not trained at this dimension."""
    values = [e.metrics[name] for e in results if (e.output, e.dim) == (output, dim) and name in e.metrics]
    return interval(values) if values else None


def _cell(found: Interval | None, shown: Shown) -> str:
    if found is None:
        return ""
    mean = f"{shown.scale * found.mean:.{shown.digits}f}"
    return mean if found.half is None else f"{mean} ± {shown.scale * found.half:.{shown.digits}f}"


def _untrained_table(untrained: Sequence[Untrained]) -> Table:
    rows: list[Row | Section] = []
    for concentration in sorted({each.concentration for each in untrained}):
        rows.append(_section(concentration))
        for name in sorted({each.name for each in untrained if each.concentration == concentration}):
            of_it = [each for each in untrained if (each.concentration, each.name) == (concentration, name)]
            matching = _cell(interval([each.mode_matching for each in of_it]), METRICS["mode_matching"])
            rows.append((name, matching, _cell(interval([each.kl for each in of_it]), METRICS["kl"])))
    return Table(("", "modes right, percent", "KL divergence"), tuple(rows), "Without training")


def _t_probability(angle: float, freedom: int) -> float:
    """The distribution function at sqrt(freedom) tan(angle): a sum of powers of the cosine for whole freedoms."""
    cosine, total = math.cos(angle), 0.0
    term = cosine if freedom % 2 else 1.0
    for power in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    inside = math.sin(angle) * total
    return 0.5 + 0.5 * inside if freedom % 2 == 0 else 0.5 + (angle + inside) / math.pi
