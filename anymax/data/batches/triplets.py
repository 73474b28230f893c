"""Batches of triplets as a post-editor reads them, made of pairs whose source has "[SEP]" inside.

Shapes: B rows, S pieces of the longest sentence and translation together, T pieces of the longest correction.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from anymax.data.batches.pairs import PairBatch
from anymax.data.units.word_pieces import WordPieces


class EditInputs(NamedTuple):
    """Sentences and their translations."""

    source: Tensor
    """The pieces of the sentence, then those of its translation, int64 (B, S), "[PAD]" behind them."""
    mask: Tensor
    """Where a piece stands, bool (B, S)."""
    segments: Tensor
    """0 for the sentence and for padding, 1 for the translation, int64 (B, S)."""
    positions: Tensor
    """The place of a piece in its segment, from 0, int64 (B, S)."""


class TripletBatch(NamedTuple):
    """Sentences, their translations, and those corrected."""

    inputs: EditInputs
    ids: Tensor
    """What the decoder reads, int64 (B, T): "<S>", then the correction."""
    target: Tensor
    """What it predicts, int64 (B, T): the correction, then "<T>"; -100, which losses ignore, behind it."""


def triplets_of(batch: PairBatch, pieces: WordPieces, *, max_positions: int) -> TripletBatch:
    """Triplets of a batch of pairs.

    Args:
        max_positions: those of the model; places of padding stay below.
    """
    ids = batch.ids.clone()
    ids[:, 0] = pieces.first
    inputs = edit_inputs(batch.source, batch.source_mask, pieces, max_positions=max_positions)
    return TripletBatch(inputs, ids, batch.target)


def edit_inputs(source: Tensor, mask: Tensor, pieces: WordPieces, *, max_positions: int) -> EditInputs:
    """Rows of a sentence, "[SEP]", its translation and "<T>" without those two, each part from position 0.

    Args:
        source, mask: (B, S + 2), as in a PairBatch.
    """
    is_sep = source == pieces.sep
    # A row of a rank that has none of a batch has no separator either.
    middle_B1 = torch.where(is_sep.any(1), is_sep.int().argmax(1), source.shape[1])[:, None]
    place_BS = torch.arange(max(1, source.shape[1] - 2), device=source.device).expand(source.shape[0], -1)
    is_translation = place_BS >= middle_B1
    stands = place_BS < (mask.sum(1, keepdim=True) - 2).clamp(min=1)
    found = source.gather(1, (place_BS + is_translation).clamp(max=source.shape[1] - 1))
    positions = place_BS - is_translation * middle_B1
    return EditInputs(
        found.masked_fill(~stands, pieces.pad),
        stands,
        (is_translation & stands).long(),
        positions.clamp(max=max_positions - 1),
    )
