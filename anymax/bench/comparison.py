"""Contestants that do one job, compared by time and memory: what was measured, and how it is shown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from anymax.bench import page
from anymax.bench.memory import peak_bytes
from anymax.bench.page import TableRow, markdown_table, page_head, terminal_page, terminal_table, tried
from anymax.bench.peers import Sweep
from anymax.bench.report import as_json as as_json
from anymax.bench.report import number
from anymax.bench.timing import Budget, Run, Timing, time_interleaved

MIB = 2**20
COLUMNS = ("ms", "ratio", "extra MiB", "ratio")


@dataclass(frozen=True)
class Contestant:
    """Args:
    run: one forward and backward; returns the gradients.
    gradient_bytes: what the gradients take, which is not counted as extra memory.
    setting: what was chosen for it, if anything was.
    """

    name: str
    run: Run
    gradient_bytes: int
    setting: str = ""


@dataclass(frozen=True)
class Measured:
    """One contestant of one job; extra memory is what it takes over its inputs and gradients at the worst moment."""

    name: str
    setting: str
    timing: Timing
    extra_bytes: int


@dataclass(frozen=True)
class Comparison:
    """Everyone who does one job; the first is the baseline."""

    job: str
    entries: tuple[Measured, ...]
    sweeps: tuple[Sweep, ...] = ()


Report = page.Report[Comparison]


def compare(job: str, contestants: Sequence[Contestant], budget: Budget, sweeps: tuple[Sweep, ...] = ()) -> Comparison:
    """Memory first, then time, interleaved; the first contestant is the baseline."""
    extra = {one.name: max(0, peak_bytes(one.run) - one.gradient_bytes) for one in contestants}
    runs: Mapping[str, Run] = {one.name: one.run for one in contestants}
    timings = time_interleaved(runs, baseline=contestants[0].name, budget=budget)
    entries = tuple(Measured(one.name, one.setting, timings[one.name], extra[one.name]) for one in contestants)
    return Comparison(job, entries, sweeps)


def fastest(function: str, runs: Mapping[str, Run], budget: Budget) -> Sweep:
    """Try a contestant's settings and choose the fastest."""
    timings = time_interleaved(runs, baseline=next(iter(runs)), budget=budget)
    tried = {setting: timing.milliseconds.median for setting, timing in timings.items()}
    return Sweep(function, "milliseconds", tried, min(tried, key=tried.__getitem__))


def terminal(report: Report) -> RenderableType:
    """One table per job."""
    tables = [
        terminal_table(comparison.job, COLUMNS, _rows(comparison, "{} [dim]±{}[/dim]", with_half_range=True))
        for comparison in report.comparisons
    ]
    return terminal_page(report.machine, tables, report.notes, "below 1 is better")


def markdown(report: Report, command: str) -> str:
    """A page that holds the machine, the command, the tables with their quartiles, and what was tried for the peers."""
    lines = page_head(report.title, report.machine, command, report.notes, "below 1 is better")
    for comparison in report.comparisons:
        rows = _rows(comparison, "{} [{}, {}]", with_half_range=False)
        lines += [f"## {comparison.job}", "", *markdown_table(COLUMNS, rows), "", *tried(comparison.sweeps)]
    return "\n".join(lines).rstrip() + "\n"


def _rows(comparison: Comparison, form: str, *, with_half_range: bool) -> Iterator[TableRow]:
    for entry in comparison.entries:
        yield TableRow(entry.name, entry.setting, [*_cells(entry, comparison, form, with_half_range=with_half_range)])


def _cells(entry: Measured, comparison: Comparison, form: str, *, with_half_range: bool) -> Iterator[str]:
    ratio, baseline = entry.timing.ratio, comparison.entries[0]
    spread = (ratio.half_range,) if with_half_range else (ratio.low, ratio.high)
    yield f"{entry.timing.milliseconds.median:.3g}"
    yield "" if entry is baseline else form.format(number(ratio.median), *map(number, spread))
    yield f"{entry.extra_bytes / MIB:.3g}"
    yield "" if entry is baseline or baseline.extra_bytes == 0 else f"{entry.extra_bytes / baseline.extra_bytes:.3f}"
