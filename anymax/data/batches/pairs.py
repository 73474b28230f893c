"""Batches of sentences and their translations, of about one length, as many as a budget of tokens allows.

Shapes: B rows, S tokens of the longest source, T tokens of the longest target.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final, get_args

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.data.batches.batches import IGNORE_INDEX, Epochs, draw_order
from anymax.data.batches.config import Count
from anymax.data.batches.sentences import numbers
from anymax.data.parallel.encoded import EncodedPairs
from anymax.distributed.ranks import share

# What one row adds to a batch whose longest sentences of source and target have these lengths.
WIDTHS: dict[Count, Callable[[int, int], int]] = {
    "target": lambda source, target: target,
    "source": lambda source, target: source,
    "both": lambda source, target: source + target,
    "padded": max,
}


class PairBatch(NamedTuple):
    """Sentences and their translations.

    Example:
        >>> from anymax.data import PairBatches, ParallelText, prepare_parallel
        >>> prepared = prepare_parallel(ParallelText("copy").toy(), cache="cache")
        >>> batch = next(iter(PairBatches(prepared.split("train"), max_tokens=40, seed=1, eos=0)))
        >>> batch.ids[:, 0].unique().tolist(), batch.ids.shape == batch.target.shape
        ([0], True)
    """

    source: Tensor
    """What is translated, int64 (B, S), "<eos>" at the end of a sentence and behind it."""
    source_mask: Tensor
    """Where a token of the sentence stands, its "<eos>" included, bool (B, S)."""
    ids: Tensor
    """What the decoder reads, int64 (B, T): "<eos>", then the translation; "<eos>" behind it."""
    target: Tensor
    """What it predicts, int64 (B, T): the translation, then "<eos>"; -100, which losses ignore, behind it."""


@final
class PairBatches(Epochs[PairBatch]):
    """Epochs of pairs of about one length.

    Rows are sorted by target length, and among those of one by source length, up and down in turn. Pairs of the same
    two lengths are drawn anew into batches in each epoch, and the batches come in a new order. Every target token is
    predicted once in an epoch. A pair that is longer than `max_tokens` makes a batch of its own. A rank for which no
    row is left gets one without targets.

    Args:
        pairs: the pairs of a split, as `PreparedParallel.split` gives them.
        max_tokens: the most tokens of a batch over all ranks, padding included, as `count` says.
        seed: decides both orders in every epoch; None keeps rows and batches by length, then by place in the text.
        eos: the id of "<eos>" in the target, and in the source unless `source_eos` is given.
        count: the tokens of a batch: "target" or "source", its rows times the longest sentence of that side; "both",
            the sum of the two; "padded", its rows times the longest sentence of either side, as fairseq and OpenNMT
            count.
        source_eos: the id of "<eos>" in the source.
        rank, world_size: which share of each batch to give, of how many.

    Example:
        >>> from anymax.data import PairBatches, ParallelText, prepare_parallel
        >>> prepared = prepare_parallel(ParallelText("copy").toy(), cache="cache")
        >>> eos = prepared.target_units.lexicon.eos
        >>> batches = PairBatches(prepared.split("train"), max_tokens=40, seed=1, eos=eos)
        >>> max(batch.ids.numel() for batch in batches)
        40
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        max_tokens: int,
        *,
        seed: int | None,
        eos: int,
        rank: int = 0,
        world_size: int = 1,
        count: Count = "padded",
        source_eos: int | None = None,
    ) -> None:
        super().__init__(rank=rank, world_size=world_size)
        check_counts(max_tokens=max_tokens)
        if count not in get_args(Count):
            raise ValueError(f"count must be one of {', '.join(get_args(Count))}, got {count!r}")
        if not len(pairs):
            raise ValueError("pairs must be at least one, got none; check the limits on their lengths")
        self.pairs = pairs
        self.max_tokens = max_tokens
        self.seed = seed
        self.eos = eos
        self.source_eos = eos if source_eos is None else source_eos
        self.count: Count = count
        self._keys = _keys(pairs)
        self._edges = self._find_edges()
        self._rows = lru_cache(maxsize=1)(self._draw_rows)
        self._order = lru_cache(maxsize=1)(self._draw_batches)

    def length(self, epoch: int) -> int:
        return len(self._edges) - 1

    def _batch(self, position: int) -> PairBatch:
        batch = int(self._order(self.epoch)[position])
        rows = self._rows(self.epoch)[self._edges[batch] : self._edges[batch + 1]]
        # As wide as the longest row of all ranks.
        widths = int(self.pairs.source_lengths[rows].max()), int(self.pairs.target_lengths[rows].max())
        first, end = share(len(rows), self.rank, self.world_size)
        return gather(self.pairs, rows[first:end].tolist(), *widths, eos=self.eos, source_eos=self.source_eos)

    def _find_edges(self) -> list[int]:
        """Where batches begin and end among the sorted rows."""
        order = self._keys.argsort(stable=True)
        width = WIDTHS[self.count]
        sources, targets = (
            numbers(lengths[order]) for lengths in (self.pairs.source_lengths, self.pairs.target_lengths)
        )
        edges, most_source, most_target = [0], 0, 0
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            most_source, most_target = max(most_source, source), max(most_target, target)
            if row > edges[-1] and (row - edges[-1] + 1) * width(most_source, most_target) > self.max_tokens:
                edges.append(row)
                most_source, most_target = source, target
        return [*edges, len(order)]

    def _draw_rows(self, epoch: int) -> Tensor:
        """All rows by length, those of the same lengths as drawn, so that the edges of batches hold in every epoch."""
        drawn = draw_order(len(self.pairs), self.seed, epoch, "pairs")
        return drawn[self._keys[drawn].argsort(stable=True)]

    def _draw_batches(self, epoch: int) -> Tensor:
        return draw_order(self.length(epoch), self.seed, epoch, "batches of pairs")

    def _made_of(self) -> dict[str, Any]:
        return {
            "num_pairs": len(self.pairs),
            "source_tokens": int(self.pairs.source_lengths.sum()),
            "target_tokens": int(self.pairs.target_lengths.sum()),
            "eos": [self.source_eos, self.eos],
            "max_tokens": self.max_tokens,
            "count": self.count,
            "seed": self.seed,
        }


