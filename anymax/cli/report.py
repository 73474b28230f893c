"""`anymax report RUN [RUN ...]`: one page about runs, to be opened in a browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from anymax.checks import check_counts
from anymax.cli import own_file
from anymax.cli.progress import Announcer, say
from anymax.files import check_file, replacing

PAGE = "report.html"
# Lines of a file of examples, which are all translated or continued.
MOST_LINES = 500
_Output = arg(metavar="FILE", help_behavior_hint=f"(default: {PAGE} in the run, or here for several)")
_Best = arg(metavar="STEP", help_behavior_hint="(default: the best)")
_Examples = arg(metavar="FILE", help_behavior_hint="(default: those of the split)")


@dataclass(frozen=True)
class _Report:
    """Write one HTML file about a run, or about several side by side: results, curves, and what the model does.

    It opens in any browser, without a network. Heads of attention can be opened on examples, tables sorted and copied,
    plots zoomed and saved. A run of your own task needs its file: --from my_task.py.

    Args:
        runs: the folders of runs; of several, details are of the best.
        output: where the page goes.
        split: the part of the data that examples are from.
        limit: examples that heads are measured on, at most.
        texts: examples that the model writes texts for, at most.
        examples: lines of your own for it: of a source language, beginnings of texts, or source and translation
            separated by a tab.
        seed: which examples, where there are more.
        step: the checkpoint to look into.
        open: open the page in the browser.
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN ...", help_behavior_hint="(one at least)")]
    output: Annotated[Path | None, _Output] = None
    split: Literal["valid", "test"] = "valid"
    limit: int = 200
    texts: int = 100
    examples: Annotated[Path | None, _Examples] = None
    seed: int = 1
    step: Annotated[int | None, _Best] = None
    open: bool = False


def report(arguments: Sequence[str]) -> int:
    """Write one HTML page about runs: results, curves, heads of attention, words, latents and texts."""
    tasks, options = own_file.take_option(arguments)
    given = tyro.cli(_Report, args=options, prog="anymax report", config=(tyro.conf.FlagCreatePairsOff,))
    check_counts(limit=given.limit, texts=given.texts)
    check_counts(0, seed=given.seed)
    output = given.output or (given.runs[0] / PAGE if len(given.runs) == 1 else Path(PAGE))
    if output.is_dir():
        raise ValueError(f"output must be a file, got the folder {output}; name a file in it, as {output / PAGE}")
    lines = None if given.examples is None else _lines(given.examples)
    from anymax.analysis.report.report import Looks
    from anymax.analysis.report.report import report as page_of
    from anymax.display import document
    from anymax.display.chart import vega_script

    # What plots need is missing before minutes of work, not after.
    vega_script()
    looks = Looks(given.split, given.limit, given.texts, given.seed, given.step, lines)
    with Announcer() as announce:
        text = document(page_of(given.runs, looks, tasks, announce=announce)).encode()
    with replacing(output) as file:
        file.write(text)
    say(f"Wrote {output} ({len(text) / 1e6:.1f} MB)")
    if given.open and not webbrowser.open(output.resolve().as_uri()):
        say("No browser was found to open it with.")
    return 0


def _lines(file: Path) -> tuple[str, ...]:
    """The examples in a file, of which none is empty."""
    check_file(file, "a text file")
    try:
        lines = tuple(line for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be text in UTF-8, but {error}; convert it") from None
    if not 0 < len(lines) <= MOST_LINES:
        raise ValueError(f"{file} must have 1 to {MOST_LINES} lines of text, got {len(lines)}")
    return lines
