"""Batches of a stream of ids: epochs that can be saved after any batch, shuffled blocks, and rows of a table.

Every token of the stream is a target exactly once per epoch. What a model reads before a token is the token before it
in the stream; before the first stands "<eos>". Shapes: B rows, T tokens of the longest row.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeGuard, TypeVar, final

import torch
from torch import Tensor

from anymax.checks import check_counts
from anymax.distributed.ranks import share

IGNORE_INDEX = -100


Drawn = TypeVar("Drawn")


class Epochs(ABC, Generic[Drawn]):
    """Epochs of batches: each `for` loop over it runs to the end of the current epoch, and the next one continues.

    `epoch` and `position` say which batch comes next; that, not the loop, is the state, and it can be saved after any
    batch. The state does not depend on rank and world size, so a run may resume with another number of ranks.

    Args:
        rank, world_size: which share of each batch to give. The shares of all ranks, one below the other, are the batch
            of a single process.
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be between 0 and {world_size - 1}, one less than world_size, got {rank}")
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
        """Continue where the state was taken; refused for batches made of something else."""
        ours, theirs = self._made_of(), state.get("made_of") if isinstance(state, dict) else None
        if not isinstance(theirs, dict):
            raise ValueError("state must be what state_dict gave, an object with made_of, epoch and position")
        different = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
        if different:
            changes = ", ".join(f"{name} {theirs.get(name)} (now {ours.get(name)})" for name in different)
            raise ValueError(f"state must come from the same batches, but it was made with {changes}; use those again")
        epoch, position = state.get("epoch"), state.get("position")
        if not (_is_index(epoch) and _is_index(position) and position < self.length(epoch)):
            raise ValueError(f"state must name a batch that an epoch has, got batch {position!r} of epoch {epoch!r}")
        self.epoch, self.position = epoch, position


class Batch(NamedTuple):
    """Rows of ids and what to predict for each.

    Example:
        >>> from anymax.data import BlockBatches
        >>> batch = next(iter(BlockBatches(torch.arange(1, 11), block=4, batch_size=2, seed=None, eos=0)))
        >>> batch.ids
        tensor([[0, 1, 2, 3],
                [4, 5, 6, 7]])
        >>> batch.target
        tensor([[1, 2, 3, 4],
                [5, 6, 7, 8]])
        >>> batch.lengths
        tensor([4, 4])
    """

    ids: Tensor
    """What the model reads, int64 (B, T); "<eos>" after the end of a row."""
    target: Tensor
    """What comes next, int64 (B, T); -100, which losses ignore, after the end of a row."""
    lengths: Tensor
    """How many tokens of each row count, int64 (B,)."""
    lr_factor: float = 1.0
    """The factor of the learning rate for this batch; the same for every rank."""


class Spans(NamedTuple):
    """Where the targets of each row begin and end in the stream, and the learning-rate factor of the batch."""

    starts: Tensor
    ends: Tensor
    lr_factor: float = 1.0


class Batches(Epochs[Batch]):
    """Epochs of batches of a stream.

    A rank for which no row is left gets one without targets.

    Args:
        tokens: the stream, one dimension of integers; may be mapped from a file.
        eos: the id read before the first token.
        read: the ids that a model reads where they are others than those it predicts, one for each token.
        rank, world_size: which share of each batch to give, of how many.

    Example:
        >>> from anymax.data import Batches, BlockBatches
        >>> def make() -> Batches:
        ...     return BlockBatches(torch.arange(100), block=10, batch_size=2, seed=1, eos=0)
        >>> batches, resumed = make(), make()
        >>> first = next(iter(batches))
        >>> resumed.load_state_dict(batches.state_dict())
        >>> next(iter(resumed)).target.equal(next(iter(batches)).target)
        True
    """

    def __init__(self, tokens: Tensor, *, eos: int, rank: int, world_size: int, read: Tensor | None = None) -> None:
        super().__init__(rank=rank, world_size=world_size)
        check_stream(tokens)
        self.tokens = tokens
        self.read = check_read(tokens, read)
        self.eos = eos

    @abstractmethod
    def _spans(self, position: int) -> Spans:
        """The rows of a batch of the current epoch, for all ranks."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """What decides the batches, as plain values."""

    def _batch(self, position: int) -> Batch:
        return self._gather(self._spans(position))

    def _made_of(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "num_tokens": len(self.tokens), "eos": self.eos, **self._settings()}

    def _gather(self, spans: Spans) -> Batch:
        """This rank's rows, as wide as the longest row of all ranks."""
        width = int((spans.ends - spans.starts).max())
        first, end = share(len(spans.starts), self.rank, self.world_size)
        starts, ends = spans.starts[first:end].tolist(), spans.ends[first:end].tolist()
        if not starts:
            starts, ends = [0], [0]
        target = torch.full((len(starts), width), IGNORE_INDEX)
        ids = torch.full((len(starts), width), self.eos)
        for row, (start, stop) in enumerate(zip(starts, ends, strict=True)):
            target[row, : stop - start] = self.tokens[start:stop].long()
            fill_read(ids[row], self.read, start, stop)
        return Batch(ids, target, torch.tensor(ends) - torch.tensor(starts), spans.lr_factor)


