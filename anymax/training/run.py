"""Runs from outside: train one in a new folder, resume it, open it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anymax.data.prepared.prepared import Announce
from anymax.distributed.ranks import Ranks, joined
from anymax.plain import as_plain
from anymax.training.checkpoint.checkpoints import Checkpoint, Checkpoints
from anymax.training.checkpoint.tensors import load_model, num_bytes, num_parameters
from anymax.training.config import Device, RunConfig
from anymax.training.loop import Loop, seed_of
from anymax.training.optim import bfloat16
from anymax.training.optim.updater import check_precision
from anymax.training.reporting import Outcome, Reporter, Silent
from anymax.training.run_folder.folder import (
    CHECKPOINTS,
    SUMMARY,
    TESTED,
    add_command,
    changes,
    check_new,
    check_room,
    read_config,
    read_plain_config,
    remove_leftovers,
    write_config,
    write_json,
)
from anymax.training.run_folder.lock import FolderLock, lock_next, numbered
from anymax.training.run_folder.metrics import check_tensorboard
from anymax.training.task import Task
from anymax.version import __version__

# Besides those that are kept: the best, and the one that is being written.
FURTHER_CHECKPOINTS = 2
# More are only slower, and at some number the system starts no further ones and ends the process.
THREADS_A_CORE = 16


def train(
    config: RunConfig,
    folder: str | os.PathLike[str],
    *,
    number: bool = False,
    command: str | None = None,
    reporter: Reporter | None = None,
    announce: Announce | None = None,
) -> Outcome:
    """Train from the first step.

    Under torchrun every process calls this with the same arguments, and all must see the same folder. SIGINT and
    SIGTERM end the step that is being taken, save, and return.

    Args:
        config: what to train, and how.
        folder: where to leave the run; must be new or empty, and no other process may be writing to it.
        number: where the folder is taken, take the next that is free: `folder-2`, `folder-3`, ...
        command: what was typed for this, to be kept with the run.
        reporter: receives steps, evaluations and messages, on the first rank; by default none.
        announce: called with a line for each preparation.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import train
        >>> outcome = train(recipes.find("dirichlet.linear")().toy(), "run")
        >>> outcome.step, outcome.stopped, sorted(outcome.metrics)[:3]
        (6, None, ['cross_entropy', 'kl', 'mode_matching'])
    """
    with _joined_ranks(config, reporter) as ranks, _locked_new(Path(folder), ranks, number=number) as (folder, lock):
        beginning = _beginning(config)
        task = _build(config, folder, ranks, announce)
        _begin_with(task, beginning)
        del beginning
        ranks.on_first(lambda: _check_room(config, folder, task))
        loop = Loop(config, folder, task, ranks, reporter or Silent(), lock)
        ranks.on_first(lambda: write_config(folder, config))
        ranks.on_first(lambda: add_command(folder, command))
        ranks.on_first(lambda: task.save(folder))
        return _finish(loop)


def resume(
    folder: str | os.PathLike[str],
    *,
    config: RunConfig | None = None,
    step: int | None = None,
    command: str | None = None,
    reporter: Reporter | None = None,
    announce: Announce | None = None,
) -> Outcome:
    """Resume a run from a checkpoint, to the same numbers as if it had never stopped.

    Args:
        folder: of the run.
        config: in place of the run's own, as with more steps or a lower learning rate; it is kept from now on.
        step: the checkpoint to resume from; by default the last. Later ones, and records after it, are removed.
        command: what was typed for this, to be kept with the run.
        reporter: receives steps, evaluations and messages, on the first rank; by default none.
        announce: called with a line for each preparation.

    Example:
        >>> from dataclasses import replace
        >>> from anymax import recipes
        >>> from anymax.training import resume, train
        >>> config = recipes.find("dirichlet.linear")().toy()
        >>> train(config, "run").step
        6
        >>> resume("run", config=replace(config, steps=9)).step
        9
    """
    folder = Path(folder)
    before = read_plain_config(folder)
    config = config or read_config(folder)
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    with _joined_ranks(config, reporter) as ranks, _locked(ranks, lambda: FolderLock(folder)) as lock:
        ranks.on_first(checkpoints.remove_leftovers)
        ranks.on_first(lambda: remove_leftovers(folder))
        checkpoint = checkpoints.load("last" if step is None else step) if checkpoints.steps() or step else None
        task = _build(config, folder, ranks, announce)
        if checkpoint is None:
            _begin_with(task, _beginning(config))
        else:
            _check_same_start(config, before)
        ranks.on_first(lambda: _check_room(config, folder, task))
        loop = Loop(config, folder, task, ranks, reporter or Silent(), lock)
        if checkpoint is None:
            ranks.on_first(lambda: task.save(folder))
        else:
            loop.restore(checkpoint)
            del checkpoint
            _check_steps_left(loop)
        ranks.on_first(lambda: _settle(loop, before))
        ranks.on_first(lambda: add_command(folder, command))
        return _finish(loop)


@dataclass(frozen=True)
class Opened:
    """A trained run.

    Args:
        folder: where it lies.
        config: what it was trained by, or what was given in its place.
        task: with the weights of a checkpoint in its model, in evaluation mode.
        step: which checkpoint.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import open_run, train
        >>> _ = train(recipes.find("dirichlet.linear")().toy(), "run")
        >>> opened = open_run("run", step=6)
        >>> opened.step, opened.config.steps
        (6, 6)
    """

    folder: Path
    config: RunConfig
    task: Task
    step: int


def open_run(
    folder: str | os.PathLike[str],
    *,
    config: RunConfig | None = None,
    step: int | None = None,
    device: Device = "auto",
    announce: Announce | None = None,
) -> Opened:
    """A run to look at or to use, in full precision on any machine.

    Args:
        folder: of the run.
        config: in place of the run's own.
        step: the checkpoint; by default the best, or the last where none was evaluated.
        device: where to compute, whatever the run was trained on.
        announce: called with a line for each preparation.

    Example:
        >>> from anymax import recipes
        >>> from anymax.training import open_run, train
        >>> _ = train(recipes.find("dirichlet.linear")().toy(), "run")
        >>> opened = open_run("run", device="cpu")
        >>> type(opened.task.model.output).__name__, opened.task.model.training
        ('FullOutput', False)
    """
    folder = Path(folder)
    config = config or read_config(folder)
    checkpoint = Checkpoints(folder / CHECKPOINTS).load("best" if step is None else step)
    with joined(device) as ranks:
        task = _build(config, folder, ranks, announce)
        checkpoint.check_identity(task.identity())
        load_model(task.model, checkpoint.tensors["model"], checkpoint.file("model"))
        task.model.to(ranks.device).eval()
    return Opened(folder, config, task, checkpoint.step)


@contextmanager
def _locked(ranks: Ranks, acquire: Callable[[], FolderLock]) -> Iterator[FolderLock | None]:
    """Hold a lock on the first rank while the block runs."""
    held: list[FolderLock] = []
    ranks.on_first(lambda: held.append(acquire()))
    try:
        yield held[0] if held else None
    finally:
        for lock in held:
            lock.release()


@contextmanager
def _locked_new(folder: Path, ranks: Ranks, *, number: bool) -> Iterator[tuple[Path, FolderLock | None]]:
    """Hold a folder for a new run while the block runs: which it is, and on the first rank its lock."""
    which = 1

    def acquire() -> FolderLock:
        nonlocal which
        if number:
            lock, which = lock_next(folder)
            return lock
        check_new(folder)
        return FolderLock(folder)

    with _locked(ranks, acquire) as lock:
        # The others learn from the first which it took.
        chosen = numbered(folder, int(ranks.sum([which if ranks.is_first else 0])[0]))
        ranks.on_first(lambda: check_new(chosen))
        yield chosen, lock


@contextmanager
def _joined_ranks(config: RunConfig, reporter: Reporter | None) -> Iterator[Ranks]:
    """The ranks of a run, with its threads; what this machine lacks is refused before anything is done."""
    if config.tensorboard:
        check_tensorboard()
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    if config.threads is not None and config.threads > THREADS_A_CORE * cores:
        raise ValueError(
            f"threads must be at most {THREADS_A_CORE * cores} on a machine with {cores} cores, got {config.threads}"
        )
    torch.set_num_threads(config.threads or threads)
    try:
        with flushed_denormals(), joined(config.device) as ranks:
            check_precision(config.precision, ranks.device)
            if config.precision == "bfloat16" and ranks.device.type == "cpu":
                ranks.on_first(lambda: _warn_of_bfloat16(reporter))
            yield ranks
    finally:
        torch.set_num_threads(threads)


def _warn_of_bfloat16(reporter: Reporter | None) -> None:
    """Refuse a precision that would end the process, and warn of one that is slow; only where there is a reporter."""
    if reporter is None:
        return
    measured = bfloat16.measure()
    if measured.ended_by:
        raise ValueError(f"precision must be 'float32' here, got 'bfloat16': {measured}; `anymax doctor` says more")
    if measured.is_slow:
        reporter.message(f"warning: {measured}; train with precision float32")


def _build(config: RunConfig, folder: Path, ranks: Ranks, announce: Announce | None) -> Task:
    # Every rank begins with the same weights.
    torch.manual_seed(seed_of(config.seed, "model"))
    announced = announce if announce is not None and ranks.is_first else _ignore
    return config.task.build(folder, ranks, seed=config.seed, announce=announced)


def _beginning(config: RunConfig) -> Checkpoint | None:
    """The best checkpoint of the run that another begins with; None where it begins with new weights."""
    if config.start is None:
        return None
    before, ours = read_plain_config(config.start).get("task"), as_plain(config.task)["kind"]
    theirs = before.get("kind") if isinstance(before, dict) else None
    if theirs != ours:
        raise ValueError(f"start must be a run of the same task, {ours}, but {config.start} is one of {theirs}")
    return Checkpoints(config.start / CHECKPOINTS).load("best")


def _check_same_start(config: RunConfig, before: Mapping[str, Any]) -> None:
    """Refuse to begin otherwise what has begun."""
    now, then = as_plain(config.start), before.get("start")
    if now != then:
        raise ValueError(f"start must stay {then} in a run that has begun, got {now}; train anew in another folder")


def _check_steps_left(loop: Loop) -> None:
    """Refuse a run that would be shorter than it is already."""
    taken, total = loop.progress.step, loop.total_steps
    if taken > total:
        raise ValueError(
            f"steps must be at least the {taken} that were taken, got {total}; resume from an earlier checkpoint, or "
            "train anew in another folder"
        )


def _begin_with(task: Task, checkpoint: Checkpoint | None) -> None:
    if checkpoint is not None:
        checkpoint.check_identity(task.identity())
        load_model(task.model, checkpoint.tensors["model"], checkpoint.file("model"))


def _ignore(line: str) -> None:
    """Print nothing."""


def _check_room(config: RunConfig, folder: Path, task: Task) -> None:
    there = len(Checkpoints(folder / CHECKPOINTS).steps())
    missing = max(0, config.keep + FURTHER_CHECKPOINTS - there)
    check_room(folder, missing * num_bytes(task.model, config.optimizer.held + (config.average is not None)))


def _settle(loop: Loop, before: Mapping[str, Any]) -> None:
    """Make the folder what it was at the step the run resumes from."""
    checkpoints, step = loop.saver.checkpoints, loop.progress.step
    later = [each for each in checkpoints.steps() if each > step]
    if later:
        loop.reporter.message(f"removing the checkpoints of later steps: {', '.join(map(str, later))}")
    checkpoints.go_back(step)
    if checkpoints.steps():
        loop.saver.settle(loop.progress.best)
    after = as_plain(loop.config)
    changed = list(changes(before, after))
    if changed:
        loop.reporter.message(f"resuming with another config: {', '.join(changed)}")
        write_config(loop.folder, loop.config)
    (loop.folder / SUMMARY).unlink(missing_ok=True)
    if step < loop.total_steps and not loop.is_early:
        # Measured on the model before; with the next summary it would look as if the run were tested.
        (loop.folder / TESTED).unlink(missing_ok=True)


def _finish(loop: Loop) -> Outcome:
    outcome = loop.go()
    if loop.lock is not None:
        loop.lock.check()
    if outcome.stopped is None:
        loop.ranks.on_first(lambda: write_json(loop.folder / SUMMARY, _summary(loop)))
    return outcome


def _summary(loop: Loop) -> dict[str, Any]:
    progress, ranks = loop.progress, loop.ranks
    assert progress.evaluated is not None
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    on_gpu = ranks.device.type == "cuda"
    return {
        "steps": progress.step,
        "ended_by": "stop" if loop.is_early else "steps",
        "items": progress.items,
        "item": loop.task.item,
        "goal": loop.task.goal,
        "larger_is_better": loop.task.larger_is_better,
        "metrics": progress.evaluated.metrics,
        "best": None if progress.best is None else asdict(progress.best),
        "num_parameters": num_parameters(loop.task.model),
        "seconds": progress.seconds,
        "training_seconds": progress.training_seconds,
        "items_per_second": progress.items / progress.training_seconds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "peak_gpu_memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "device": str(ranks.device),
        "world_size": ranks.world_size,
        "threads": torch.get_num_threads(),
        "version": __version__,
    }


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Take such numbers as zero on the CPU, in this thread and in those it starts.

    Weights that no gradient reaches, as those of pixels that are always black, decay into them, and so do their means
    in Adam; products with them are right and slow.
    """
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def are_flushed() -> bool:
    """Whether half of the least number held in full is zero."""
    least = torch.tensor(torch.finfo(torch.float32).tiny)
    return bool(least / 2 == 0)
