"""A task in a user's own file goes through every verb, and is imported only where the command line names it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anymax.training.run_folder.metrics import read_metrics
from tests.cli.commands import code_of, complaint, out
from tests.training.differences import differences
from tests.training.toys import patient

pytestmark = pytest.mark.usefixtures("one_thread", "desk")

# Points on a line and the side they are on: the goal, accuracy, is best when it is largest.
FILE = """
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from anymax.data.batches.batches import RowBatches
from anymax.training import AdamConfig, Constant, RunConfig, Step, Task, TaskConfig

Path("imported").touch()


@dataclass(frozen=True)
class Sides(TaskConfig):
    points: int = 64
    pace: float = 0.0

    def build(self, folder, ranks, *, seed, announce):
        return SidesTask(self, ranks, seed)

    def toy(self):
        return replace(self, points=16)


class SidesTask(Task):
    goal, larger_is_better, item = "accuracy", True, "point"

    def __init__(self, config, ranks, seed):
        self.config, self.ranks, self.seed = config, ranks, seed
        self.model = nn.Linear(1, 2)
        self.x = torch.linspace(-1, 1, config.points)[:, None]
        self.y = (self.x[:, 0] > 0.1).long()

    def batches(self, split):
        return RowBatches(self.config.points, 8, seed=self.seed, rank=self.ranks.rank, world_size=self.ranks.world_size)

    def step(self, model, batch, carry):
        time.sleep(self.config.pace)
        return Step(nn.functional.cross_entropy(model(self.x[batch]), self.y[batch], reduction="sum"), len(batch))

    def evaluate(self, model, split):
        return {"accuracy": float((model(self.x).argmax(1) == self.y).float().mean()), "points": float(len(self.y))}

    def save(self, folder):
        pass

    def identity(self):
        return {"points": str(self.config.points)}


def quick():
    '''Sides of points, fast.'''
    return RunConfig(Sides(), AdamConfig(0.1), Constant(), steps=40, checkpoint_every=2, evaluate_every=5, log_every=1)


def slow():
    return replace(quick(), optimizer=AdamConfig(0.001))


def wrong():
    return 3
"""


@pytest.fixture
def file() -> Path:
    Path("my_task.py").write_text(FILE)
    return Path("my_task.py")


def test_a_task_of_an_own_file_is_trained_killed_resumed_evaluated_and_compared(
    file: Path, capsys: pytest.CaptureFixture[str]
):
    shown = out(capsys, "train", "my_task.py:quick", "--folder", "whole")
    assert "accuracy 1" in shown and "anymax evaluate whole" in shown
    best = json.loads(Path("whole/checkpoints/best.json").read_text())
    evaluations = [record for record in read_metrics(Path("whole")) if record["kind"] == "evaluation"]
    assert best["metrics"]["accuracy"] == max(each["metrics"]["accuracy"] for each in evaluations) > 0.9
    # Killed amid its steps, it ends as if it had not been.
    command = [sys.executable, "-m", "anymax", "train", "my_task.py:quick", "--folder", "killed", "--pace", "0.02"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    patient(lambda: len(read_metrics(Path("killed"))) > 6)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    refused = complaint(capsys, "resume", "killed")
    assert "got 'Sides'; if it is your own task, name its file with --from FILE.py" in refused
    out(capsys, "resume", "killed", "--pace", "0", "--from", "my_task.py")
    assert list(differences(Path("whole"), Path("killed"))) == []
    assert "accuracy 1" in out(capsys, "evaluate", "killed", "--from=my_task.py", "--split", "valid")
    again = out(capsys, "train", "--config", "whole/config.json", "--from", "my_task.py", "--folder", "again")
    assert again.splitlines()[:2] == shown.splitlines()[:2]
    compared = ["compare", "my_task.py:quick", "my_task.py:slow", "--seeds", "1", "--folder", "both", "--steps", "6"]
    assert "accuracy" in out(capsys, *compared)
    assert {"my_task.quick-seed-1", "my_task.slow-seed-1", "comparison.md"} <= set(os.listdir("both"))
    # Done already, and not trained again.
    assert "accuracy" in out(capsys, *compared)


def test_a_run_folder_never_has_its_task_imported(file: Path, capsys: pytest.CaptureFixture[str]):
    out(capsys, "train", "my_task.py:Sides", "--folder", "run", "--steps", "2")
    Path("imported").unlink()
    script = "from anymax import cli; assert cli.main(['evaluate', 'run']) == 2"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert not Path("imported").exists()


def test_what_an_own_file_lacks_is_reported(file: Path, capsys: pytest.CaptureFixture[str]):
    mistakes = {
        "train absent.py:quick": "absent.py must be a Python file, but there is none",
        "train my_task.py:quik": "my_task.py must have 'quik', got quick, slow, wrong; name one of those",
        "train my_task.py:wrong": "my_task.py:wrong must give a RunConfig or a TaskConfig, got int",
        "resume run --from": "--from must be followed by a file",
        "train sotu.bpe --from my_task.py": "--from must come with --config, got it with sotu.bpe; leave it out",
        "compare my_task.py:quick my_task.py:slow --tokens 9": "--tokens cannot be given for my_task.py:quick",
    }
    assert code_of("train", "my_task.py:quick", "--folder", "run", "--steps", "1") == 0
    for command, said in mistakes.items():
        assert said in complaint(capsys, *command.split())
    assert "Sides of points, fast." in out(capsys, "train", "my_task.py:quick", "--help")
