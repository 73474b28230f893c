"""Everything a run holds, into a checkpoint and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from anymax.training.checkpoints import Checkpoint, Checkpoints
from anymax.training.progress import Evaluated, Progress
from anymax.training.ranks import Ranks
from anymax.training.task import Batches, Task
from anymax.training.tensors import (
    Tensors,
    are_finite,
    gathered,
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from anymax.training.updater import Updater


@dataclass(frozen=True)
class Place:
    """Where in the data a step begins: which batch comes next, and what it reads of those before it."""

    data: dict[str, Any]
    carry: dict[str, Tensor]


class Saver:
    """Saves a run and brings it back; a checkpoint does not depend on the number of ranks.

    Args:
        task: with the bare model, which may be sharded.
        updater: with the optimizer.
    """

    def __init__(self, checkpoints: Checkpoints, task: Task, updater: Updater, ranks: Ranks) -> None:
        self.checkpoints = checkpoints
        self.task = task
        self.updater = updater
        self.ranks = ranks
        self.saved: int | None = None

    def is_finite(self) -> bool:
        """Whether the weights are worth saving, and where they are averaged also the averages."""
        model, updater = self.task.model, self.updater
        averages = optimizer_tensors(model, updater.optimizer) if updater.is_averaging else {}
        return are_finite({**model_tensors(model), **averages}, self.ranks)

    def save(self, progress: Progress, place: Place) -> Path:
        """Write a checkpoint, unless this step has one, and remove those that need not stay.

        Where the optimizer averages, the model's file has the averages, and the optimizer's where its steps led.
        """
        path = self.checkpoints.path(progress.step)
        if self.saved != progress.step:
            with self.updater.averaged():
                self._write(progress, place)
            self.saved = progress.step
        return path

    def _write(self, progress: Progress, place: Place) -> None:
        model, optimizer = self.task.model, self.updater.optimizer
        tensors = {
            "model": gathered(model_tensors(model), self.ranks),
            "optimizer": gathered(optimizer_tensors(model, optimizer), self.ranks),
            "carry": {name: self.ranks.gather_rows(rows).cpu().clone() for name, rows in sorted(place.carry.items())},
        }
        state = {
            "data": place.data,
            "identity": self.task.identity(),
            "optimizer": type(optimizer).__name__,
            "scaler": self.updater.scaler.state_dict(),
            "progress": progress.as_plain(),
        }

        def write() -> None:
            self.checkpoints.save(progress.step, state, tensors)
            self.settle(progress.best)

        self.ranks.on_first(write)

    def restore(self, checkpoint: Checkpoint, batches: Batches) -> tuple[Progress, Any]:
        """Bring model, optimizer and batches to where they were; how far the run was, and its carry."""
        checkpoint.check_identity(self.task.identity())
        model, optimizer = self.task.model, self.updater.optimizer
        kind = checkpoint.state["optimizer"]
        if kind != type(optimizer).__name__:
            raise ValueError(
                f"optimizer must be the {kind} that {checkpoint.path} was trained with, got "
                f"{type(optimizer).__name__}; resume with that one, or train anew in another folder"
            )
        batches.load_state_dict(checkpoint.state["data"])
        load_model(model, checkpoint.tensors["model"], checkpoint.file("model"))
        load_optimizer(model, optimizer, checkpoint.tensors.get("optimizer", {}), checkpoint.file("optimizer"))
        # Empty where the precision needed no scale.
        if checkpoint.state["scaler"]:
            self.updater.scaler.load_state_dict(checkpoint.state["scaler"])
        self.saved = checkpoint.step
        progress = self._known(Progress.from_plain(checkpoint.state["progress"]))
        if self.updater.averaging is not None and progress.averaging_since is not None:
            self.updater.averaging.begin()
            self.updater.averaging.take_back()
        return progress, self._load_carry(checkpoint.tensors.get("carry", {}))

    def settle(self, best: Evaluated | None) -> None:
        """On the first rank: note the best and remove what is neither last nor best."""
        self.checkpoints.settle(None if best is None else asdict(best))

    def _load_carry(self, tensors: Tensors) -> Any:
        """None where a checkpoint has none: then an epoch begins, or the task carries nothing."""
        own = {name: self.ranks.share_rows(rows).clone().to(self.ranks.device) for name, rows in tensors.items()}
        return self.task.load_carry(own) if own else None

    def _known(self, progress: Progress) -> Progress:
        """A best whose checkpoint is gone, after the run went back, is no longer one to keep."""
        if progress.best is not None and progress.best.step not in self.checkpoints.steps():
            progress.best = None
        return progress
