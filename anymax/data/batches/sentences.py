"""Batches of whole sentences: rows of about one length, as many as a budget of tokens allows."""

from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.data.batches.batches import Batches, Spans, draw_order

# How many ids are looked at together when sentences are searched.
SEARCHED = 1 << 20


@final
class SentenceBatches(Batches):
    """Whole sentences, of about one length in a batch, as many as a budget of tokens allows.

    A sentence ends with "<eos>". Sentences of one length are drawn anew into batches in each epoch, and the batches
    come in a new order. A sentence longer than `block` makes a row, one longer than `max_tokens` a batch of its own.

    Every row takes 16 bytes of memory, for its end and its place in the order, and some 50 while an order is drawn.

    Args:
        max_tokens: the most tokens of a batch over all ranks, padding included.
        block: join neighbouring sentences into rows of at most this many tokens; None gives each a row.
        seed: decides both orders in every epoch; None keeps rows and batches by length, then by place in the text.
        tokens, eos, rank, world_size, read: as in `Batches`.

    Example:
        >>> from anymax.data import SentenceBatches
        >>> tokens = torch.tensor([5, 6, 0, 7, 0, 8, 9, 0])
        >>> for batch in SentenceBatches(tokens, max_tokens=6, seed=None, eos=0):
        ...     print(batch.target.tolist())
        [[7, 0, -100], [5, 6, 0]]
        [[8, 9, 0]]
    """

    def __init__(
        self,
        tokens: Tensor,
        max_tokens: int,
        *,
        seed: int | None,
        eos: int,
        block: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        read: Tensor | None = None,
    ) -> None:
        super().__init__(tokens, eos=eos, rank=rank, world_size=world_size, read=read)
        check_counts(max_tokens=max_tokens, block=1 if block is None else block)
        self.max_tokens = max_tokens
        self.block = block
        self.seed = seed
        ends = sentence_ends(tokens, eos)
        self._ends = ends if block is None else _joined(ends, block)
        self._edges = _budget_edges(self._lengths().sort().values, max_tokens)
        self._rows = lru_cache(maxsize=1)(self._draw_rows)
        self._order = lru_cache(maxsize=1)(self._draw_batches)

    def length(self, epoch: int) -> int:
        return len(self._edges) - 1

    def _spans(self, position: int) -> Spans:
        batch = int(self._order(self.epoch)[position])
        chosen = self._rows(self.epoch)[self._edges[batch] : self._edges[batch + 1]]
        return Spans(torch.where(chosen > 0, self._ends[chosen - 1], 0), self._ends[chosen])

    def _lengths(self) -> Tensor:
        return torch.diff(self._ends, prepend=torch.zeros(1, dtype=torch.int64)).int()

    def _draw_rows(self, epoch: int) -> Tensor:
        """All rows by length, those of one length as drawn, so that the edges of batches hold in every epoch."""
        drawn = draw_order(len(self._ends), self.seed, epoch)
        return drawn[self._lengths()[drawn].argsort(stable=True)]

    def _draw_batches(self, epoch: int) -> Tensor:
        return draw_order(self.length(epoch), self.seed, epoch, "batches")

    def _settings(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "block": self.block, "seed": self.seed}


def sentence_ends(tokens: Tensor, eos: int) -> Tensor:
    """Where each sentence ends in the stream, its "<eos>" included; what follows the last one is a sentence too."""
    chunks = tokens.split(SEARCHED)
    found = [(chunk == eos).nonzero().squeeze(1) + 1 + number * SEARCHED for number, chunk in enumerate(chunks)]
    ends = torch.cat(found)
    if len(ends) and ends[-1] == len(tokens):
        return ends
    return torch.cat([ends, torch.tensor([len(tokens)])])


def _joined(ends: Tensor, block: int) -> Tensor:
    """The ends of rows that take in as many neighbouring sentences as fit."""
    joined, start, last = array("q"), 0, 0
    for end in numbers(ends):
        if end - start > block and last > start:
            joined.append(last)
            start = last
        last = end
    joined.append(last)
    return torch.tensor(joined)


def _budget_edges(lengths: Tensor, max_tokens: int) -> list[int]:
    """Where batches begin and end among rows sorted by rising length."""
    edges = [0]
    for row, length in enumerate(numbers(lengths)):
        if row > edges[-1] and (row - edges[-1] + 1) * length > max_tokens:
            edges.append(row)
    return [*edges, len(lengths)]


def numbers(values: Tensor) -> Iterator[int]:
    """The values as Python's numbers, of which a list would take several times the memory of the tensor."""
    for part in values.split(SEARCHED):
        yield from part.tolist()