def gather(
    pairs: EncodedPairs, rows: Sequence[int], source_width: int, target_width: int, *, eos: int, source_eos: int
) -> PairBatch:
    """Pairs by their numbers, in rows of the given widths; without any, one row that predicts nothing."""
    num_rows = max(len(rows), 1)
    source = torch.full((num_rows, source_width), source_eos)
    source_mask = torch.zeros(num_rows, source_width, dtype=torch.bool)
    ids = torch.full((num_rows, target_width), eos)
    target = torch.full((num_rows, target_width), IGNORE_INDEX)
    # The row of a rank that has none still reads an "<eos>".
    source_mask[:, 0] = True
    for row, number in enumerate(rows):
        sentence, translation = pairs.source(number), pairs.target(number)
        source[row, : len(sentence)] = sentence
        source_mask[row, : len(sentence)] = True
        ids[row, 1 : len(translation)] = translation[:-1]
        target[row, : len(translation)] = translation
    return PairBatch(source, source_mask, ids, target)


def _keys(pairs: EncodedPairs) -> Tensor:
    """A number for each pair of lengths, by which rows are sorted.

    Source lengths rise within one target length and fall within the next, so that a batch that reaches from one into
    the next holds neighbours.
    """
    most = int(pairs.source_lengths.max())
    is_odd = pairs.target_lengths % 2 == 1
    return pairs.target_lengths * (most + 1) + torch.where(is_odd, most - pairs.source_lengths, pairs.source_lengths)
