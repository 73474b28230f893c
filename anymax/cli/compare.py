"""`anymax compare RECIPE RECIPE ...`: train recipes with one budget and several seeds, and set them side by side."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from anymax.cli.console import publish
from anymax.cli.progress import Announcer
from anymax.training import LanguageModeling, read_config, read_metrics
from anymax.training.config import TaskConfig
from anymax.training.dirichlet_config import Dirichlet
from anymax.training.folder import CONFIG, SUMMARY, TESTED, changes, read_plain_config

if TYPE_CHECKING:
    from anymax.analysis.comparison import Result

_STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
_Unset = arg(metavar="NUMBER", help_behavior_hint="(default: as the recipes have it)")
# Steps that tell how long a step takes; the later half of them counts.
CALIBRATION_STEPS = 40
SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class Comparison:
    """Train recipes with one budget, and set them side by side: one table, learning curves, loss by frequency.

    Every further option goes to each training: --steps, --epochs, --threads, --data.root, --optimizer.lr and so on.
    Trainings that are done are not done again, and one that was stopped goes on: run the same command again.

    Args:
        recipes: names of recipes, as `anymax recipes` lists them.
        folder: where the runs, the table and the pictures go.
        seeds: how many seeds for each recipe, from 1.
        tokens: how many words of the training text each reads, however it cuts them.
        seconds: how long each trains, by the speed of a few steps before it; other work on the machine changes it.
        jobs: how many train at the same time; give each its --threads.
    """

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="RECIPE RECIPE ...")]
    folder: Path = Path("comparison")
    seeds: int = 1
    tokens: Annotated[int | None, _Unset] = None
    seconds: Annotated[float | None, _Unset] = None
    jobs: int = 1


@dataclass(frozen=True)
class Job:
    """One training."""

    recipe: str
    seed: int
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")


def compare(arguments: Sequence[str]) -> int:
    """Train recipes with one budget, and set them side by side."""
    given, options = tyro.cli(
        Comparison, args=list(arguments), prog="anymax compare", return_unknown_args=True, config=_STYLE
    )
    lengths = _lengths(given, options)
    given.folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        Job(recipe, seed, given.folder / f"{recipe}-seed-{seed}")
        for seed in range(1, given.seeds + 1)
        for recipe in given.recipes
    ]
    for job in jobs:
        _check_settings(job, [*options, *lengths[job.recipe]])
    with Announcer() as announce:
        failed = _run(jobs, lambda job: _command(job, [*options, *lengths[job.recipe]]), given.jobs, announce)
    if failed:
        raise ValueError("a training failed: " + "; ".join(f"{job.folder.name} ({job.log})" for job in failed))
    _report(given, jobs, shlex.join(["anymax", "compare", *arguments]))
    return 0


def _lengths(given: Comparison, options: list[str]) -> dict[str, list[str]]:
    """What makes every recipe as long as the budget says; all texts are prepared on the way."""
    from anymax.cli.train import new_run

    named = [name for name in ("--steps", "--epochs") if any(word.partition("=")[0] == name for word in options)]
    budgets = [*named, *(["--tokens"] if given.tokens else []), *(["--seconds"] if given.seconds else [])]
    if len(budgets) > 1:
        raise ValueError(f"one budget must be given at most, got {' and '.join(budgets)}; leave out all but one")
    if len(set(given.recipes)) < len(given.recipes):
        raise ValueError(f"recipes must differ from each other, got {' '.join(given.recipes)}")
    # A mistake is told here, before anything is trained.
    for recipe in given.recipes:
        _check_kind(recipe, given, new_run(recipe, options).config.task, new_run(given.recipes[0], options).config.task)
    if given.tokens is not None:
        return {recipe: ["--epochs", repr(given.tokens / _train_words(recipe, options))] for recipe in given.recipes}
    if given.seconds is not None:
        return {recipe: ["--steps", str(_steps_within(given, recipe, options))] for recipe in given.recipes}
    return {recipe: [] for recipe in given.recipes}


def _check_kind(recipe: str, given: Comparison, task: TaskConfig, first: TaskConfig) -> None:
    """Refuse what cannot stand in one table."""
    if type(task) is not type(first):
        raise ValueError(
            f"recipes must be of one task to be compared, got {given.recipes[0]} ({type(first).__name__}) and "
            f"{recipe} ({type(task).__name__}); compare them apart"
        )
    if isinstance(task, Dirichlet):
        raise ValueError(f"recipes of dirichlet are compared by `anymax analyze dirichlet`, got {recipe}")
    if given.tokens is not None and not isinstance(task, LanguageModeling):
        raise ValueError(f"tokens must be left out for {recipe}, which reads no text; give --epochs or --steps")


def _train_words(recipe: str, options: list[str]) -> int:
    from anymax.cli.train import new_run
    from anymax.data import prepare

    with Announcer() as announce:
        return sum(prepare(new_run(recipe, options).config.language_modeling().data, progress=announce).words.counts)


def _steps_within(given: Comparison, recipe: str, options: list[str]) -> int:
    """The steps that fit into the seconds, by how long the later ones of a short training took."""
    assert given.seconds is not None
    if (given.folder / f"{recipe}-seed-1" / CONFIG).exists():
        # Measured when it began; another measurement would give another number.
        return int(read_plain_config(given.folder / f"{recipe}-seed-1")["steps"])
    folder = given.folder / f".speed-of-{recipe}"
    shutil.rmtree(folder, ignore_errors=True)
    short = ["--steps", str(CALIBRATION_STEPS), "--log-every", str(CALIBRATION_STEPS // 2)]
    with Announcer() as announce:
        announce(f"measuring the speed of {recipe}")
        done = subprocess.run(
            _command(Job(recipe, 1, folder), [*options, *short]),
            capture_output=True,
            text=True,
            errors="backslashreplace",
            check=False,
        )
    if done.returncode:
        raise ValueError(f"{recipe} could not be trained: {done.stderr[-2000:]}")
    before, after = (record for record in read_metrics(folder) if record["kind"] == "train")
    shutil.rmtree(folder)
    seconds = (after["items"] - before["items"]) / after["items_per_second"]
    return max(1, round(given.seconds * (after["step"] - before["step"]) / seconds))


def _command(job: Job, options: list[str]) -> list[str]:
    anymax = [sys.executable, "-m", "anymax"]
    if (job.folder / CONFIG).exists():
        return [*anymax, "resume", str(job.folder)]
    return [*anymax, "train", job.recipe, "--folder", str(job.folder), "--seed", str(job.seed), *options]


def _check_settings(job: Job, options: list[str]) -> None:
    """Refuse to go on with a training of an earlier comparison that had other settings."""
    if not (job.folder / CONFIG).exists():
        return
    from anymax.cli.train import found_from_anywhere, new_run
    from anymax.training.plain import as_plain

    asked = found_from_anywhere(new_run(job.recipe, [*options, "--seed", str(job.seed)]).config)
    different = list(changes(read_plain_config(job.folder), as_plain(asked)))
    if different:
        raise ValueError(
            f"{job.folder} holds a training with other settings: {', '.join(different)}; name another --folder, or "
            "give the same options again"
        )


def _is_done(job: Job) -> bool:
    return (job.folder / SUMMARY).exists() and (job.folder / TESTED).exists()


def _run(jobs: list[Job], command: Callable[[Job], list[str]], at_once: int, announce: Announcer) -> list[Job]:
    """Train what is not done, so many at a time; those that failed. Ctrl-C and SIGTERM have them save, and end."""
    waiting = [job for job in jobs if not _is_done(job)]
    done, failed = len(jobs) - len(waiting), []
    running: dict[Job, subprocess.Popen[bytes]] = {}
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = _start(job, command(job))
            for job, process in list(running.items()):
                if process.poll() is not None:
                    del running[job]
                    done += 1
                    if process.returncode:
                        failed.append(job)
            far = f": {', '.join(map(_how_far, running))}" if running else ""
            announce(f"{done} of {len(jobs)} trained{far}")
            time.sleep(SECONDS_BETWEEN_LOOKS)
    except KeyboardInterrupt:
        announce("stopping: each training saves where it is")
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return failed


def _start(job: Job, command: list[str]) -> subprocess.Popen[bytes]:
    # In a group of its own, so that Ctrl-C reaches it once, from here.
    with open(job.log, "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def _how_far(job: Job) -> str:
    """The name of a training and the last step it recorded."""
    records = read_metrics(job.folder)
    step = f" at step {records[-1]['step']:,}" if records else ""
    return f"{job.folder.name}{step}"


def _report(given: Comparison, jobs: list[Job], command: str) -> None:
    from anymax.analysis import comparison
    from anymax.analysis import measured_comparison as measured

    if isinstance(read_config(jobs[0].folder).task, LanguageModeling):
        results = [comparison.read_result(job.folder, job.recipe, job.seed) for job in jobs]
        if comparison.needs_choices(results):
            results = [_with_choices(job, result) for job, result in zip(jobs, results, strict=True)]
        page = comparison.page(results, command)
    else:
        page = measured.page([measured.read_measured(job.folder, job.recipe, job.seed) for job in jobs], command)
    publish(page, markdown=given.folder / "comparison.md", figures=given.folder / "comparison.png")


def _with_choices(job: Job, result: Result) -> Result:
    """The result of a run with what it chooses, which is measured where it was not yet."""
    from anymax.analysis.comparison import read_result
    from anymax.cli.evaluate import add_choices

    if result.chosen is not None:
        return result
    with Announcer() as announce:
        add_choices(job.folder, announce)
    return read_result(job.folder, job.recipe, job.seed)
