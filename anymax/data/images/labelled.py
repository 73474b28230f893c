"""Batches of rows of which few have a label: some of either kind, as numbers."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.data.batches.batches import Epochs, draw_order
from anymax.distributed.ranks import share


class MixedRows(NamedTuple):
    """This rank's rows of a batch, and how many the batch has over all ranks."""

    unlabelled: Tensor
    labelled: Tensor
    num_unlabelled: int
    num_labelled: int


class MixedBatches(Epochs[MixedRows]):
    """Epochs over rows without a label, each batch with as many rows that have one; those come round and round.

    The first epochs may be over the rows with a label alone. A rank's share may be empty.

    Args:
        labelled, unlabelled: the numbers of the rows.
        batch_size: rows of either kind in a batch, over all ranks.
        warm_epochs: how many epochs have rows with a label alone.
        seed: decides the order of both kinds.
    """

    def __init__(
        self,
        labelled: Tensor,
        unlabelled: Tensor,
        batch_size: int,
        *,
        warm_epochs: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(rank=rank, world_size=world_size)
        check_counts(batch_size=batch_size)
        self.labelled, self.unlabelled = labelled, unlabelled
        self.batch_size = min(batch_size, len(labelled), len(unlabelled))
        self.warm_epochs = warm_epochs
        self.seed = seed
        # A batch may end one round of rows with a label and begin another.
        self._order = lru_cache(maxsize=4)(self._draw)

    def length(self, epoch: int) -> int:
        rows = self.labelled if self.is_warm(epoch) else self.unlabelled
        return -(-len(rows) // self.batch_size)

    def is_warm(self, epoch: int) -> bool:
        """Whether an epoch has rows with a label alone."""
        return epoch < self.warm_epochs

    def _batch(self, position: int) -> MixedRows:
        first, end = position * self.batch_size, (position + 1) * self.batch_size
        if self.is_warm(self.epoch):
            labelled, unlabelled = self._order("labelled", self.epoch)[first:end], self.unlabelled[:0]
        else:
            labelled, unlabelled = self._next_labelled(position), self._order("unlabelled", self.epoch)[first:end]
        return MixedRows(self._share(unlabelled), self._share(labelled), len(unlabelled), len(labelled))

    def _made_of(self) -> dict[str, Any]:
        sizes = {"num_labelled": len(self.labelled), "num_unlabelled": len(self.unlabelled)}
        return {**sizes, "batch_size": self.batch_size, "warm_epochs": self.warm_epochs, "seed": self.seed}

    def _next_labelled(self, position: int) -> Tensor:
        """The next rows with a label, in rounds whose order is drawn anew."""
        batch = (self.epoch - self.warm_epochs) * self.length(self.epoch) + position
        numbers = torch.arange(batch * self.batch_size, (batch + 1) * self.batch_size)
        rounds, places = numbers // len(self.labelled), numbers % len(self.labelled)
        first, last = int(rounds[0]), int(rounds[-1])
        return torch.cat([self._order("labelled", -1 - n)[places[rounds == n]] for n in range(first, last + 1)])

    def _draw(self, kind: str, epoch: int) -> Tensor:
        rows = self.labelled if kind == "labelled" else self.unlabelled
        return rows[draw_order(len(rows), self.seed, epoch, kind)]

    def _share(self, rows: Tensor) -> Tensor:
        first, end = share(len(rows), self.rank, self.world_size)
        return rows[first:end]
