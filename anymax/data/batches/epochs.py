"""Epochs of batches that can be saved after any batch: what all kinds of batches share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeGuard, TypeVar

Drawn = TypeVar("Drawn")


class Epochs(ABC, Generic[Drawn]):
    """Epochs of batches: each `for` loop over it runs to the end of the current epoch, and the next one goes on.

    `epoch` and `position` tell which batch comes next; that, not the loop, is the state, and it can be saved after any
    batch. The state does not depend on rank and world size, so a run may go on with another number of ranks.

    Args:
        rank, world_size: which share of each batch to give. The shares of all ranks, one below the other, are the batch
            of a single process.
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie from 0 to {world_size - 1}, one less than world_size, got {rank}")
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        """How many batches the current epoch has."""
        return self.length(self.epoch)

    @abstractmethod
    def length(self, epoch: int) -> int:
        """How many batches an epoch has; the same for every rank."""

    @abstractmethod
    def _batch(self, position: int) -> Drawn:
        """This rank's share of a batch of the current epoch."""

    @abstractmethod
    def _made_of(self) -> dict[str, Any]:
        """What decides the batches, as plain values."""

    def __iter__(self) -> Iterator[Drawn]:
        epoch = self.epoch
        while self.epoch == epoch:
            batch = self._batch(self.position)
            self.position += 1
            if self.position == len(self):
                self.epoch, self.position = epoch + 1, 0
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Which batch comes next, and what the batches were made of: plain values for JSON."""
        return {"epoch": self.epoch, "position": self.position, "made_of": self._made_of()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken; refused for batches made of something else."""
        ours, theirs = self._made_of(), state.get("made_of") if isinstance(state, dict) else None
        if not isinstance(theirs, dict):
            raise ValueError("state must be what state_dict gave, an object with made_of, epoch and position")
        different = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if different:
            changes = ", ".join(f"{name} {theirs.get(name)} (now {ours.get(name)})" for name in different)
            raise ValueError(f"state must come from the same batches, but it was made with {changes}; use those again")
        epoch, position = state.get("epoch"), state.get("position")
        if not (_is_index(epoch) and _is_index(position) and position < self.length(epoch)):
            raise ValueError(f"state must tell a batch that an epoch has, got batch {position!r} of epoch {epoch!r}")
        self.epoch, self.position = epoch, position


def _is_index(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 31
