"""What was measured of training steps, as tables on a terminal, as a Markdown page and as JSON."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType

from anymax.bench import page
from anymax.bench.comparison import MIB
from anymax.bench.page import TableRow, markdown_table, page_head, terminal_page, terminal_table, tried
from anymax.bench.peers import Sweep
from anymax.bench.report import as_json as as_json
from anymax.bench.report import number
from anymax.bench.timing import Quartiles, Timing
from anymax.bench.trainee import Parts

COLUMNS = ("parameters", "tokens/s", "ratio", "peak MiB", "ratio")
PART_COLUMNS = ("input", "body", "output", "optimizer")
MEANING = "above 1 is faster, or more memory"


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


Report = page.Report[Comparison]


def speed_ratio(timing: Timing) -> Quartiles:
    """How many times the baseline's tokens per second."""
    ratio = timing.ratio
    return Quartiles(1 / ratio.high, 1 / ratio.median, 1 / ratio.low)


def terminal(report: Report) -> RenderableType:
    """One table per comparison, and one of the parts of a step where they were timed."""
    tables = []
    for comparison in report.comparisons:
        tables.append(terminal_table(comparison.job, COLUMNS, _rows(comparison, "{1} [dim]±{3}[/dim]")))
        if any(entry.parts for entry in comparison.entries):
            tables.append(terminal_table("Milliseconds of a step", PART_COLUMNS, _part_rows(comparison)))
    return terminal_page(report.machine, tables, report.notes, MEANING)


def markdown(report: Report, command: str) -> str:
    """A page that holds the machine, the command, the tables with their quartiles, and what was tried for torch."""
    lines = page_head(report.title, report.machine, command, report.notes, MEANING)
    for comparison in report.comparisons:
        rows = _rows(comparison, "{1} [{0}, {2}]")
        lines += [f"## {comparison.job}", "", *markdown_table(COLUMNS, rows), "", *tried(comparison.sweeps)]
        if any(entry.parts for entry in comparison.entries):
            lines += ["Milliseconds of a step:", "", *markdown_table(PART_COLUMNS, _part_rows(comparison)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(comparison: Comparison, form: str) -> Iterator[TableRow]:
    baseline = comparison.entries[0]
    for entry in comparison.entries:
        ratio = speed_ratio(entry.timing)
        spread = (ratio.low, ratio.median, ratio.high, ratio.half_range)
        cells = [f"{entry.num_parameters / 1e6:.1f}M", f"{comparison.speed(entry):.0f}"]
        cells.append("" if entry is baseline else form.format(*map(number, spread)))
        cells.append(f"{entry.peak_bytes / MIB:.0f}")
        cells.append("" if entry is baseline else f"{entry.peak_bytes / baseline.peak_bytes:.2f}")
        yield TableRow(entry.name, entry.setting, cells)


def _part_rows(comparison: Comparison) -> Iterator[TableRow]:
    for entry in comparison.entries:
        if entry.parts is not None:
            times = [f"{getattr(entry.parts, part):.4g}" for part in PART_COLUMNS]
            yield TableRow(entry.name, entry.setting, times)
