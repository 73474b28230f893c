"""The Dirichlet experiment over a grid: every output at every dimension and concentration, with several seeds.

Every run has a folder of its own, so that a study that was stopped resumes; of a finished run its numbers are kept.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anymax.data.dirichlet import draw_log_targets
from anymax.evaluation.distributions import nearness
from anymax.files import read_json
from anymax.models.free_contexts import circle
from anymax.plain import as_plain
from anymax.training import RunConfig, resume, train
from anymax.training.run_folder.folder import CHECKPOINTS, CONFIG, SUMMARY, changes, read_plain_config, reading_results
from anymax.training.signals import end_with_parent
from anymax.training.tasks.dirichlet.config import DirichletConfig

RUNS = "runs"
NEVER = 2**31
CIRCLE = "words on a circle, 2 wide"
MEAN = "the mean of all distributions"
# How far out the contexts of the circle stand; the radius with the least divergence counts.
RADII = [10 ** (exponent / 16) for exponent in range(-48, 81)]


@dataclass(frozen=True)
class Run:
    """One training of the study."""

    output: str
    config: RunConfig
    folder: Path

    @property
    def is_done(self) -> bool:
        return (self.folder / SUMMARY).exists()


@dataclass(frozen=True)
class Result:
    """What one training reached.

    Args:
        metrics: of the last evaluation, as `DirichletTask.evaluate` names them.
        seconds: how long its steps took.
    """

    output: str
    dim: int
    concentration: float
    seed: int
    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Untrained:
    """What is reached without training, to hold the trained outputs against.

    Args:
        name: `CIRCLE` has the words on a circle and each context on its mode, in two dimensions; `MEAN` has one
            distribution for all contexts, the mean of theirs.
        kl: of the circle with the radius where it is least; the modes are right with any.
    """

    name: str
    concentration: float
    seed: int
    mode_matching: float
    kl: float


def plan(
    recipes: Mapping[str, RunConfig],
    folder: Path,
    *,
    dims: Iterable[int],
    concentrations: Iterable[float],
    seeds: Iterable[int],
) -> list[Run]:
    """All trainings of a study, those of one seed together.

    Args:
        recipes: the config of every output by its name.
        folder: where the study lies.
    """
    return [
        Run(
            name,
            _quiet(
                replace(
                    recipe,
                    task=replace(DirichletConfig.of(recipe.task), dim=dim, concentration=concentration),
                    seed=seed,
                )
            ),
            folder / RUNS / f"{name}-dim-{dim}-concentration-{concentration:g}-seed-{seed}",
        )
        for seed, concentration, dim, (name, recipe) in product(seeds, concentrations, dims, recipes.items())
    ]


def train_all(runs: Sequence[Run], *, jobs: int = 1, announce: Callable[[str], None]) -> None:
    """Train what is not done yet, one after the other or several at a time in their own processes.

    Ctrl-C has each save where it is; the same call resumes them. A study whose settings changed is refused.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    for run in runs:
        _check_settings(run)
    waiting = [run for run in runs if not run.is_done]
    done = len(runs) - len(waiting)
    announce(f"training: {done} of {len(runs)} done")

    def finished(run: Run, stopped: str | None) -> None:
        nonlocal done
        _raise_if_stopped(run, stopped)
        done += 1
        announce(f"training: {done} of {len(runs)} done")

    if jobs > 1 and len(waiting) > 1:
        _train_in_processes(waiting, jobs, finished)
    else:
        for run in waiting:
            finished(run, _train(run))


def read_results(runs: Iterable[Run]) -> Iterator[Result]:
    """What finished runs reached."""
    for run in runs:
        summary, task = read_json(run.folder / SUMMARY), DirichletConfig.of(run.config.task)
        with reading_results(run.folder):
            metrics, seconds = summary["metrics"], summary["training_seconds"]
        yield Result(run.output, task.dim, task.concentration, run.config.seed, metrics, seconds)


