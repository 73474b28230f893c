"""Sentences with hidden pieces and what the model takes them for, of a split or your own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anymax.data.batches.batches import IGNORE_INDEX
from anymax.data.batches.masked import MaskedBatch
from anymax.data.prepared.prepared import Announce
from anymax.data.text.corpus import Split
from anymax.data.text.lines import check_lines
from anymax.data.units.word_pieces import INSIDE, MASK, WordPieces
from anymax.display import Line, Marked, Texts
from anymax.models.language_model.model import evaluating

if TYPE_CHECKING:
    from anymax.training.tasks.masked_language_modeling.task import MaskedLanguageModelingTask


def hidden_pieces(
    task: MaskedLanguageModelingTask, split: Split, *, limit: int, seed: int, announce: Announce
) -> Texts:
    """Sentences of a split as the model reads them, as they are, and with its guesses in the place of hidden pieces."""
    lines: list[Line] = []
    for row in task.drawn_rows(split, limit, seed):
        lines += _shown(task, row)
        announce(f"guessing hidden pieces of {split}: {len(lines):,} sentences")
    return Texts(
        "Hidden pieces and what the model takes them for",
        ("read", "text", "guessed"),
        tuple(lines),
        score="% right",
        source=f"{split} split, seed {seed}",
        note="Marked: what is hidden, and guesses that are wrong. Some hidden pieces have another piece in their place "
        "instead of [MASK], or stay as they are. The model reads the lines around a sentence too, as in training.",
    )


def own_masks(task: MaskedLanguageModelingTask, lines: Sequence[str], *, announce: Announce) -> Texts:
    """Your own lines with the likeliest piece in the place of every [MASK], each read by itself."""
    check_lines(lines)
    pieces, shown = task.prepared.pieces, list[Line]()
    encoded = [_encoded(task, number, line) for number, line in enumerate(lines, 1)]
    announce(f"guessing masks of {len(lines):,} lines")
    for line, ids in zip(lines, encoded, strict=True):
        is_hidden = ids == pieces.mask
        filled = ids.masked_scatter(is_hidden, _guessed(task, ids, torch.zeros_like(ids), is_hidden))
        shown.append(Line((line, _marked(pieces, filled[1:-1], is_hidden[1:-1]))))
    return Texts(
        "Your lines with the likeliest piece for every mask",
        ("text", "guessed"),
        tuple(shown),
        note="Every mask is guessed by itself, the others hidden. Marked: the guesses.",
    )


def _shown(task: MaskedLanguageModelingTask, row: MaskedBatch) -> list[Line]:
    """The first sentence of a row in which something is hidden; none where there is no such."""
    pieces, ids, target = task.prepared.pieces, row.ids[0], row.target[0]
    is_hidden = target != IGNORE_INDEX
    if not is_hidden.any():
        return []
    text, guessed = ids.where(~is_hidden, target), ids.clone()
    guessed[is_hidden] = _guessed(task, ids, row.segments[0], is_hidden)
    first = int(is_hidden.nonzero()[0])
    marks = [0, *(ids == pieces.sep).nonzero().squeeze(1).tolist(), len(ids)]
    here = slice(max(mark for mark in marks if mark < first) + 1, min(mark for mark in marks if mark > first))
    is_wrong = is_hidden & (guessed != text)
    right = 1 - float(is_wrong[here].sum() / is_hidden[here].sum())
    read = _marked(pieces, ids[here], is_hidden[here])
    whole = _marked(pieces, text[here], is_hidden[here])
    return [Line((read, whole, _marked(pieces, guessed[here], is_wrong[here])), 100 * right)]


@torch.no_grad()
def _guessed(task: MaskedLanguageModelingTask, ids: Tensor, segments: Tensor, is_hidden: Tensor) -> Tensor:
    """The likeliest piece at every place where one is hidden."""
    device = task.ranks.device
    with evaluating(task.model):
        mask = torch.ones_like(ids, dtype=torch.bool)
        hidden = task.model.encode(ids[None].to(device), mask[None].to(device), segments[None].to(device))
        return task.model.prediction_head.topk(hidden[0, is_hidden.to(device)], 1).words[:, 0].cpu()


def _encoded(task: MaskedLanguageModelingTask, number: int, line: str) -> Tensor:
    """The ids of a line with "[CLS]" before and "[SEP]" behind it."""
    pieces, most = task.prepared.pieces, task.config.model.max_positions
    ids = [pieces.cls, *pieces.encode(line, specials=True), pieces.sep]
    if pieces.mask not in ids:
        raise ValueError(f"line {number} must have a {MASK} for the model to guess, got {line[:64]!r}")
    if len(ids) > most:
        raise ValueError(
            f"line {number} must have at most the model's {most} positions, got {len(ids)} word pieces "
            "with its two special ones; cut it into sentences"
        )
    return torch.tensor(ids)


def _marked(pieces: WordPieces, ids: Tensor, is_marked: Tensor) -> Marked:
    """Pieces as text, some of them marked; a piece inside a word stands directly behind the one before."""
    parts: list[tuple[str, bool]] = []
    for piece, marks in zip(pieces.pieces(ids), is_marked.tolist(), strict=True):
        is_inside = piece.startswith(INSIDE) and len(piece) > len(INSIDE)
        if parts and not is_inside:
            parts.append((" ", False))
        parts.append((piece.removeprefix(INSIDE) if is_inside else piece, marks))
    return Marked(tuple(parts))
