"""`anymax compare RECIPE RECIPE ...`: train recipes with one budget and several seeds, and set them side by side."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import tyro
from tyro.conf import Positional, arg

from anymax import checks
from anymax.checks import check_counts, check_positive
from anymax.cli import own_file, subject
from anymax.cli.console import publish
from anymax.cli.evaluate import write
from anymax.cli.progress import Announcer
from anymax.cli.train import INTERRUPTED, new_run
from anymax.plain import as_plain, with_absolute_paths
from anymax.training import read_metrics
from anymax.training.run_folder.folder import (
    CONFIG,
    EVALUATIONS,
    SUMMARY,
    TESTED,
    changes,
    read_config,
    read_plain_config,
)
from anymax.training.run_folder.lock import locked
from anymax.training.signals import PARENT
from anymax.training.task_config import TaskConfig

if TYPE_CHECKING:
    from anymax.analysis.comparison.language_models import InContext, Result
    from anymax.data.prepared.prepared import Announce
    from anymax.training.config import RunConfig

_STYLE = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
_Unset = arg(metavar="NUMBER", help_behavior_hint="(default: as the recipes have it)")
# Steps that are timed to estimate the time of a step; the later half of them counts.
CALIBRATION_STEPS = 40
SECONDS_BETWEEN_LOOKS = 0.5
# What is measured with each context.
SPLITS: tuple[Literal["valid"], Literal["test"]] = ("valid", "test")
# Exit codes of trainings that a signal stopped; while they start or are tested they do not handle it.
STOPPED = (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM)


@dataclass(frozen=True)
class Comparison:
    """Train recipes with one budget, and set them side by side: one table, learning curves, loss by frequency.

    Every further option goes to each training: --steps, --epochs, --threads, --data.root, --optimizer.lr and so on.
    Trainings that are done are not done again, and one that was stopped continues: run the same command again.

    Args:
        recipes: names of recipes, as `anymax recipes` lists them.
        folder: where the runs, the table and the pictures go.
        seeds: how many seeds for each recipe, from 1.
        tokens: how many words of the training text each reads, however it cuts them.
        seconds: how long each trains, by the speed of a few steps before it; other work on the machine changes it.
        jobs: how many train at the same time; give each its --threads.
        contexts: shares of a window, as 0 0.5 0.75: language models are measured again on valid and test where this
            share of every window's tokens serves as context only.
    """

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="RECIPE RECIPE ...")]
    folder: Path = Path("comparison")
    seeds: int = 1
    tokens: Annotated[int | None, _Unset] = None
    seconds: Annotated[float | None, _Unset] = None
    jobs: int = 1
    contexts: Annotated[tuple[float, ...], arg(metavar="SHARE SHARE ...", help_behavior_hint="")] = ()


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
    _check(given, options)
    # Of two comparisons that start together, the second is refused.
    with locked(given.folder):
        return _compare(given, options, shlex.join(["anymax", "compare", *arguments]))


def _compare(given: Comparison, options: list[str], command: str) -> int:
    lengths = _lengths(given, options)
    jobs = [
        Job(recipe, seed, given.folder / f"{own_file.plain_name(recipe)}-seed-{seed}")
        for seed in range(1, given.seeds + 1)
        for recipe in given.recipes
    ]
    for job in jobs:
        _check_settings(job, [*options, *lengths[job.recipe]])
    with Announcer() as announce:
        ended = _run(jobs, lambda job: _command(job, [*options, *lengths[job.recipe]]), given.jobs, announce)
    failed = {job: code for job, code in ended.items() if code not in (0, *STOPPED)}
    if failed:
        reasons = [f"{job.folder.name}: {_last_line(job, code)} (more in {job.log})" for job, code in failed.items()]
        raise ValueError(f"a training failed: {'; '.join(reasons)}")
    stopped = [_how_far(job) for job, code in ended.items() if code in STOPPED]
    if stopped:
        named = ", ".join(stopped)
        print(f"anymax: not finished, as stopped by a signal: {named}; continue with: {command}", file=sys.stderr)
        return INTERRUPTED
    _report(given, jobs, command)
    return 0


def _check(given: Comparison, options: list[str]) -> None:
    """Refuse what cannot be compared before anything is prepared or trained."""
    if not given.recipes:
        raise ValueError(
            "compare needs the names of recipes, got none; write anymax compare RECIPE RECIPE ..., with names that "
            "`anymax recipes` lists"
        )
    check_counts(seeds=given.seeds, jobs=given.jobs, **checks.given(tokens=given.tokens))
    check_positive(**checks.given(seconds=given.seconds))
    if any(word.partition("=")[0] == "--seed" for word in options):
        raise ValueError("--seed cannot be given, as every training has its own; --seeds says how many, from 1")
    named = [name for name in ("--steps", "--epochs") if any(word.partition("=")[0] == name for word in options)]
    budgets = [*named, *(["--tokens"] if given.tokens else []), *(["--seconds"] if given.seconds else [])]
    if len(budgets) > 1:
        raise ValueError(f"one budget must be given at most, got {' and '.join(budgets)}; drop all but one")
    if len(set(given.recipes)) < len(given.recipes):
        raise ValueError(f"recipes must differ from each other, got {' '.join(given.recipes)}")
    texts = [recipe for recipe in given.recipes if subject.is_text(recipe)]
    if texts:
        raise ValueError(f"compare needs recipes, got the text {texts[0]}; name recipes, with --data.path {texts[0]}")
    tasks = {recipe: new_run(recipe, options).config.task for recipe in given.recipes}
    for recipe, task in tasks.items():
        _check_kind(recipe, given, task, tasks[given.recipes[0]])
    _check_contexts(given.contexts, tasks)


def _check_contexts(contexts: Sequence[float], tasks: Mapping[str, TaskConfig]) -> None:
    """Refuse shares that leave nothing to score, and recipes of which none reads windows."""
    for share in contexts:
        if not 0 <= share < 1:
            raise ValueError(f"contexts must be shares of a window, at least 0 and below 1, got {share:g}; 0.5 is half")
    if len(set(contexts)) < len(contexts):
        raise ValueError(f"contexts must differ from each other, got {' '.join(f'{share:g}' for share in contexts)}")
    if contexts and all(task.with_context(share) is None for task in tasks.values() for share in contexts):
        raise ValueError(
            f"--contexts cannot be given for {' '.join(tasks)}: none reads a text by windows; leave it out"
        )


def _lengths(given: Comparison, options: list[str]) -> dict[str, list[str]]:
    """The options that make every recipe as long as the budget; texts are prepared on the way."""
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
    reason = task.why_incomparable(first)
    if reason is not None:
        raise ValueError(f"{given.recipes[0]} and {recipe} cannot be compared, as {reason}; compare them apart")


def _train_words(recipe: str, options: list[str]) -> int:
    with Announcer() as announce:
        words = new_run(recipe, options).config.task.num_train_words(announce)
    if words is None:
        raise ValueError(f"--tokens cannot be given for {recipe}, which reads no text; give --epochs or --steps")
    return words


def _steps_within(given: Comparison, recipe: str, options: list[str]) -> int:
    """The steps that fit into the seconds, by how long the later ones of a short training took."""
    assert given.seconds is not None
    if (given.folder / f"{own_file.plain_name(recipe)}-seed-1" / CONFIG).exists():
        # Measured when it began; another measurement would give another number.
        steps = read_plain_config(given.folder / f"{own_file.plain_name(recipe)}-seed-1").get("steps")
        if steps is not None:
            return int(steps)
    job = Job(recipe, 1, given.folder / f".speed-of-{own_file.plain_name(recipe)}")
    # What a measurement left that was killed.
    shutil.rmtree(job.folder, ignore_errors=True)
    short = ["--steps", str(CALIBRATION_STEPS), "--log-every", str(CALIBRATION_STEPS // 2)]
    try:
        with Announcer() as announce:
            speed = f"measuring the speed of {recipe}"
            ended = _run([job], lambda job: _command(job, [*options, *short]), 1, lambda _: announce(speed))
        if ended[job]:
            raise ValueError(f"{recipe} could not be trained: {_last_line(job, ended[job])}")
        before, after = (record for record in read_metrics(job.folder) if record["kind"] == "train")
    finally:
        shutil.rmtree(job.folder, ignore_errors=True)
        job.log.unlink(missing_ok=True)
    seconds = (after["items"] - before["items"]) / after["items_per_second"]
    return max(1, round(given.seconds * (after["step"] - before["step"]) / seconds))


def _command(job: Job, options: list[str]) -> list[str]:
    anymax = [sys.executable, "-m", "anymax"]
    if (job.folder / CONFIG).exists():
        own = [own_file.OPTION, str(own_file.file_of(job.recipe))] if own_file.is_own(job.recipe) else []
        return [*anymax, "resume", str(job.folder), *own]
    return [*anymax, "train", job.recipe, "--folder", str(job.folder), "--seed", str(job.seed), *options]


def _check_settings(job: Job, options: list[str]) -> None:
    """Refuse to resume a training of an earlier comparison that had other settings."""
    if not (job.folder / CONFIG).exists():
        return
    asked = with_absolute_paths(new_run(job.recipe, [*options, "--seed", str(job.seed)]).config)
    # As it is read: a setting that came later is at its default in a config that was written before.
    different = list(changes(as_plain(_config_of(job)), as_plain(asked)))
    if different:
        raise ValueError(
            f"{job.folder} holds a training with other settings: {', '.join(different)}; name another --folder, or "
            "give the same options again"
        )


def _config_of(job: Job) -> RunConfig:
    return read_config(
        job.folder, own_file.tasks_of(own_file.file_of(job.recipe)) if own_file.is_own(job.recipe) else ()
    )


def _is_done(job: Job) -> bool:
    return (job.folder / SUMMARY).exists() and (job.folder / TESTED).exists()


def _run(jobs: list[Job], command: Callable[[Job], list[str]], at_once: int, announce: Announce) -> dict[Job, int]:
    """Train what is not done, `at_once` at a time; the exit codes of all that ended."""
    waiting = [job for job in jobs if not _is_done(job)]
    ended = {job: 0 for job in jobs if job not in waiting}
    with Children(announce) as children:
        while waiting or children.running:
            while waiting and len(children.running) < at_once:
                job = waiting.pop(0)
                children.start(job, command(job))
            ended |= children.ended()
            far = f": {', '.join(map(_how_far, children.running))}" if children.running else ""
            done = sum(code == 0 for code in ended.values())
            announce(f"{done} of {len(jobs)} trained{far}")
            if children.running:
                time.sleep(SECONDS_BETWEEN_LOOKS)
    return ended


class Children:
    """Trainings in child processes that end with the block, and with this process however it ends.

    Whatever ends the block has them save and waits for them. Ctrl-C and SIGTERM raise KeyboardInterrupt.
    """

    def __init__(self, announce: Announce) -> None:
        self.running: dict[Job, subprocess.Popen[bytes]] = {}
        self._announce = announce

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, *reason: object) -> None:
        for process in self.running.values():
            process.terminate()
        try:
            if self.running:
                self._announce("stopping: each training saves where it is")
        finally:
            # Also where the reader of the announcement is gone.
            for process in self.running.values():
                process.wait()
            signal.signal(signal.SIGTERM, self._before)

    def start(self, job: Job, command: list[str]) -> None:
        """Start a training."""
        self.running[job] = _start(job, command)

    def ended(self) -> dict[Job, int]:
        """The exit codes of those that ended since the last call."""
        codes = {job: process.poll() for job, process in self.running.items()}
        ended = {job: code for job, code in codes.items() if code is not None}
        for job in ended:
            del self.running[job]
        return ended


def _start(job: Job, command: list[str]) -> subprocess.Popen[bytes]:
    """A training that ends with this process, and writes what it prints to the log of its job."""
    environment = os.environ | {PARENT: str(os.getpid())}
    with open(job.log, "ab") as log:
        # In a session of its own, so that Ctrl-C reaches it once, from here.
        return subprocess.Popen(
            command, stdin=_pipe()[0], stdout=log, stderr=log, env=environment, start_new_session=True
        )


@cache
def _pipe() -> tuple[int, int]:
    """A pipe that stays empty: it ends for its readers when this process does."""
    return os.pipe()


def _last_line(job: Job, code: int) -> str:
    """What a training that failed printed last."""
    printed = job.log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    return printed[-1].removeprefix("anymax: ") if printed and code > 0 else f"it ended with code {code}"


def _how_far(job: Job) -> str:
    """The name of a training and the last step it recorded."""
    records = read_metrics(job.folder)
    step = f" at step {records[-1]['step']:,}" if records else ""
    return f"{job.folder.name}{step}"


def _report(given: Comparison, jobs: list[Job], command: str) -> None:
    from anymax.analysis.comparison import language_models as comparison
    from anymax.analysis.comparison import metrics as measured

    if comparison.takes(jobs[0].folder):
        results = [comparison.read_result(job.folder, job.recipe, job.seed) for job in jobs]
        if comparison.needs_choices(results):
            results = [_with_choices(job, result) for job, result in zip(jobs, results, strict=True)]
        contexts = {share: [_in_context(job, share) for job in jobs] for share in given.contexts}
        page = comparison.page(results, command, contexts)
    else:
        runs = {recipe: [job.folder for job in jobs if job.recipe == recipe] for recipe in given.recipes}
        page = measured.page(
            [measured.read_measured(job.folder, job.recipe, job.seed) for job in jobs],
            command,
            _config_of(jobs[0]).task.comparison(runs),
        )
    publish(page, markdown=given.folder / "comparison.md", figures=given.folder / "comparison.png")


def _in_context(job: Job, share: float) -> InContext | None:
    """The losses of a run where a share of each window is context; None where it reads none.

    What was not measured since the training ended is measured and kept, under the names of `anymax evaluate`.
    """
    from anymax.analysis.comparison.language_models import read_in_context
    from anymax.training import open_run

    config = _config_of(job)
    options = config.task.with_context(share)
    if options is None:
        return None
    names = {split: "-".join([split, *options.changed()]) for split in SPLITS}
    missing = [split for split, name in names.items() if not _is_measured(job.folder, name)]
    if missing:
        with Announcer() as announce:
            announce(f"measuring {job.folder.name} with a context of {share:g} of its windows")
            task = open_run(job.folder, config=config, announce=announce).task
            for split in missing:
                write(task.report(split, options, announce=announce), job.folder, names[split])
    return read_in_context(*(job.folder / EVALUATIONS / f"{names[split]}.json" for split in SPLITS))


def _is_measured(run: Path, name: str) -> bool:
    """Whether an evaluation of the best checkpoint is there; one from before a run was resumed is of another."""
    file = run / EVALUATIONS / f"{name}.json"
    return file == run / TESTED or (file.exists() and file.stat().st_mtime_ns >= (run / SUMMARY).stat().st_mtime_ns)


def _with_choices(job: Job, result: Result) -> Result:
    """The result of a run with what it chooses, which is measured where it was not yet."""
    from anymax.analysis.comparison.language_models import read_result
    from anymax.training.tasks.language_modeling.report import add_choices

    if result.chosen is not None:
        return result
    with Announcer() as announce:
        add_choices(job.folder, announce=announce)
    return read_result(job.folder, job.recipe, job.seed)