def without_training(runs: Iterable[Run]) -> Iterator[Untrained]:
    """What is reached without training, for the distributions of every concentration and seed of a study."""
    drawn = {
        (task.concentration, run.config.seed): task for run in runs for task in [DirichletConfig.of(run.config.task)]
    }
    for (concentration, seed), task in sorted(drawn.items()):
        log_targets = draw_log_targets(task.num_contexts, task.num_words, concentration, seed=seed)
        mean = (log_targets.logsumexp(0) - math.log(task.num_contexts)).expand_as(log_targets)
        circles = (_on_circle(log_targets, radius) for radius in RADII)
        for name, tried in ((CIRCLE, circles), (MEAN, [mean])):
            measured = (nearness(log_probs, log_targets, has_zeros=False) for log_probs in tried)
            best = min(measured, key=lambda each: each["kl"])
            yield Untrained(name, concentration, seed, best["mode_matching"], best["kl"])


def as_dict(results: Iterable[Result], untrained: Iterable[Untrained]) -> dict[str, Any]:
    """Plain values for JSON."""
    return {"runs": [asdict(each) for each in results], "untrained": [asdict(each) for each in untrained]}


def _on_circle(log_targets: Tensor, radius: float) -> Tensor:
    with torch.no_grad():
        return circle(log_targets.argmax(1), log_targets.shape[1], radius=radius).log_probs()


def _quiet(config: RunConfig) -> RunConfig:
    """One thread, and nothing on the way: a checkpoint and an evaluation at the end, or where it is stopped."""
    return replace(config, threads=1, device="cpu", evaluate_every=None, checkpoint_every=NEVER, log_every=100, keep=1)


def _check_settings(run: Run) -> None:
    """Refuse to mix runs of two studies."""
    if not (run.folder / CONFIG).exists():
        return
    different = list(changes(read_plain_config(run.folder), as_plain(run.config)))
    if different:
        raise ValueError(
            f"{run.folder} holds a training with other settings: {', '.join(different)}; name another folder, or give "
            "the same settings again"
        )


def _train_in_processes(runs: Sequence[Run], jobs: int, finished: Callable[[Run, str | None], None]) -> None:
    # Forked processes would share the threads of torch, which do not survive it.
    processes = multiprocessing.get_context("spawn")
    leaving = processes.Event()
    with ProcessPoolExecutor(min(jobs, len(runs)), processes, _listen, (leaving, os.getpid())) as pool:
        futures = {pool.submit(_train, run): run for run in runs}
        try:
            for future in as_completed(futures):
                finished(futures[future], future.result())
        except BaseException:
            leaving.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                # Which has the loop save.
                process.terminate()
            raise


# In a process of the pool: set where it should begin no further run.
_leaving: Event | None = None


def _listen(leaving: Event, parent: int) -> None:
    global _leaving
    _leaving = leaving
    end_with_parent(parent, _wait_for_parent)


def _wait_for_parent() -> None:
    process = multiprocessing.parent_process()
    assert process is not None
    process.join()


def _exit_after_parent() -> None:
    _wait_for_parent()
    os._exit(128 + signal.SIGTERM)


def _train(run: Run) -> str | None:
    """Train or resume, and keep the numbers alone; why it ended early, if it did."""
    if _leaving is not None and _leaving.is_set():
        return "signal"
    stopped = (resume(run.folder) if (run.folder / CONFIG).exists() else train(run.config, run.folder)).stopped
    if stopped == "signal" and _leaving is not None:
        # The pool would take the next run, and wait forever for further ones where it is its parent that ended.
        _leaving.set()
        threading.Thread(target=_exit_after_parent, daemon=True).start()
    if stopped is None:
        shutil.rmtree(run.folder / CHECKPOINTS)
    return stopped


def _raise_if_stopped(run: Run, stopped: str | None) -> None:
    if stopped == "signal":
        raise KeyboardInterrupt
    if stopped is not None:
        raise ValueError(f"{run.folder} {stopped}; lower optimizer.lr of the recipe {run.output}, or leave it out")
