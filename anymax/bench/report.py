"""A benchmark's report as tables on a terminal, as a Markdown page and as JSON."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anymax.bench.machine import Machine
from anymax.bench.results import CaseResult, Entry, Report

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def terminal(report: Report) -> RenderableType:
    """One table of ratios per scale, and one of the small call."""
    parts: list[RenderableType] = [Text(machine_line(report.machine), style="dim"), ""]
    for scale, cases in _by_scale(report.cases):
        parts += [_ratio_table(f"Ratio to {_baseline(cases)}, scores of scale {scale:g}", cases), ""]
    parts += [_call_table(report), ""]
    parts += [Text(f"{note[0].upper()}{note[1:]}.", style="dim") for note in report.notes]
    parts.append(Text("± is half the distance between the quartiles; below 1 is faster.", style="dim"))
    return Group(*parts)


def markdown(report: Report, command: str) -> str:
    """A page that holds the machine, the command, the tables with their quartiles, and what was tried for the peers."""
    lines = [f"# Benchmark: {report.title}", "", "```", f"$ {command}", "```", ""]
    lines += [f"- {label}: {value}" for label, value in machine_facts(report.machine)] + [""]
    lines += [f"{note[0].upper()}{note[1:]}." for note in report.notes]
    lines += ["In brackets the quartiles; below 1 is faster.", ""]
    for scale, cases in _by_scale(report.cases):
        lines += [f"## Scores of scale {scale:g}", "", *_markdown_ratios(cases), ""]
    lines += [f"## One call on {report.small_case}, without a gradient", "", *_markdown_calls(report.calls), ""]
    if any(case.sweeps for case in report.cases):
        lines += ["## What was tried for the peers", "", *_markdown_sweeps(report.cases), ""]
    return "\n".join(lines).rstrip() + "\n"


def as_json(report: "DataclassInstance", command: str) -> str:
    """Everything that was measured, by any benchmark."""
    return json.dumps({"command": command, **dataclasses.asdict(report)}, indent=2) + "\n"


def _ratio_table(title: str, cases: list[CaseResult]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column()
    for case in cases:
        table.add_column(case.case, justify="right", no_wrap=True)
    maker = ""
    for row in _rows(cases):
        if row[0].maker != maker:
            maker = row[0].maker
            table.add_section()
            table.add_row(Text(maker, style="bold"))
        first, rest = row[0], [_ratio_cell(entry) for entry in row]
        if first.name == _baseline(cases):
            rest = [f"{entry.timing.milliseconds.median:.3g} ms" for entry in row]
        table.add_row(f"  {first.name}", *rest)
    return table


def _ratio_cell(entry: Entry) -> str:
    ratio = entry.timing.ratio
    cell = f"{number(ratio.median)} [dim]±{number(ratio.half_range)}[/dim]"
    return f"{cell}\n[dim]{entry.setting}[/dim]" if entry.setting else cell


def _call_table(report: Report) -> Table:
    title = f"One call on {report.small_case}, without a gradient"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column()
    table.add_column("microseconds", justify="right")
    table.add_column("ratio", justify="right")
    for entry in report.calls:
        name = entry.name if entry.maker == "torch" else f"{entry.maker}: {entry.name}"
        table.add_row(name, f"{entry.timing.milliseconds.median * 1e3:.1f}", _ratio_cell(entry))
    return table


def _markdown_ratios(cases: list[CaseResult]) -> Iterator[str]:
    yield f"| | {' | '.join(case.case for case in cases)} |"
    yield "|---|" + "---:|" * len(cases)
    for row in _rows(cases):
        if row[0].name == _baseline(cases):
            yield f"| {row[0].name}, ms | {' | '.join(f'{e.timing.milliseconds.median:.3g}' for e in row)} |"
            continue
        yield f"| {row[0].maker}: {row[0].name} | {' | '.join(_markdown_cell(entry) for entry in row)} |"


def _markdown_cell(entry: Entry) -> str:
    ratio = entry.timing.ratio
    cell = f"{number(ratio.median)} [{number(ratio.low)}, {number(ratio.high)}]"
    return f"{cell} `{entry.setting}`" if entry.setting else cell


def _markdown_calls(calls: Iterable[Entry]) -> Iterator[str]:
    yield "| | microseconds | ratio |"
    yield "|---|---:|---:|"
    for entry in calls:
        name = entry.name if entry.maker == "torch" else f"{entry.maker}: {entry.name}"
        yield f"| {name} | {entry.timing.milliseconds.median * 1e3:.1f} | {_markdown_cell(entry)} |"


def _markdown_sweeps(cases: Iterable[CaseResult]) -> Iterator[str]:
    yield "| scale | scores | function | chosen | found | tried |"
    yield "|---:|---|---|---|---|---|"
    for case in cases:
        for sweep in case.sweeps:
            tried = ", ".join(f"{setting}: {value:.3g}" for setting, value in sweep.tried.items())
            cells = [f"{case.scale:g}", case.case, sweep.function, f"`{sweep.chosen}`", sweep.found, tried]
            yield f"| {' | '.join(cells)} |"


def _by_scale(cases: Iterable[CaseResult]) -> Iterator[tuple[float, list[CaseResult]]]:
    grouped: dict[float, list[CaseResult]] = {}
    for case in cases:
        grouped.setdefault(case.scale, []).append(case)
    yield from grouped.items()


def _rows(cases: list[CaseResult]) -> Iterator[tuple[Entry, ...]]:
    """One contestant's entries over the cases, which all have the same contestants."""
    yield from zip(*(case.entries for case in cases), strict=True)


def _baseline(cases: list[CaseResult]) -> str:
    return cases[0].entries[0].name


def machine_facts(machine: Machine) -> list[tuple[str, str]]:
    """What decides the numbers, as labels and values."""
    return [
        ("CPU", f"{machine.cpu}, {machine.cores} cores, {machine.system}"),
        ("threads", str(machine.threads)),
        ("kernels", machine.kernels),
        ("software", f"anymax {machine.anymax}, torch {machine.torch}, Python {machine.python}"),
    ]


def machine_line(machine: Machine) -> str:
    """The same, a line each."""
    return "\n".join(f"{label + ':':<10}{value}" for label, value in machine_facts(machine))


def number(value: float) -> str:
    """Three digits, or two places where that is more than enough."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
