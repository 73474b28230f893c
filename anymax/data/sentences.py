"""Batches of whole sentences: rows of about one length, as many as a budget of tokens allows."""

from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

from anymax.data.batches import Batches, Spans, draw_order
from anymax.mappings.arguments import check_positive

# How many ids are looked at together when sentences are searched.
SEARCHED = 1 << 22


@final
class SentenceBatches(Batches):
    """Whole sentences, of about one length in a batch, as many as a budget of tokens allows.

    A sentence ends with "<eos>". Sentences of one length are drawn anew into batches in each epoch, and the batches
    come in a new order. A sentence longer than `block` makes a row, one longer than `max_tokens` a batch of its own.

    Args:
        max_tokens: the most tokens of a batch over all ranks, padding included.
        block: join neighbouring sentences into rows of at most this many tokens; None gives each a row.
        seed: decides both orders in every epoch; None keeps rows and batches by length, then by place in the text.
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
    ) -> None:
        super().__init__(tokens, eos=eos, rank=rank, world_size=world_size)
        check_positive(max_tokens=max_tokens, block=1 if block is None else block)
        self.max_tokens = max_tokens
        self.block = block
        self.seed = seed
        ends = _sentence_ends(tokens, eos)
        self._ends = ends if block is None else _joined(ends, block)
        self._starts = torch.cat([torch.zeros(1, dtype=torch.int64), self._ends[:-1]])
        self._lengths = self._ends - self._starts
        self._edges = _budget_edges(self._lengths.sort().values.tolist(), max_tokens)
        self._rows = lru_cache(maxsize=1)(self._draw_rows)
        self._order = lru_cache(maxsize=1)(self._draw_batches)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def _spans(self, position: int) -> Spans:
        batch = int(self._order(self.epoch)[position])
        chosen = self._rows(self.epoch)[self._edges[batch] : self._edges[batch + 1]]
        return Spans(self._starts[chosen], self._ends[chosen])

    def _draw_rows(self, epoch: int) -> Tensor:
        """All rows by length, those of one length as drawn, so that the edges of batches hold in every epoch."""
        drawn = draw_order(len(self._ends), self.seed, epoch)
        return drawn[self._lengths[drawn].argsort(stable=True)]

    def _draw_batches(self, epoch: int) -> Tensor:
        return draw_order(len(self), self.seed, epoch, "batches")

    def _settings(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "block": self.block, "seed": self.seed}


def _sentence_ends(tokens: Tensor, eos: int) -> Tensor:
    """Where each sentence ends in the stream, its "<eos>" included; what follows the last one is a sentence too."""
    pieces = tokens.split(SEARCHED)
    found = [(piece == eos).nonzero().squeeze(1) + 1 + number * SEARCHED for number, piece in enumerate(pieces)]
    ends = torch.cat(found)
    if len(ends) and ends[-1] == len(tokens):
        return ends
    return torch.cat([ends, torch.tensor([len(tokens)])])


def _joined(ends: Tensor, block: int) -> Tensor:
    """The ends of rows that take in as many neighbouring sentences as fit."""
    joined, start, last = [], 0, 0
    for end in ends.tolist():
        if end - start > block and last > start:
            joined.append(last)
            start = last
        last = end
    return torch.tensor([*joined, last])


def _budget_edges(lengths: list[int], max_tokens: int) -> list[int]:
    """Where batches begin and end among rows sorted by rising length."""
    edges = [0]
    for row, length in enumerate(lengths):
        if row > edges[-1] and (row - edges[-1] + 1) * length > max_tokens:
            edges.append(row)
    return [*edges, len(lengths)]
