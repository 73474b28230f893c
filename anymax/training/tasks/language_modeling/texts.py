"""Texts that a language model continues: places of a split, or your own beginnings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.data.text.lines import check_lines
from anymax.data.text.words import split_line
from anymax.data.units.units import Units
from anymax.decoding import sample
from anymax.display import Line, Texts
from anymax.training.tasks.language_modeling.task import spell

if TYPE_CHECKING:
    from anymax.training.tasks.language_modeling.task import LanguageModelingTask

# Words of a context, and the most tokens of what follows it.
CONTEXT, MOST_TOKENS = 20, 40
# Of what continues your own lines, which come without one.
SEED = 1
# In place of a text; a sparse output may leave all other words without a probability.
NOTHING = '(only "<unk>" and the end of the line have a probability)'
NOTE = (
    'Sampled word by word with the probabilities of the model, to the end of a line or {} tokens; "<unk>" is left out.'
)


def continuations(task: LanguageModelingTask, split: Split, *, limit: int, seed: int, announce: Announce) -> Texts:
    """Some words of a split at places that the seed draws, how the text continues there, and how the model does."""
    tokens, read = task.prepared.split(split).tokens(), task.prepared.as_read(split).tokens()
    units, eos = task.units_read(), task.prepared.lexicon.eos
    places = _places(tokens, task.prepared.ends_word, eos, limit, seed)
    written = _continued(task, [read[start:end].tolist() for start, end in places], seed, announce)
    lines = []
    for (start, end), text in zip(places, written, strict=True):
        follows = _first_line(read[end : end + MOST_TOKENS].tolist(), eos)
        lines.append(Line((units.text(read[start:end]), units.text(follows), text)))
    return Texts(
        "Texts that the model continues",
        ("context", "text", "model"),
        tuple(lines),
        source=f"{split} split, seed {seed}",
        note=f"The model reads the context alone. {NOTE.format(MOST_TOKENS)}",
    )


def own_continuations(task: LanguageModelingTask, lines: Sequence[str], *, announce: Announce) -> Texts:
    """How the model continues your own lines."""
    check_lines(lines)
    units, spelled = task.prepared.units, task.prepared.spelled
    if spelled is None:
        written = _continued(task, [units.encode_line(line) for line in lines], SEED, announce)
    else:
        words = chain.from_iterable(split_line(line, units.splitting) for line in lines)
        lexicon = units.lexicon.extended(words)
        spell(task.model, lexicon)
        read = Units(lexicon, lexicon, splitting=units.splitting)
        try:
            written = _continued(task, [read.encode_line(line) for line in lines], SEED, announce)
        finally:
            spell(task.model, spelled.lexicon)
    return Texts(
        "Your texts as the model continues them",
        ("beginning", "model"),
        tuple(Line(pair) for pair in zip(lines, written, strict=True)),
        source=f"seed {SEED}",
        note=NOTE.format(MOST_TOKENS),
    )


def _places(tokens: Tensor, ends_word: bytes, eos: int, limit: int, seed: int) -> list[tuple[int, int]]:
    """Where contexts begin and end: between words of a line, so that something follows in the text."""
    is_last = torch.tensor(list(ends_word), dtype=torch.bool)[tokens.long()]
    ends = is_last.nonzero().squeeze(1) + 1
    first = torch.cat([ends.new_zeros(1), ends])
    # What follows the last whole word may be cut.
    first = first[first < len(tokens)]
    inside = (tokens[first[1:]] != eos).nonzero().squeeze(1) + 1
    chosen = sorted(random.Random(seed).sample(inside.tolist(), min(limit, len(inside))))
    return [(int(first[max(0, word - CONTEXT)]), int(first[word])) for word in chosen]


def _continued(
    task: LanguageModelingTask, contexts: Sequence[Sequence[int]], seed: int, announce: Announce
) -> list[str]:
    lexicon, device = task.prepared.lexicon, task.ranks.device
    generator, written = torch.Generator().manual_seed(seed), list[str]()
    for number, context in enumerate(contexts, 1):
        announce(f"continuing texts: {number:,} of {len(contexts):,}")
        # A model has read the end of the line before, whatever it continues.
        prompt = torch.tensor([[lexicon.eos, *context]], device=device)
        ((found,),) = sample(
            task.model,
            prompt,
            eos=lexicon.eos,
            max_length=MOST_TOKENS,
            min_length=1,
            banned=[lexicon.unk],
            generator=generator,
        )
        written.append(task.prepared.units.text(_first_line(found.words, lexicon.eos)) or NOTHING)
    return written


def _first_line(ids: Sequence[int], eos: int) -> Sequence[int]:
    return ids[: ids.index(eos)] if eos in ids else ids
