"""`anymax translate RUN [FILE]`: translate lines with a trained run, or with several as one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from tyro.conf import Positional, arg

from anymax.checks import check_counts, given
from anymax.cli.console import complain
from anymax.cli.progress import Announcer, say
from anymax.data.text.lines import open_lines
from anymax.decoding.penalties import PenaltyName, named_penalty
from anymax.files import check_file

if TYPE_CHECKING:
    from anymax.decoding import Hypothesis
    from anymax.training.tasks.translation.translating import OpenedTranslator

# Batches that are read before they are translated, so that sentences of about one length go together.
READ_BATCHES = 16
PROMPT = "> "
_OfRun = arg(help_behavior_hint="(default: that of the run's config)")
_Best = arg(metavar="STEP", help_behavior_hint="(default: the best)")
_Stdin = arg(metavar="FILE", help_behavior_hint="(default: standard input, or line by line on a terminal)")


def translate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    file: Annotated[Positional[Path | None], _Stdin] = None,
    *,
    output: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: standard output)")] = None,
    ensemble: Annotated[tuple[Path, ...], arg(metavar="RUN ...", help_behavior_hint="")] = (),
    average: Annotated[int | None, arg(metavar="NUMBER", help_behavior_hint="(default: one checkpoint)")] = None,
    step: Annotated[int | None, _Best] = None,
    beam: Annotated[int | None, _OfRun] = None,
    length_penalty: Annotated[PenaltyName | None, _OfRun] = None,
    alpha: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(default: 0.6)")] = None,
    max_length: Annotated[int | None, _OfRun] = None,
    batch_size: Annotated[int | None, _OfRun] = None,
    n_best: int = 1,
    scores: bool = False,
) -> int:
    """Translate lines: a line of output for each line of input, which is empty where that is.

    A run learned from lines as they are written gives such lines; one that learned from words separated by spaces wants
    its input in words too, and gives words.

    With --scores or --n-best, columns separated by tabs: the number of the line, the rank of the translation, its score
    under the length penalty, its log-probability, and the translation.

    Args:
        run: the folder of the run.
        file: the text to translate, UTF-8, plain or gzip.
        output: where translations go.
        ensemble: further runs with the same units; the probabilities of all are averaged.
        average: take the mean of the weights of this many checkpoints, the last ones of each run.
        step: the checkpoint to use.
        beam: beginnings that are kept at every step; 1 takes the likeliest word each time.
        length_penalty: what scores are divided by: nothing, the length, or GNMT's power of it.
        alpha: of --length-penalty gnmt.
        max_length: the most words or subwords of a translation.
        batch_size: sentences that are translated at a time.
        n_best: translations of each line.
        scores: print scores too.
    """
    check_counts(n_best=n_best, **given(beam=beam, max_length=max_length, batch_size=batch_size, average=average))
    penalty = named_penalty(length_penalty, alpha)
    if average is not None and step is not None:
        raise ValueError(f"--average takes the last checkpoints, got --step {step} too; drop one of them")
    if file is not None:
        check_file(file, "a text file")
        if output is not None and output.exists() and output.samefile(file):
            raise ValueError(f"--output must be another file than the text, got {output} for both; name another")
    from anymax.training.tasks.translation.translating import open_translator

    translator = open_translator([run, *ensemble], which="best" if step is None else step, average=average)
    options: dict[str, Any] = given(beam=beam, length_penalty=penalty, max_length=max_length, batch_size=batch_size)
    search = replace(translator.search, **options)
    if n_best > search.beam:
        raise ValueError(f"--n-best must be at most the beam, {search.beam}, got {n_best}; give --beam {n_best}")
    translator = replace(translator, search=search)
    has_scores = scores or n_best > 1
    if file is None and output is None and sys.stdin.isatty():
        return _talk(translator, n_best, has_scores)
    lines = _standard_input() if file is None else open_lines(file)
    if output is None:
        _translate(translator, lines, sys.stdout, n_best, has_scores)
        return 0
    with open(output, "w", encoding="utf-8") as written:
        _translate(translator, lines, written, n_best, has_scores)
    say(f"Wrote {output}")
    return 0


def _translate(
    translator: OpenedTranslator, lines: Iterator[str], output: TextIO, n_best: int, has_scores: bool
) -> None:
    """Translate some batches of lines at a time, so that a text of any length is never held."""
    first = 1
    with Announcer() as announce:
        while some := list(islice(lines, READ_BATCHES * translator.search.batch_size)):
            announce(f"translating: lines {first:,} to {first + len(some) - 1:,}")
            found = translator.search_lines(some, num_best=n_best, first_line=first)
            announce.close()
            for number, ranked in enumerate(found, first):
                output.writelines(f"{line}\n" for line in _shown(translator, number, ranked, has_scores))
            output.flush()
            first += len(some)


def _talk(translator: OpenedTranslator, n_best: int, has_scores: bool) -> int:
    """Translate what is typed, line by line, until the input ends."""
    say("Type a sentence to translate; Ctrl-D ends.")
    number = 0
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            say("")
            return 0
        number += 1
        try:
            (ranked,) = translator.search_lines([line], num_best=n_best, first_line=number)
        except ValueError as error:
            complain(error)
            continue
        for shown in _shown(translator, number, ranked, has_scores):
            say(shown)


def _shown(translator: OpenedTranslator, number: int, ranked: Sequence[Hypothesis], has_scores: bool) -> Iterator[str]:
    if not has_scores:
        yield translator.text(ranked[0]) if ranked else ""
        return
    for rank, each in enumerate(ranked, 1):
        yield f"{number}\t{rank}\t{each.score:.4f}\t{each.log_prob:.4f}\t{translator.text(each)}"


def _standard_input() -> Iterator[str]:
    """The lines of standard input, which must be UTF-8."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise ValueError(f"standard input must be UTF-8, but its line {number} is not ({error.reason})") from None
