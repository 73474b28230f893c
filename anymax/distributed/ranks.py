"""The processes of a run: torchrun starts several, otherwise there is one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

# The first rank may prepare a large corpus while the others wait for it.
PATIENCE = timedelta(hours=2)
# Seconds; letting go of finished work takes microseconds.
UNTIL_IDLE = 0.1


class PeerError(OSError):
    """Another process of the run failed or ended."""


@dataclass(frozen=True)
class Ranks:
    """Which of the processes of a run this one is, and what they do together.

    Args:
        rank: from 0, over all machines.
        world_size: how many processes there are.
        local_rank: from 0, on this machine.
        device: where this process computes.

    Example:
        >>> from anymax.training import Ranks
        >>> Ranks().is_first, Ranks().sum([1, 2])
        (True, [1.0, 2.0])
        >>> Ranks(rank=1, world_size=2).share_rows(torch.arange(5))
        tensor([3, 4])
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be at least 0 and below world_size {self.world_size}, got {self.rank}")

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums of numbers over all ranks, in one message."""
        if self.world_size == 1:
            return [float(value) for value in values]
        together = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(together)
        return together.tolist()

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """The first rank runs the block while the others wait; then they run it too, and find what it left."""
        if not self.is_first:
            self.sum([0])
        try:
            yield
        finally:
            if self.is_first:
                self.sum([0])

    def on_first(self, work: Callable[[], object]) -> None:
        """Do something on the first rank alone; the others wait, and fail where it fails."""
        failure: Exception | None = None
        if self.is_first:
            try:
                work()
            except Exception as error:
                failure = error
        (num_failures,) = self.sum([failure is not None])
        if failure is not None:
            raise failure
        if num_failures:
            raise PeerError("the first process of the run failed and says why; this one only waited for it")

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, one below the other; ranks may have different numbers of them."""
        if self.world_size == 1:
            return rows
        each = [len(rows) if rank == self.rank else 0 for rank in range(self.world_size)]
        counts = [int(count) for count in self.sum(each)]
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def share_rows(self, rows: Tensor) -> Tensor:
        """This rank's part of the rows of all, divided as `anymax.data.Batches` divides a batch."""
        first, end = share(len(rows), self.rank, self.world_size)
        return rows[first:end]


def share(number: int, part: int, parts: int) -> tuple[int, int]:
    """Where one of several neighbouring parts begins and ends; the first ones are larger by one where needed."""
    size, rest = divmod(number, parts)
    first = part * size + min(part, rest)
    return first, first + size + (part < rest)


@contextmanager
def joined(device: Literal["auto", "cpu", "cuda"] = "auto") -> Iterator[Ranks]:
    """Be one of torchrun's processes while the block runs, or the only one where torchrun did not start it.

    A process group that is there already is used and stays.

    Args:
        device: where to compute; "auto" takes a GPU where there is one.

    Example:
        >>> from anymax.training import joined
        >>> with joined("cpu") as ranks:  # under torchrun, one of several
        ...     print(ranks.rank, ranks.world_size)
        0 1
    """
    if dist.is_initialized():
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        yield Ranks(dist.get_rank(), dist.get_world_size(), local_rank, _device(device, local_rank))
        return
    rank, world_size, local_rank = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    ranks = Ranks(rank, world_size, local_rank, _device(device, local_rank))
    if world_size == 1:
        yield ranks
        return
    if sys.platform == "linux" and os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # On one machine the loopback is enough, and asks no name server for the machine's address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "nccl" if ranks.device.type == "cuda" else "gloo"
    is_lost = False
    try:
        dist.init_process_group(backend, store=_new_store(), rank=rank, world_size=world_size, timeout=PATIENCE)
        yield ranks
        # None leaves before all are done: the first holds what the others ask.
        dist.barrier()
    except RuntimeError as error:
        is_lost = _is_lost_connection(error)
        if not is_lost:
            raise
        raise PeerError(
            f"process {rank} of {world_size} lost the connection to another one, which ended or cannot be reached; "
            "see what that one said, and resume the run"
        ) from error
    finally:
        # Nothing is waited for where a process is lost, as torchrun is about to end this one too.
        if not is_lost:
            leave()


def _new_store() -> Any:
    """Where the processes find each other: a part of one store, as a second store on its port would never answer."""
    return PrefixStore(f"anymax/{next(_joins)}", _store())


@cache
def _store() -> Any:
    store, _, _ = next(iter(rendezvous("env://", timeout=PATIENCE)))
    return store


# All processes join equally often.
_joins = count()


def _is_lost_connection(error: RuntimeError) -> bool:
    """Whether torch reports a lost peer; gloo's errors have no type to tell them by."""
    lost = ("onnection closed", "onnection reset", "onnection refused", "roken pipe", "ocket Timeout", "imed out")
    return isinstance(error, dist.DistError) or any(part in str(error) for part in lost)


def leave() -> None:
    """Destroy the process group once its threads are idle.

    They need the interpreter to let go of finished work, and one that still does so when its group goes is waited for
    forever, as the group holds the interpreter meanwhile.
    """
    if dist.is_initialized():
        time.sleep(UNTIL_IDLE)
        dist.destroy_process_group()


def _device(name: Literal["auto", "cpu", "cuda"], local_rank: int) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ValueError(
            "device must be 'cpu' where torch finds no GPU, got 'cuda'; `anymax doctor` lists what it finds"
        )
    if name == "cpu" or not available:
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"device 'cuda' must have a GPU for each process, got process {local_rank} on a machine with "
            f"{torch.cuda.device_count()}; start fewer with --nproc-per-node"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
