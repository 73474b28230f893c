"""Batches of rows of a table, as numbers: for tasks whose data lies in memory, row by row."""

from functools import lru_cache
from typing import Any

from torch import Tensor

from anymax.data.batches.batches import draw_order, share
from anymax.data.batches.epochs import Epochs
from anymax.mappings.arguments import check_positive


class RowBatches(Epochs[Tensor]):
    """Batches of rows, as numbers from 0, in an order drawn anew for each epoch; a rank's share may be empty.

    Args:
        batch_size: rows of a batch over all ranks; None takes all, which makes an epoch one batch.
        seed: decides the order; None keeps that of the table.
    """

    def __init__(
        self, num_rows: int, batch_size: int | None, *, seed: int | None, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(rank=rank, world_size=world_size)
        check_positive(num_rows=num_rows)
        self.num_rows = num_rows
        self.batch_size = num_rows if batch_size is None else min(batch_size, num_rows)
        check_positive(batch_size=self.batch_size)
        self.seed = seed
        self._order = lru_cache(maxsize=1)(self._draw)

    def length(self, epoch: int) -> int:
        return -(-self.num_rows // self.batch_size)

    def _batch(self, position: int) -> Tensor:
        chosen = self._order(self.epoch)[position * self.batch_size : (position + 1) * self.batch_size]
        first, end = share(len(chosen), self.rank, self.world_size)
        return chosen[first:end]

    def _made_of(self) -> dict[str, Any]:
        return {"num_rows": self.num_rows, "batch_size": self.batch_size, "seed": self.seed}

    def _draw(self, epoch: int) -> Tensor:
        return draw_order(self.num_rows, self.seed, epoch, "rows of a table")
