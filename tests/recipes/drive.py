"""Take recipes at toy size through a whole life: trained, killed and resumed, evaluated, language models made to write.

    python -m tests.recipes.drive FOLDER RECIPE RECIPE ...

prints a line of JSON for each recipe, with what went wrong. Processes are forked, so that torch is imported once.
"""

import json
import math
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from anymax.data import prepare
from anymax.recipes import find
from anymax.training import LanguageModelingConfig, RunConfig, Task, open_run, resume, train
from anymax.training.checkpoint.checkpoints import Checkpoints
from anymax.training.reporting import EvaluationRecord, Silent
from anymax.training.run_folder.folder import CHECKPOINTS, read_config
from anymax.training.task_config import Sampling
from anymax.training.tasks.language_modeling.report import evaluate_task
from anymax.training.tasks.language_modeling.task import LanguageModelingTask
from tests.training.differences import differences

# By then the config lies in the folder; a run without it is no run yet.
FIRST_MOMENT = 2
NUM_TOKENS = 8


class Moments(Silent):
    """Counts the moments of a run at which a kill could hurt: after steps and evaluations, amid writing and removing.

    Args:
        last: die at this one, as SIGKILL has it.
    """

    def __init__(self, last: int | None = None) -> None:
        self.count = 0
        self._last = last

    def advanced(self, step: int, loss: float) -> None:
        self._pass()

    def evaluated(self, record: EvaluationRecord) -> None:
        self._pass()

    def saved(self, path: Path) -> None:
        self._pass()

    @contextmanager
    def watching_the_disk(self) -> Iterator[None]:
        """Every file is on its way to the disk once, under its temporary name; what is removed goes as a folder."""
        remove = shutil.rmtree

        def removing(*arguments: Any, **options: Any) -> None:
            self._pass()
            remove(*arguments, **options)

        # Nothing here survives a power cut anyway, so nobody waits for the disk.
        with patch("os.fsync", lambda descriptor: self._pass()), patch("shutil.rmtree", removing):
            yield

    def _pass(self) -> None:
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def drive(name: str, folder: Path) -> Iterator[str]:
    """What is wrong with a recipe, a line each."""
    config = find(name)().toy()
    if isinstance(config.task, LanguageModelingConfig):
        # So that every training finds the same work to do.
        prepare(config.task.data, spell_unknown=config.task.model.spells_unknown)
    whole, killed = folder / "whole", folder / "killed"
    moments = Moments()
    with moments.watching_the_disk():
        train(config, whole, reporter=moments)
    last = random.Random(name).randint(FIRST_MOMENT, moments.count)
    train_to_death(config, killed, last)
    resume(killed)
    yield from (f"killed at moment {last} of {moments.count}: {line}" for line in differences(whole, killed))
    yield from wrong_in_use(killed)


def train_to_death(config: RunConfig, folder: Path, last: int) -> None:
    """Train in a process of its own, which is killed at one of its moments."""
    child = os.fork()
    if child == 0:
        moments = Moments(last)
        try:
            with moments.watching_the_disk():
                train(config, folder, reporter=moments)
        finally:
            # Reached only where it was not killed.
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"the training ended with status {status}"


def wrong_in_use(run: Path) -> Iterator[str]:
    """Whether the model of a run can do what its task is for."""
    task = open_run(run).task
    if isinstance(task, LanguageModelingTask):
        yield from wrong_in_language(run, task)
    else:
        yield from wrong_in_measuring(run, task)


@torch.no_grad()
def wrong_in_measuring(run: Path, task: Task) -> Iterator[str]:
    """Whether the best model, opened again, gives the very numbers it was chosen for, all of them finite."""
    measured, chosen_for = task.evaluate(task.model, "valid"), Checkpoints(run / CHECKPOINTS).best().metrics
    if measured != chosen_for or not all(map(math.isfinite, measured.values())):
        yield f"it is measured as {measured}, and was chosen for {chosen_for}"
    tested = task.evaluate(task.model, "test")
    if tested.keys() != measured.keys() or not all(map(math.isfinite, tested.values())):
        yield f"it is tested as {tested}"


def wrong_in_language(run: Path, task: LanguageModelingTask) -> Iterator[str]:
    """Whether a language model can be measured, on every token of the test split, and can write."""
    measured = evaluate_task(task, "test", baselines=False, announce=lambda *_: None).perplexity
    there = len(task.prepared.split("test"))
    if not math.isfinite(measured.loss) or measured.num_tokens != there:
        yield f"the test loss is {measured.loss} over {measured.num_tokens} of {there} tokens"
    text = read_config(run).task.continue_text(run, "The", Sampling(NUM_TOKENS))[0]
    if not text.startswith("The") or len(text) < len("The") + NUM_TOKENS // 2:
        yield f"it continues 'The' as {text!r}"


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        try:
            problems = list(drive(name, folder / name))
        except Exception:
            problems = [traceback.format_exc()]
        print(json.dumps({"recipe": name, "problems": problems}), flush=True)
        shutil.rmtree(folder / name, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
