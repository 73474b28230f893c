"""What was measured of recurrent networks, as tables on a terminal, as a Markdown page and as JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from rich.console import RenderableType

from anymax.bench import page
from anymax.bench.comparison import MIB
from anymax.bench.page import TableRow, markdown_table, page_head, terminal_page, terminal_table, tried
from anymax.bench.peers import Sweep
from anymax.bench.recurrent_parts import Parts
from anymax.bench.report import as_json as as_json
from anymax.bench.report import number
from anymax.bench.timing import Timing

PARTS_TITLE = "Milliseconds of a step, forward and backward"
MEANING = "below 1 is better"


@dataclass(frozen=True)
class Entry:
    """One contestant of a comparison.

    Args:
        timing: its milliseconds are those of the comparison's unit.
        num_bytes: the most that is taken at once; None where nobody looked.
        parts: where the time of a step goes; None where nobody looked.
    """

    name: str
    timing: Timing
    setting: str = ""
    num_bytes: int | None = None
    parts: Parts | None = None


@dataclass(frozen=True)
class Comparison:
    """Contestants that do one job; the first is the baseline.

    Args:
        unit: heads the column of times.
        memory: heads the column of bytes, in MiB.
    """

    job: str
    entries: tuple[Entry, ...]
    sweeps: tuple[Sweep, ...] = ()
    unit: str = "ms"
    memory: str = "peak MiB"

    @property
    def columns(self) -> tuple[str, ...]:
        of_memory = () if self.entries[0].num_bytes is None else (self.memory, "ratio")
        return (self.unit, "ratio", *of_memory)


Report = page.Report[Comparison]


def terminal(report: Report) -> RenderableType:
    """One table per comparison, and one of the parts of a step where they were timed."""
    tables = []
    for comparison in report.comparisons:
        rows = _rows(comparison, "{1} [dim]±{3}[/dim]")
        tables.append(terminal_table(comparison.job, comparison.columns, rows))
        if parts := _parts(comparison):
            tables.append(terminal_table(PARTS_TITLE, list(parts), _part_rows(parts)))
    return terminal_page(report.machine, tables, report.notes, MEANING)


def markdown(report: Report, command: str) -> str:
    """A page that holds the machine, the command, the tables with their quartiles, and what was tried for torch."""
    lines = page_head(report.title, report.machine, command, report.notes, MEANING)
    for comparison in report.comparisons:
        rows = _rows(comparison, "{1} [{0}, {2}]")
        lines += [f"## {comparison.job}", "", *markdown_table(comparison.columns, rows), "", *tried(comparison.sweeps)]
        if parts := _parts(comparison):
            lines += [f"{PARTS_TITLE}:", "", *markdown_table(list(parts), _part_rows(parts)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(comparison: Comparison, form: str) -> Iterator[TableRow]:
    for entry in comparison.entries:
        yield TableRow(entry.name, entry.setting, [*_cells(entry, comparison.entries[0], form)])


def _cells(entry: Entry, baseline: Entry, form: str) -> Iterator[str]:
    ratio = entry.timing.ratio
    spread = (ratio.low, ratio.median, ratio.high, ratio.half_range)
    yield f"{entry.timing.milliseconds.median:.4g}"
    yield "" if entry is baseline else form.format(*map(number, spread))
    if entry.num_bytes is None or baseline.num_bytes is None:
        return
    yield _mebibytes(entry.num_bytes)
    yield "" if entry is baseline or baseline.num_bytes == 0 else f"{entry.num_bytes / baseline.num_bytes:.2f}"


def _mebibytes(num_bytes: int) -> str:
    size = num_bytes / MIB
    return f"{size:.0f}" if size >= 100 else f"{size:.3g}"


def _parts(comparison: Comparison) -> dict[str, Parts]:
    return {entry.name: entry.parts for entry in comparison.entries if entry.parts is not None}


def _part_rows(parts: Mapping[str, Parts]) -> Iterator[TableRow]:
    """A row for each part, with a column for each contestant; empty where it has no such part."""
    for name in (*(part.name for part in fields(Parts)), "together"):
        times = [getattr(one, name) for one in parts.values()]
        yield TableRow(name.replace("_", " "), "", [f"{time:.4g}" if time else "" for time in times])
