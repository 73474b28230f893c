"""How often each word follows each other word in a stream of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Tokens that are looked at together: some hundred megabytes while they are sorted.
CHUNK = 1 << 22


class PairCounts(NamedTuple):
    """The pairs that occur, each as the number `previous * size + word`, in rising order, and their counts."""

    keys: Tensor
    counts: Tensor

    @classmethod
    def of(cls, tokens: Tensor, size: int, *, eos: int) -> PairCounts:
        """Count the pairs of a stream, a chunk at a time; memory grows with the pairs that differ."""
        total = cls(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        for previous, words in neighbours(tokens, eos=eos):
            keys = (previous * size + words).sort().values
            total = total.merged(cls(*keys.unique_consecutive(return_counts=True)))
        return total

    def look_up(self, keys: Tensor) -> Tensor:
        """The count of each key, 0 for pairs that do not occur."""
        found, places = self._find(keys)
        return torch.where(found, self.counts[places], 0)

    def merged(self, other: PairCounts) -> PairCounts:
        """The counts of both added up."""
        if not len(self.keys):
            return other
        found, places = self._find(other.keys)
        counts = self.counts.index_add(0, places[found], other.counts[found])
        is_new = ~found
        # Where each new key goes: after the old keys that are smaller and the new ones before it.
        goes = torch.searchsorted(self.keys, other.keys[is_new])
        goes += torch.arange(len(goes))
        is_old = torch.ones(len(self.keys) + len(goes), dtype=torch.bool)
        is_old[goes] = False
        merged = PairCounts(*(old.new_empty(len(is_old)) for old in self))
        for into, old, new in zip(merged, (self.keys, counts), other, strict=True):
            into[is_old] = old
            into[goes] = new[is_new]
        return merged

    def _find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each key is there, and where."""
        places = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        return self.keys[places] == keys, places


def neighbours(tokens: Tensor, *, eos: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The stream as (previous words, words), int64, a chunk at a time; "<eos>" stands before the first."""
    last = torch.tensor([eos])
    for piece in tokens.split(CHUNK):
        words = piece.long()
        yield torch.cat([last, words[:-1]]), words
        last = words[-1:]
