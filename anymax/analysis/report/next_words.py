"""What a language model predicts next, measured: the likeliest words in a few contexts, and what its output layer does.

Shapes: C contexts, D the width of hidden vectors, V words.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.analysis.report.outputs import (
    Candidate,
    Curve,
    OfOutput,
    Text,
    candidates,
    checked,
    measure_output,
    measure_transform,
)
from anymax.checks import check_counts
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.evaluation.perplexity.predicted import hidden_states
from anymax.evaluation.perplexity.scoring import Windows
from anymax.models.language_model.model import evaluating
from anymax.training.tasks.language_modeling.task import LanguageModelingTask

# Of the split, read to draw contexts from and to measure the output layer on.
TOKENS = 4096
# Words before the one that is predicted.
BEFORE = 12
LIKELIEST = 12


@dataclass(frozen=True)
class Context:
    """A place in a text and the prediction there.

    Args:
        position: of the predicted token in the split, from 0.
        before: the last tokens that the model has read.
        follows: the token that follows in the text.
        prob: its probability.
        rank: its place among all by probability, from 1.
        likeliest: the likeliest tokens, best first.
    """

    position: int
    before: tuple[str, ...]
    follows: str
    prob: float
    rank: int
    likeliest: tuple[Candidate, ...]


@dataclass(frozen=True)
class NextWords:
    """What a model predicts next in a stretch of a split.

    Args:
        output: the kind of output layer.
        start: where the stretch begins.
        num_tokens: how long it is.
        contexts: drawn from it.
        of_output: what is special to the output layer; None where nothing is.
        transform: of the scores of the output layer; None where there is none.
    """

    split: Split
    seed: int
    output: str
    start: int
    num_tokens: int
    contexts: tuple[Context, ...]
    of_output: OfOutput | None
    transform: Curve | None


def measure_next_words(
    task: LanguageModelingTask, split: Split, *, contexts: int = 8, seed: int = 1, announce: Announce
) -> NextWords:
    """Read a stretch of a split as evaluation does, and look at the predictions for it.

    Args:
        contexts: how many to draw; fewer where the stretch has fewer.
        seed: decides the stretch and the contexts.
    """
    check_counts(contexts=contexts)
    drawing = random.Random(seed)
    stretch = _draw_stretch(task, split, drawing)
    chosen = _draw_contexts(stretch.read_from, contexts, drawing)
    output = task.model.output
    with torch.no_grad(), evaluating(task.model):
        text = _read(task, stretch, announce)
        announce(f"looking at the output layer over {len(stretch.tokens):,} tokens of {split}")
        return NextWords(
            split,
            seed,
            type(output).__name__,
            stretch.start,
            len(stretch.tokens),
            tuple(_context(task, stretch, text, place) for place in chosen),
            measure_output(output, text, chosen),
            measure_transform(output, text),
        )


class _Stretch(NamedTuple):
    """Consecutive tokens of a split, as the model predicts and as it reads them.

    Args:
        read_from: for every token, the first one of the stretch that the model has read before it.
    """

    start: int
    tokens: Tensor
    read: Tensor
    windows: Windows
    read_from: list[int]


def _draw_stretch(task: LanguageModelingTask, split: Split, drawing: random.Random) -> _Stretch:
    """The whole split where that is short; else what begins with a line, if one begins near the place that is drawn."""
    tokens, read, eos = task.prepared.split(split).tokens(), task.prepared.as_read(split).tokens(), _eos(task)
    start = drawing.randrange(max(1, len(tokens) - TOKENS + 1))
    if len(tokens) > TOKENS:
        ends = (tokens[start : start + TOKENS // 2] == eos).nonzero()
        start += int(ends[0, 0]) + 1 if len(ends) else 0
    tokens, read = tokens[start : start + TOKENS], read[start : start + TOKENS]
    windows = replace(task.windows(), rows=1)
    return _Stretch(start, tokens, read, windows, _read_from(task, windows, tokens))


def _read_from(task: LanguageModelingTask, windows: Windows, tokens: Tensor) -> list[int]:
    if task.model.carries_state:
        return [0] * len(tokens)
    # The token before a window is the first that is read in it.
    over = windows.over(tokens, eos=_eos(task))
    return [max(0, window.start - 1) for window in over for _ in range(window.scored, window.end)]


def _draw_contexts(read_from: Sequence[int], number: int, drawing: random.Random) -> list[int]:
    """Places before which the model has read some words, or any where there are too few of those."""
    places = [place for place, first in enumerate(read_from) if place - first >= BEFORE]
    if len(places) < number:
        places = list(range(len(read_from)))
    return sorted(drawing.sample(places, min(number, len(places))))


def _read(task: LanguageModelingTask, stretch: _Stretch, announce: Announce) -> Text:
    def progress(done: int, total: int) -> None:
        announce(f"reading: {done:,} of {total:,} tokens")

    states = hidden_states(
        task.model, stretch.tokens, stretch.windows, eos=_eos(task), read=stretch.read, progress=progress
    )
    hidden_ND = torch.cat([span.hidden for span in states])
    return Text(stretch.tokens.long().to(hidden_ND.device), hidden_ND, task.prepared.lexicon)


def _context(task: LanguageModelingTask, stretch: _Stretch, text: Text, place: int) -> Context:
    log_probs_V = checked(task.model.output.log_probs(text.hidden_ND[place]))
    following = text.tokens_N[place]
    spelled = task.prepared.spelled
    as_read = text.lexicon if spelled is None else spelled.lexicon
    before = stretch.read[max(stretch.read_from[place], place - BEFORE) : place]
    return Context(
        position=stretch.start + place,
        before=tuple(as_read.decode(before)),
        follows=text.lexicon.words[following],
        prob=float(log_probs_V[following].double().exp()),
        rank=int((log_probs_V > log_probs_V[following]).sum()) + 1,
        likeliest=candidates(log_probs_V, text.lexicon, LIKELIEST),
    )


def _eos(task: LanguageModelingTask) -> int:
    return task.prepared.lexicon.eos
