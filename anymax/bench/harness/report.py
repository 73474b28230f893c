"""Report: what a benchmark measured, of all benchmarks, and the page that shows it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from anymax.bench.harness.comparison import Comparison, Entry
from anymax.bench.harness.machine import Machine
from anymax.bench.harness.peers import Sweep
from anymax.bench.harness.timing import Quartiles
from anymax.display import Bullets, Cell, Code, Heading, Noted, Page, Part, Row, Section, Table

MIB = 2**20
MICROSECONDS = "microseconds"


@dataclass(frozen=True)
class Report:
    """One run of a benchmark.

    Args:
        notes: what a reader must know to read the numbers.
    """

    title: str
    machine: Machine
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def page(self, command: str) -> Page:
        """The machine, the command, a table for each job, and what was tried for the peers."""
        notes = map(_sentence, (*self.notes, "beside a ratio stand its quartiles"))
        parts: list[Part] = [Code(f"$ {command}"), Bullets((*_facts(self.machine), *notes), is_dim=True)]
        for job, group in groupby(self.comparisons, key=lambda comparison: comparison.job):
            parts += [Heading(job), *_parts(list(group))]
        return Page(f"Benchmark: {self.title}", tuple(parts), {"command": command, **asdict(self)})


def number(value: float) -> str:
    """A ratio: three digits, or two places where that is more than enough."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def digits(value: float) -> str:
    """Three digits at least, and no exponent for large numbers."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _facts(machine: Machine) -> tuple[str, ...]:
    """What decides the numbers."""
    return (
        f"CPU: {machine.cpu}, {machine.cores} cores, {machine.system}",
        f"threads: {machine.threads}",
        f"kernels: {machine.kernels}",
        f"software: anymax {machine.anymax}, torch {machine.torch}, Python {machine.python}",
    )


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _parts(comparisons: Sequence[Comparison]) -> Iterator[Part]:
    """Of one job."""
    first = comparisons[0]
    assert first.case or len(comparisons) == 1, f"comparisons of one job must have a case each: {first.job}"
    yield _side_by_side(comparisons) if first.case else _table(first)
    tried = [_tried(sweep, comparison.case) for comparison in comparisons for sweep in comparison.sweeps]
    if tried:
        yield Bullets(tuple(tried), is_dim=True)
    if parts := {entry.name: entry.parts for entry in first.entries if entry.parts is not None}:
        yield _table_of_parts(parts)


def _table(comparison: Comparison) -> Table:
    """A row for each contestant, and a column for all that was measured."""
    rows = [(Noted(entry.name, entry.setting), *_cells(entry, comparison)) for entry in comparison.entries]
    return Table(("", *_columns(comparison)), tuple(_in_sections(comparison.entries, rows)))


def _side_by_side(comparisons: Sequence[Comparison]) -> Table:
    """A column of ratios for each case; all have the same contestants, and the first row is the baseline's time."""
    baseline, *others = zip(*(comparison.entries for comparison in comparisons), strict=True)
    rows: list[Row] = [(baseline[0].name, *(f"{digits(one.timing.milliseconds.median)} ms" for one in baseline))]
    rows += [(of_one[0].name, *(_ratio(entry.timing.ratio, entry.setting) for entry in of_one)) for of_one in others]
    return Table(("", *(one.case for one in comparisons)), tuple(_in_sections(comparisons[0].entries, rows)))


def _table_of_parts(parts: Mapping[str, Mapping[str, float]]) -> Table:
    """A row for each part of a step, empty where a contestant has no such part; a column for each contestant."""
    names = next(iter(parts.values()))
    rows: list[Row] = [
        (name.replace("_", " "), *(digits(one[name]) if one[name] else "" for one in parts.values())) for name in names
    ]
    together = [digits(sum(one.values())) for one in parts.values()]
    return Table(("", *parts), (*rows, ("together", *together)), "Milliseconds of a step, forward and backward")


def _in_sections(entries: Sequence[Entry], rows: Sequence[Row]) -> Iterator[Row | Section]:
    """The rows of entries, those of one maker below its name."""
    maker = ""
    for entry, row in zip(entries, rows, strict=True):
        if entry.maker != maker:
            maker = entry.maker
            yield Section(maker)
        yield row


def _columns(comparison: Comparison) -> Iterator[str]:
    first = comparison.entries[0]
    if first.num_parameters is not None:
        yield "parameters"
    yield from (comparison.unit if comparison.tokens is None else "tokens/s", "ratio")
    if first.num_bytes is not None:
        yield from (comparison.memory, f"to {comparison.memory_baseline}" if comparison.memory_baseline else "ratio")
    if first.rows is not None:
        yield comparison.rows


def _cells(entry: Entry, comparison: Comparison) -> Iterator[Cell]:
    baseline, time = comparison.entries[0], entry.timing.milliseconds.median
    if entry.num_parameters is not None:
        yield f"{entry.num_parameters / 1e6:.1f}M"
    if comparison.tokens is None:
        yield digits(1e3 * time if comparison.unit == MICROSECONDS else time)
        ratio = entry.timing.ratio
    else:
        yield f"{1e3 * comparison.tokens / time:.0f}"
        ratio = entry.timing.ratio.inverse
    yield "" if entry is baseline else _ratio(ratio)
    if entry.num_bytes is not None:
        yield digits(entry.num_bytes / MIB)
        yield _ratio_of_bytes(entry, comparison)
    if entry.rows is not None:
        yield digits(entry.rows)


def _ratio_of_bytes(entry: Entry, comparison: Comparison) -> str:
    """To the entry whose memory is the baseline, itself empty."""
    name = comparison.memory_baseline or comparison.entries[0].name
    baseline = next(one for one in comparison.entries if one.name == name)
    assert entry.num_bytes is not None and baseline.num_bytes is not None
    return f"{entry.num_bytes / baseline.num_bytes:.3f}" if entry is not baseline and baseline.num_bytes > 0 else ""


def _ratio(ratio: Quartiles, setting: str = "") -> Cell:
    quartiles = f"{number(ratio.low)}-{number(ratio.high)}"
    return Noted(number(ratio.median), f"{quartiles}, {setting}" if setting else quartiles)


def _tried(sweep: Sweep, case: str) -> str:
    """The settings that were tried for one function."""
    values = ", ".join(f"{setting}: {value:.4g}" for setting, value in sweep.tried.items())
    return f"Tried for {sweep.function}{f' on {case}' if case else ''}, {sweep.found}: {values}."
