"""What was measured of discrete latents, as tables on a terminal, as a Markdown page and as JSON."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType

from anymax.bench import page
from anymax.bench.page import TableRow, markdown_table, page_head, terminal_page, terminal_table, tried
from anymax.bench.peers import Sweep
from anymax.bench.report import as_json as as_json
from anymax.bench.report import number
from anymax.bench.timing import Timing

MEANING = "ratios are to the first row of a table, and below 1 is faster"


@dataclass(frozen=True)
class Entry:
    """One contestant of a comparison.

    Args:
        rows: how many rows reached the loss, for each example; None where nothing of the kind is called.
    """

    name: str
    timing: Timing
    setting: str = ""
    rows: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Contestants that do one job; the first is the baseline.

    Args:
        rows: heads the column of rows.
    """

    job: str
    entries: tuple[Entry, ...]
    sweeps: tuple[Sweep, ...] = ()
    rows: str = "rows"

    @property
    def columns(self) -> tuple[str, ...]:
        of_rows = () if self.entries[0].rows is None else (self.rows,)
        return ("ms", "ratio", *of_rows)


Report = page.Report[Comparison]


def terminal(report: Report) -> RenderableType:
    """One table per comparison."""
    tables = [
        terminal_table(one.job, one.columns, _table_rows(one, "{1} [dim]±{3}[/dim]")) for one in report.comparisons
    ]
    return terminal_page(report.machine, tables, report.notes, MEANING)


def markdown(report: Report, command: str) -> str:
    """A page that holds the machine, the command, the tables with their quartiles, and what was tried."""
    lines = page_head(report.title, report.machine, command, report.notes, MEANING)
    for one in report.comparisons:
        table = markdown_table(one.columns, _table_rows(one, "{1} [{0}, {2}]"))
        lines += [f"## {one.job}", "", *table, "", *tried(one.sweeps)]
    return "\n".join(lines).rstrip() + "\n"


def _table_rows(comparison: Comparison, form: str) -> Iterator[TableRow]:
    for entry in comparison.entries:
        yield TableRow(entry.name, entry.setting, [*_cells(entry, comparison.entries[0], form)])


def _cells(entry: Entry, baseline: Entry, form: str) -> Iterator[str]:
    ratio = entry.timing.ratio
    milliseconds = entry.timing.milliseconds.median
    yield f"{milliseconds:.0f}" if milliseconds >= 1000 else f"{milliseconds:.3g}"
    spread = (ratio.low, ratio.median, ratio.high, ratio.half_range)
    yield "" if entry is baseline else form.format(*map(number, spread))
    if entry.rows is not None:
        yield f"{entry.rows:.4g}"