@final
class BlockBatches(Batches):
    """The stream cut into blocks of one length, whatever lines they cut, in an order drawn anew for each epoch.

    The last block of the stream, and the last batch of an epoch, may be shorter.

    Args:
        block: how many tokens a row holds.
        batch_size: how many rows a batch holds, over all ranks.
        seed: decides the order of every epoch; None keeps that of the text.
        tokens, eos, rank, world_size, read: as in `Batches`.

    Example:
        >>> from anymax.data import BlockBatches
        >>> batches = BlockBatches(torch.arange(1, 11), block=4, batch_size=2, seed=None, eos=0)
        >>> for batch in batches:
        ...     print(batch.target.tolist())
        [[1, 2, 3, 4], [5, 6, 7, 8]]
        [[9, 10]]
        >>> batches.epoch, batches.position
        (1, 0)
    """

    def __init__(
        self,
        tokens: Tensor,
        block: int,
        batch_size: int,
        *,
        seed: int | None,
        eos: int,
        rank: int = 0,
        world_size: int = 1,
        read: Tensor | None = None,
    ) -> None:
        super().__init__(tokens, eos=eos, rank=rank, world_size=world_size, read=read)
        check_counts(batch_size=batch_size, block=block)
        self.block = block
        self.batch_size = batch_size
        self.seed = seed
        self._num_blocks = -(-len(tokens) // block)
        self._order = lru_cache(maxsize=1)(self._draw)

    def length(self, epoch: int) -> int:
        return -(-self._num_blocks // self.batch_size)

    def _spans(self, position: int) -> Spans:
        chosen = self._order(self.epoch)[position * self.batch_size : (position + 1) * self.batch_size]
        return Spans(chosen * self.block, ((chosen + 1) * self.block).clamp(max=len(self.tokens)))

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "block": self.block, "seed": self.seed}

    def _draw(self, epoch: int) -> Tensor:
        return draw_order(self._num_blocks, self.seed, epoch)


def draw_order(number: int, seed: int | None, epoch: int, purpose: str = "rows") -> Tensor:
    """The numbers from 0 in an order that seed, epoch and purpose decide; in their own where the seed is None."""
    if seed is None:
        return torch.arange(number)
    return torch.randperm(number, generator=generator_of(seed, epoch, purpose))


def generator_of(seed: int, epoch: int, purpose: str) -> torch.Generator:
    """Randomness that seed, epoch and purpose decide, and nothing else."""
    digest = hashlib.sha256(f"{seed} {epoch} {purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def fill_read(row: Tensor, tokens: Tensor, start: int, stop: int) -> None:
    """Write what is read before each token from `start` to `stop` to the front of a row that is full of "<eos>"."""
    # The first token of the stream has none before it and keeps the "<eos>".
    skipped = int(start == 0)
    row[skipped : stop - start] = tokens[start - 1 + skipped : max(stop - 1, 0)].long()


def check_stream(tokens: Tensor) -> None:
    """A stream is one dimension of integers, and has some."""
    if tokens.dim() != 1 or tokens.is_floating_point() or tokens.numel() == 0:
        raise ValueError(
            f"tokens must be one dimension of integers and not empty, got {tokens.dtype} {tuple(tokens.shape)}"
        )


def check_read(tokens: Tensor, read: Tensor | None) -> Tensor:
    """What a model reads along a stream: the stream itself, or another of the same length."""
    if read is None:
        return tokens
    check_stream(read)
    if len(read) != len(tokens):
        raise ValueError(f"read must have one id for each of the {len(tokens)} tokens, got {len(read)}")
    return read


def _is_index(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 31


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
        check_counts(num_rows=num_rows)
        self.num_rows = num_rows
        self.batch_size = num_rows if batch_size is None else min(batch_size, num_rows)
        check_counts(batch_size=self.batch_size)
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
