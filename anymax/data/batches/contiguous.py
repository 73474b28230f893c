"""Batches of parallel rows through a stream, for models that carry a state; their lengths may be drawn."""

from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.data.batches.batches import Batches, Spans, generator_of
from anymax.data.batches.config import RandomLengths
from anymax.distributed.ranks import share


class Cuts(NamedTuple):
    """Where the batches of an epoch begin in every row, and how long each was meant to be."""

    starts: list[int]
    lengths: list[int]


@final
class ContiguousBatches(Batches):
    """The stream cut into parallel rows, read from left to right, for models that carry a state from batch to batch.

    Row i of a batch continues where row i of the batch before ended; where `position` is 0 the state starts anew. Rows
    differ in length by one token at most, and nothing is cut off. The order is that of the text in every epoch.

    Args:
        batch_size: how many rows, over all ranks.
        block: how many tokens of each row a batch holds.
        random_lengths: draw the length of each batch around `block`, anew in every epoch. Its `lr_factor` is what was
            drawn over `block`, also where the rows end before.
        seed: decides what is drawn.
        tokens, eos, rank, world_size, read: as in `Batches`.

    Example:
        >>> from anymax.data import ContiguousBatches
        >>> for batch in ContiguousBatches(torch.arange(1, 11), batch_size=2, block=3, eos=0):
        ...     print(batch.target.tolist())
        [[1, 2, 3], [6, 7, 8]]
        [[4, 5], [9, 10]]
    """

    def __init__(
        self,
        tokens: Tensor,
        batch_size: int,
        block: int,
        *,
        eos: int,
        random_lengths: RandomLengths | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        read: Tensor | None = None,
    ) -> None:
        super().__init__(tokens, eos=eos, rank=rank, world_size=world_size, read=read)
        check_counts(batch_size=batch_size, block=block)
        if len(tokens) < batch_size:
            raise ValueError(f"batch_size must be at most the {len(tokens)} tokens there are, got {batch_size}")
        self.batch_size = batch_size
        self.block = block
        self.random_lengths = random_lengths
        self.seed = seed
        edges = torch.tensor([share(len(tokens), row, batch_size) for row in range(batch_size)])
        self._starts, self._ends = edges.unbind(1)
        self._longest = int((self._ends - self._starts).max())
        # The current epoch, and the next one when the current is finished.
        self._cuts = lru_cache(maxsize=2)(self._draw)

    def length(self, epoch: int) -> int:
        if self.random_lengths is None:
            return -(-self._longest // self.block)
        return len(self._cuts(epoch).starts)

    def _spans(self, position: int) -> Spans:
        if self.random_lengths is None:
            return self._cut(position * self.block, self.block)
        cuts = self._cuts(self.epoch)
        return self._cut(cuts.starts[position], cuts.lengths[position])

    def _cut(self, start: int, length: int) -> Spans:
        starts = (self._starts + start).minimum(self._ends)
        return Spans(starts, (starts + length).minimum(self._ends), length / self.block)

    def _draw(self, epoch: int) -> Cuts:
        assert self.random_lengths is not None
        # As many as there can be, so that what is drawn depends on nothing that is drawn.
        most = -(-self._longest // self.random_lengths.least)
        lengths = draw_lengths(self.random_lengths, self.block, most, self.seed, epoch)
        starts = lengths.cumsum(0) - lengths
        number = int((starts < self._longest).sum())
        return Cuts(starts[:number].tolist(), lengths[:number].tolist())

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"batch_size": self.batch_size, "block": self.block}
        if self.random_lengths is not None:
            settings |= {"random_lengths": asdict(self.random_lengths), "seed": self.seed}
        return settings


def draw_lengths(how: RandomLengths, block: int, number: int, seed: int, epoch: int) -> Tensor:
    """`number` lengths, int64, which seed and epoch decide."""
    generator = generator_of(seed, epoch, "lengths")
    is_short = torch.rand(number, generator=generator, dtype=torch.float64) < how.short
    base = block - is_short.double() * block / 2
    noise = torch.randn(number, generator=generator, dtype=torch.float64)
    # Converting cuts off what stands behind the point.
    return (base + how.deviation * noise).long().clamp(how.least, how.most)
