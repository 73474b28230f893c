"""`anymax postedit RUN --src FILE --mt FILE`: correct translations with a trained run, or with several as one."""

from __future__ import annotations

import difflib
import sys
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from anymax.checks import check_counts, given
from anymax.cli.console import Console
from anymax.cli.progress import Announcer, say
from anymax.data.text.lines import open_lines
from anymax.decoding.penalties import PenaltyName, named_penalty
from anymax.files import check_file

if TYPE_CHECKING:
    from anymax.training.tasks.post_editing.editing import OpenedPostEditor

# Batches that are read before they are corrected, so that sentences of about one length go together.
READ_BATCHES = 16
REMOVED, ADDED = "red strike", "green"
_OfRun = arg(help_behavior_hint="(default: that of the run's config)")
_Best = arg(metavar="STEP", help_behavior_hint="(default: the best)")
_Stdout = arg(metavar="FILE", help_behavior_hint="(default: standard output)")


def postedit(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    src: Annotated[Path, arg(metavar="FILE")],
    mt: Annotated[Path, arg(metavar="FILE")],
    output: Annotated[Path | None, _Stdout] = None,
    ensemble: Annotated[tuple[Path, ...], arg(metavar="RUN ...", help_behavior_hint="")] = (),
    average: Annotated[int | None, arg(metavar="NUMBER", help_behavior_hint="(default: one checkpoint)")] = None,
    step: Annotated[int | None, _Best] = None,
    beam: Annotated[int | None, _OfRun] = None,
    length_penalty: Annotated[PenaltyName | None, _OfRun] = None,
    alpha: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(default: 0.6)")] = None,
    max_length: Annotated[int | None, _OfRun] = None,
    batch_size: Annotated[int | None, _OfRun] = None,
) -> int:
    """Correct translations: a line of output for each sentence and its translation.

    Both texts are words separated by spaces, and so is what is written. On a terminal, translations are shown beside
    their corrections, with what was taken out and what was put in.

    Args:
        run: the folder of the run.
        src: the sentences, UTF-8, plain or gzip.
        mt: their translations, line by line.
        output: where corrections go.
        ensemble: further runs with the same word pieces; the probabilities of all are averaged.
        average: take the mean of the weights of this many checkpoints, the last ones of each run.
        step: the checkpoint to use.
        beam: beginnings that are kept at every step; 1 takes the likeliest piece each time.
        length_penalty: what scores are divided by: nothing, the length, or GNMT's power of it.
        alpha: of --length-penalty gnmt.
        max_length: the most word pieces of a correction.
        batch_size: sentences that are corrected at a time.
    """
    check_counts(**given(beam=beam, max_length=max_length, batch_size=batch_size, average=average))
    penalty = named_penalty(length_penalty, alpha)
    if average is not None and step is not None:
        raise ValueError(f"--average takes the last checkpoints, got --step {step} too; drop one of them")
    for name, file in (("--src", src), ("--mt", mt)):
        check_file(file, "a text file")
        if output is not None and output.exists() and output.samefile(file):
            raise ValueError(f"--output must be another file than {name}, got {output} for both; name another")
    _check_texts(src, mt)
    from anymax.training.tasks.post_editing.editing import open_post_editor

    editor = open_post_editor([run, *ensemble], which="best" if step is None else step, average=average)
    options: dict[str, Any] = given(beam=beam, length_penalty=penalty, max_length=max_length, batch_size=batch_size)
    editor = replace(editor, search=replace(editor.search, **options))
    if output is None:
        _correct(editor, src, mt, sys.stdout)
        return 0
    with open(output, "w", encoding="utf-8") as written:
        _correct(editor, src, mt, written)
    say(f"Wrote {output}")
    return 0


def _correct(editor: OpenedPostEditor, src: Path, mt: Path, output: TextIO) -> None:
    """Correct some batches of lines at a time, so that texts of any length are never held."""
    lines, first = zip(open_lines(src), open_lines(mt), strict=True), 1
    with Announcer() as announce:
        while some := list(islice(lines, READ_BATCHES * editor.search.batch_size)):
            announce(f"correcting: lines {first:,} to {first + len(some) - 1:,}")
            sources, translations = ([pair[side] for pair in some] for side in (0, 1))
            corrections = editor.correct(sources, translations, first_line=first)
            announce.close()
            if output is sys.stdout and sys.stdout.isatty():
                Console().print(_beside(translations, corrections, first))
            else:
                output.writelines(f"{line}\n" for line in corrections)
                output.flush()
            first += len(some)


def _beside(translations: list[str], corrections: list[str], first: int) -> Table:
    """Translations beside their corrections, with colours for what was changed."""
    table = Table("line", "translation", "corrected", show_lines=True)
    for number, (before, after) in enumerate(zip(translations, corrections, strict=True), first):
        table.add_row(str(number), *_marked(before.split(), after.split()))
    return table


def _marked(before: list[str], after: list[str]) -> tuple[Text, Text]:
    """Words of both, those that only one has in the colour of what was removed or added."""
    sides = Text(), Text()
    for kind, start, end, other_start, other_end in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        is_same = kind == "equal"
        sides[0].append(" ".join([*before[start:end], ""]), "" if is_same else REMOVED)
        sides[1].append(" ".join([*after[other_start:other_end], ""]), "" if is_same else ADDED)
    return sides


def _check_texts(src: Path, mt: Path) -> None:
    """Refuse texts of different lengths and lines without words before any work."""
    counts = [0, 0]
    for number, lines in enumerate(zip_longest(open_lines(src), open_lines(mt)), 1):
        for side, (file, line) in enumerate(zip((src, mt), lines, strict=True)):
            counts[side] += line is not None
            if line is not None and not line.strip():
                raise ValueError(
                    f"{file} line {number} must hold words, got an empty line; leave the line out of both texts"
                )
    if counts[0] != counts[1]:
        raise ValueError(
            f"{src} and {mt} must have as many lines as each other, got {counts[0]:,} and {counts[1]:,}; give a "
            "translation for every sentence"
        )
