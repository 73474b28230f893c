"""Trainings in processes of their own that are killed again and again, and must end as if nothing had happened.

    python -m tests.training.killed_runs --runs 20

starts `anymax train` at toy size, kills it with SIGKILL at a moment drawn at random, resumes with `anymax resume`,
kills that too, and compares the result with a run that was never stopped. Exits with 1 where a bit differs.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import tyro

from anymax.cli.train import new_run
from anymax.training import train
from anymax.training.run_folder.folder import CONFIG
from anymax.training.run_folder.metrics import read_metrics
from tests.training.differences import differences

# Each way to batch, words and subwords, a state that is carried, three optimizers.
RECIPES = ("sotu.bpe_tied", "billion_word.adaptive_tied", "grave.adaptive", "sotu.adaptive_tied_entmax")
STEPS = 60
OPTIONS = ["--toy", "--steps", str(STEPS), "--checkpoint-every", "5", "--evaluate-every", "7", "--threads", "1"]
# How many of the kills come while a process still starts.
EARLY = 0.25
# Seconds: of a start, of a step with what may follow it, and between two looks at how far a run is.
START, STEP, LOOK = 2.0, 0.05, 0.005
# How long a process may take that nobody kills.
PATIENCE = 1800.0


@dataclass(frozen=True)
class Life:
    """A run that was killed: after which steps, and in what it differs from one that was not."""

    recipe: str
    killed: tuple[str, ...]
    different: tuple[str, ...]

    def __str__(self) -> str:
        end = f"DIFFERENT: {'; '.join(self.different)}" if self.different else "the same to the bit"
        return f"{self.recipe} killed {', '.join(self.killed) or 'never'}: {end}"


def live(whole: Path, recipe: str, folder: Path, num_kills: int, seed: int) -> Life:
    """Train in processes that are killed, the last one apart, to what the whole run came to."""
    generator = random.Random(seed)
    killed: list[str] = []
    while True:
        process = start(recipe, folder)
        if len(killed) < num_kills and kill(process, folder, generator):
            step = last_step(folder)
            killed.append(f"after step {step}" if step else "before the first step")
            continue
        _, complaints = process.communicate(timeout=PATIENCE)
        if process.returncode:
            return Life(recipe, tuple(killed), (f"it ended with {process.returncode}: {complaints}",))
        return Life(recipe, tuple(killed), tuple(differences(whole, folder)))


def start(recipe: str, folder: Path) -> subprocess.Popen[str]:
    """Train, or resume where there is a run already."""
    arguments = ["resume", str(folder)]
    if not (folder / CONFIG).exists():
        shutil.rmtree(folder, ignore_errors=True)
        arguments = ["train", recipe, "--folder", str(folder), *OPTIONS]
    command = [sys.executable, "-m", "anymax", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str], folder: Path, generator: random.Random) -> bool:
    """Kill a process while it starts, or within some step that is left; false where it ended before."""
    assert process.stderr is not None
    if generator.random() < EARLY:
        time.sleep(generator.uniform(0, START))
    else:
        # The line that says that training begins; records of steps that are taken anew are gone by then.
        next((line for line in process.stderr if line.startswith("Training")), None)
        step = generator.randint(min(last_step(folder), STEPS - 1), STEPS - 1)
        while process.poll() is None and last_step(folder) < step:
            time.sleep(LOOK)
        time.sleep(generator.uniform(0, STEP))
    if process.poll() is not None:
        return False
    process.kill()
    process.communicate()
    return True


def last_step(folder: Path) -> int:
    """The last step that a run recorded."""
    records = read_metrics(folder)
    return int(records[-1]["step"]) if records else 0


def main(runs: int = 20, kills: int = 3, jobs: int = 2, seed: int = 1) -> int:
    """Kill and resume trainings.

    Args:
        runs: how many trainings.
        kills: how often each is killed.
        jobs: how many at the same time.
        seed: decides when they are killed, as far as a clock can tell.
    """
    failed = 0
    with tempfile.TemporaryDirectory() as name, patch.dict(os.environ, ANYMAX_CACHE=f"{name}/cache"):
        folder = Path(name)
        wholes = {recipe: folder / recipe for recipe in RECIPES[:runs]}
        for recipe, whole in wholes.items():
            train(new_run(recipe, OPTIONS).config, whole)
        with ThreadPoolExecutor(jobs) as pool:
            recipes = [RECIPES[number % len(RECIPES)] for number in range(runs)]
            lives = [
                pool.submit(live, wholes[recipe], recipe, folder / f"run-{number}", kills, seed + number)
                for number, recipe in enumerate(recipes, start=1)
            ]
            for number, ended in enumerate(lives, start=1):
                life = ended.result()
                failed += bool(life.different)
                print(f"run {number}: {life}", flush=True)
    print(f"{runs - failed} of {runs} runs ended as if they had never been killed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
