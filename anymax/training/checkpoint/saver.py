"""Everything a run holds, into a checkpoint and back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from anymax.distributed.ranks import Ranks
from anymax.training.checkpoint.checkpoints import STATE, Checkpoint, Checkpoints, Divergence
from anymax.training.checkpoint.tensors import (
    Tensors,
    are_finite,
    gathered,
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from anymax.training.optim.updater import Updater
from anymax.training.progress import Evaluated, Progress
from anymax.training.task import Batches, Task

# The name of the file of what an average beside the optimizer is of.
ITERATES = "iterates"


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
        beside = {} if updater.exponential is None else updater.exponential.tensors(model)
        beside = {f"{name} average": tensor for name, tensor in beside.items()}
        return are_finite({**model_tensors(model), **averages, **beside}, self.ranks)

    def save(self, progress: Progress, place: Place) -> Path:
        """Write a checkpoint, unless this step has one, and remove those that need not stay.

        Where parameters are averaged, the model's file has the averages. Where the steps led is in the optimizer's, if
        that averages, and otherwise in a file of iterates.
        """
        path = self.checkpoints.path(progress.step)
        if self.saved != progress.step:
            self._write(progress, place)
            self.saved = progress.step
        return path

    def save_diverged(self, progress: Progress, place: Place, resume_from: int | None) -> None:
        """Note that the run diverged, and put its last finite weights aside, where no step or limit counts them."""
        divergence = Divergence(progress.step, resume_from)
        self.ranks.on_first(lambda: self.checkpoints.note_divergence(divergence))
        if self.saved != progress.step and self.is_finite():
            self._write(progress, place, diverged=True)

    def _write(self, progress: Progress, place: Place, *, diverged: bool = False) -> None:
        # The tensors are those of the model, so they are written before the averages go.
        with self.updater.averaged():
            state, tensors = self._collect(progress, place)

            def write() -> None:
                self.checkpoints.save(progress.step, state, tensors, diverged=diverged)
                self.settle(progress.best)

            self.ranks.on_first(write)

    def _collect(self, progress: Progress, place: Place) -> tuple[dict[str, Any], dict[str, Tensors]]:
        """What a checkpoint holds: plain values, and tensors by file."""
        model, optimizer, exponential = self.task.model, self.updater.optimizer, self.updater.exponential
        tensors = {
            "model": gathered(model_tensors(model), self.ranks),
            "optimizer": gathered(optimizer_tensors(model, optimizer), self.ranks),
            ITERATES: {} if exponential is None else gathered(exponential.tensors(model), self.ranks),
            "carry": {name: self.ranks.gather_rows(rows).cpu().clone() for name, rows in sorted(place.carry.items())},
        }
        state = {
            "data": place.data,
            "identity": self.task.identity(),
            "optimizer": type(optimizer).__name__,
            "scaler": self.updater.scaler.state_dict(),
            "progress": progress.as_plain(),
        }
        return state, tensors

    def restore(self, checkpoint: Checkpoint, batches: Batches) -> tuple[Progress, Any]:
        """Bring model, optimizer and batches to where they were; how far the run was, and its carry."""
        checkpoint.check_identity(self.task.identity())
        model, optimizer = self.task.model, self.updater.optimizer
        kind = checkpoint.state.get("optimizer")
        if kind != type(optimizer).__name__:
            raise ValueError(
                f"optimizer must be the {kind} that {checkpoint.path} was trained with, got "
                f"{type(optimizer).__name__}; resume with that one, or train anew in another folder"
            )
        progress = self._load_state(checkpoint, batches)
        load_model(model, checkpoint.tensors["model"], checkpoint.file("model"))
        made = self._state_made(progress, is_empty="optimizer" not in checkpoint.tensors)
        load_optimizer(model, optimizer, made, checkpoint.tensors.get("optimizer", {}), checkpoint.file("optimizer"))
        self._load_iterates(checkpoint, progress)
        self.saved = checkpoint.step
        self.updater.resume_phase(progress)
        carry = self._load_carry(checkpoint.tensors.get("carry", {}), checkpoint.file("carry"))
        if carry is None and batches.position > 0 and self.task.new_carry() is not None:
            raise ValueError(f"{checkpoint.file('carry')} is missing, and an epoch cannot be resumed without it")
        return progress, carry

    def _load_iterates(self, checkpoint: Checkpoint, progress: Progress) -> None:
        """Bring the average beside the optimizer, which the model holds as it was saved, and the iterates to theirs."""
        exponential, iterates = self.updater.exponential, checkpoint.tensors.get(ITERATES)
        if (exponential is None) != (iterates is None) and progress.items > 0:
            was = "without" if iterates is None else "with"
            raise ValueError(
                f"average must be as in the run, which was trained {was} an average until {checkpoint.path}; resume "
                "with that, or train anew in another folder"
            )
        if exponential is not None and iterates is not None:
            exponential.restore(self.task.model, iterates, checkpoint.file(ITERATES))

    def settle(self, best: Evaluated | None) -> None:
        """On the first rank: note the best and remove what is neither last nor best."""
        self.checkpoints.settle(best)

    def _load_state(self, checkpoint: Checkpoint, batches: Batches) -> Progress:
        """Bring batches and the scale of gradients to where they were; how far the run was."""
        state = checkpoint.state
        try:
            batches.load_state_dict(state.get("data", {}))
            self.updater.load_scaler(state.get("scaler"))
            progress = Progress.from_plain(state.get("progress"), step=checkpoint.step, goal=self.task.goal)
        except ValueError as error:
            raise ValueError(f"{checkpoint.path / STATE} cannot be resumed from: {error}") from None
        # A best whose checkpoint was removed, as the run resumed from an earlier one, is no longer kept.
        if progress.best is not None and progress.best.step not in self.checkpoints.steps():
            progress.best = None
        return progress

    def _state_made(self, progress: Progress, *, is_empty: bool) -> Tensors:
        """What the optimizer holds for each parameter after these steps; nothing where it has not taken one."""
        since = progress.averaging_since
        # Nothing is changed by steps without items, and in float16 by those whose gradients overflow.
        may_be_empty = progress.items == 0 or since == progress.step or self.updater.scaler.is_enabled()
        return {} if is_empty and may_be_empty else self.updater.state_made(averaging=since is not None)

    def _load_carry(self, tensors: Tensors, file: Path) -> Any:
        """None where a checkpoint has none: then an epoch begins, or the task carries nothing."""
        for name, rows in tensors.items():
            if rows.dim() == 0 or not bool(rows.isfinite().all()):
                raise ValueError(
                    f"{file} must hold rows of finite numbers, but {name} does not; resume from another step"
                )
        own = {name: self.ranks.share_rows(rows).clone().to(self.ranks.device) for name, rows in tensors.items()}
        try:
            return self.task.load_carry(own) if own else None
        except (ValueError, LookupError) as error:
            raise ValueError(f"{file} must fit the task: {error}") from None
