"""How benchmarks show contestants: tables on a terminal and on a Markdown page, with the machine and the command."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anymax.bench.machine import Machine
from anymax.bench.peers import Sweep
from anymax.bench.report import machine_facts, machine_line

ComparisonT = TypeVar("ComparisonT")


@dataclass(frozen=True)
class Report(Generic[ComparisonT]):
    """One run of a benchmark; `notes` hold what a reader must know to read the numbers."""

    title: str
    machine: Machine
    comparisons: tuple[ComparisonT, ...]
    notes: tuple[str, ...]


class TableRow(NamedTuple):
    """A contestant, what was chosen for it if anything was, and its values."""

    name: str
    setting: str
    cells: Sequence[str]


def terminal_page(
    machine: Machine, tables: Iterable[RenderableType], notes: Iterable[str], meaning: str
) -> RenderableType:
    """Tables between the machine and what a reader must know.

    Args:
        meaning: of a ratio, as "below 1 is better".
    """
    parts: list[RenderableType] = [Text(machine_line(machine), style="dim"), ""]
    for table in tables:
        parts += [table, ""]
    parts += [Text(_sentence(note), style="dim") for note in notes]
    parts.append(Text(f"± is half the distance between the quartiles; {meaning}.", style="dim"))
    return Group(*parts)


def page_head(title: str, machine: Machine, command: str, notes: Iterable[str], meaning: str) -> list[str]:
    """The first lines of a Markdown page; arguments as in `terminal_page`."""
    lines = [f"# Benchmark: {title}", "", "```", f"$ {command}", "```", ""]
    lines += [f"- {label}: {value}" for label, value in machine_facts(machine)] + [""]
    return [*lines, *map(_sentence, notes), f"In brackets the quartiles; {meaning}.", ""]


def terminal_table(title: str, columns: Iterable[str], rows: Iterable[TableRow]) -> Table:
    """A table with a title above it."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column()
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(f"{row.name} [dim]{row.setting}[/dim]" if row.setting else row.name, *row.cells)
    return table


def markdown_table(columns: Sequence[str], rows: Iterable[TableRow]) -> Iterator[str]:
    """The lines of a table."""
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for row in rows:
        name = f"{row.name} `{row.setting}`" if row.setting else row.name
        yield f"| {name} | {' | '.join(row.cells)} |"


def tried(sweeps: Iterable[Sweep]) -> Iterator[str]:
    """Lines that tell which settings were tried for whom."""
    for sweep in sweeps:
        values = ", ".join(f"{setting}: {value:.4g}" for setting, value in sweep.tried.items())
        yield from (f"Tried for {sweep.function}, {sweep.found}: {values}.", "")


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."
