"""What was measured of training steps, as tables on a terminal, as a Markdown page and as JSON."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anymax.bench.comparison import MIB
from anymax.bench.machine import Machine
from anymax.bench.peers import Sweep
from anymax.bench.report import machine_facts, machine_line, number
from anymax.bench.timing import Quartiles, Timing
from anymax.bench.trainee import Parts

COLUMNS = ("parameters", "tokens/s", "ratio", "peak MiB", "ratio")
PART_COLUMNS = ("input", "body", "output", "optimizer")


@dataclass(frozen=True)
class Entry:
    """One model's training.

    Args:
        timing: of a step.
        peak_bytes: the most that is taken at once: parameters, moments, gradients and everything else.
        parts: where the time of a step goes; None where nobody looked.
    """

    name: str
    setting: str
    num_parameters: int
    timing: Timing
    peak_bytes: int
    parts: Parts | None = None


@dataclass(frozen=True)
class Comparison:
    """Models that learn from the same batches; the first is the baseline."""

    job: str
    tokens: int
    entries: tuple[Entry, ...]
    sweeps: tuple[Sweep, ...] = ()

    def speed(self, entry: Entry) -> float:
        """Tokens per second."""
        return self.tokens / entry.timing.milliseconds.median * 1e3


@dataclass(frozen=True)
class Report:
    """One run of the benchmark; `notes` hold what a reader must know to read the numbers."""

    title: str
    machine: Machine
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]


def speed_ratio(timing: Timing) -> Quartiles:
    """How many times the baseline's tokens per second."""
    ratio = timing.ratio
    return Quartiles(1 / ratio.high, 1 / ratio.median, 1 / ratio.low)


def terminal(report: Report) -> RenderableType:
    """One table per comparison, and one of the parts of a step where they were timed."""
    parts: list[RenderableType] = [Text(machine_line(report.machine), style="dim"), ""]
    for comparison in report.comparisons:
        parts += [_table(comparison.job, COLUMNS, _rows(comparison, "{1} [dim]±{3}[/dim]")), ""]
        if any(entry.parts for entry in comparison.entries):
            parts += [_table("Milliseconds of a step", PART_COLUMNS, _part_rows(comparison)), ""]
    parts += [Text(f"{note[0].upper()}{note[1:]}.", style="dim") for note in report.notes]
    parts.append(Text("± is half the distance between the quartiles; above 1 is faster, or more memory.", style="dim"))
    return Group(*parts)


def markdown(report: Report, command: str) -> str:
    """A page that holds the machine, the command, the tables with their quartiles, and what was tried for torch."""
    lines = [f"# Benchmark: {report.title}", "", "```", f"$ {command}", "```", ""]
    lines += [f"- {label}: {value}" for label, value in machine_facts(report.machine)] + [""]
    lines += [f"{note[0].upper()}{note[1:]}." for note in report.notes]
    lines += ["In brackets the quartiles; above 1 is faster, or more memory.", ""]
    for comparison in report.comparisons:
        lines += [f"## {comparison.job}", "", *_markdown_table(COLUMNS, _rows(comparison, "{1} [{0}, {2}]")), ""]
        for sweep in comparison.sweeps:
            tried = ", ".join(f"{setting}: {value:.4g}" for setting, value in sweep.tried.items())
            lines += [f"Tried for {sweep.function}, {sweep.found}: {tried}.", ""]
        if any(entry.parts for entry in comparison.entries):
            lines += ["Milliseconds of a step:", "", *_markdown_table(PART_COLUMNS, _part_rows(comparison)), ""]
    return "\n".join(lines).rstrip() + "\n"


def as_json(report: Report, command: str) -> str:
    return json.dumps({"command": command, **dataclasses.asdict(report)}, indent=2) + "\n"


def _rows(comparison: Comparison, form: str) -> Iterator[tuple[Entry, list[str]]]:
    baseline = comparison.entries[0]
    for entry in comparison.entries:
        ratio = speed_ratio(entry.timing)
        spread = (ratio.low, ratio.median, ratio.high, ratio.half_range)
        cells = [f"{entry.num_parameters / 1e6:.1f}M", f"{comparison.speed(entry):.0f}"]
        cells.append("" if entry is baseline else form.format(*map(number, spread)))
        cells.append(f"{entry.peak_bytes / MIB:.0f}")
        cells.append("" if entry is baseline else f"{entry.peak_bytes / baseline.peak_bytes:.2f}")
        yield entry, cells


def _part_rows(comparison: Comparison) -> Iterator[tuple[Entry, list[str]]]:
    for entry in comparison.entries:
        if entry.parts is not None:
            yield entry, [f"{getattr(entry.parts, part):.4g}" for part in PART_COLUMNS]


def _table(title: str, columns: tuple[str, ...], rows: Iterator[tuple[Entry, list[str]]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column()
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for entry, cells in rows:
        table.add_row(f"{entry.name} [dim]{entry.setting}[/dim]" if entry.setting else entry.name, *cells)
    return table


def _markdown_table(columns: tuple[str, ...], rows: Iterator[tuple[Entry, list[str]]]) -> Iterator[str]:
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for entry, cells in rows:
        name = f"{entry.name} `{entry.setting}`" if entry.setting else entry.name
        yield f"| {name} | {' | '.join(cells)} |"
