"""The Dirichlet experiment as one types it: train, evaluate, a study, and what language models alone can do."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anymax import cli
from anymax.training import read_metrics
from anymax.training.run_folder.lock import locked
from tests.cli.commands import complaint, is_unlocked
from tests.training.toys import patient

STUDY = ["analyze", "dirichlet", "--dims", "2", "3", "--concentrations", "0.1", "--seeds", "1", "--steps", "2"]
STUDY += ["--contexts", "12", "--words", "8", "--outputs", "linear", "sparse"]


pytestmark = pytest.mark.usefixtures("one_thread", "desk")


def test_a_recipe_is_trained_with_its_own_settings_and_measured(capsys: pytest.CaptureFixture[str]):
    assert (
        cli.main(["train", "dirichlet.plif", "--toy", "--concentration", "0.5", "--output.transform.pieces", "7"]) == 0
    )
    assert "anymax evaluate runs/dirichlet.plif" in capsys.readouterr().out
    config = json.loads(Path("runs/dirichlet.plif/config.json").read_text())
    assert config["task"]["concentration"] == 0.5 and config["task"]["output"]["transform"]["pieces"] == 7
    assert cli.main(["evaluate", "runs/dirichlet.plif"]) == 0
    told = capsys.readouterr().out
    measured = json.loads(Path("runs/dirichlet.plif/evaluations/test.json").read_text())["metrics"]
    assert all(f"{name} " in told for name in measured) and "perplexity" not in told


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["evaluate", "RUN", "--context", "4"], "Unrecognized options"),
        (["generate", "RUN", "The"], "DirichletConfig generates no text"),
        (["analyze", "bottleneck", "RUN"], "task must be LanguageModelingConfig here, got DirichletConfig"),
        (["analyze", "dirichlet", "--outputs", "linar"], "outputs must be among linear, scaled, sigsoftmax, "),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(command: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    if "RUN" in command:
        assert cli.main(["train", "dirichlet.linear", "--toy", "--steps", "1", "--folder", "RUN"]) == 0
    capsys.readouterr()
    assert message in complaint(capsys, *command)


def test_a_study_leaves_a_page_numbers_and_a_picture(capsys: pytest.CaptureFixture[str]):
    assert cli.main([*STUDY, "--folder", "study"]) == 0
    page = Path("study/dirichlet.md").read_text()
    assert "| **concentration 0.1** |" in page and "| linear |" in page and "| sparse |" in page
    # What the page tells to type is what was typed.
    (command,) = [line.removeprefix("$ ").split() for line in page.splitlines() if line.startswith("$ ")]
    assert command[1:3] == STUDY[:2] and sorted(command[3:]) == sorted(STUDY[2:])
    assert len(json.loads(Path("study/dirichlet.json").read_text())["runs"]) == 4
    assert Path("study/dirichlet.png").exists() == (importlib.util.find_spec("matplotlib") is not None)
    capsys.readouterr()
    assert cli.main([*STUDY, "--folder", "study"]) == 0
    assert "training: 4 of 4 done" in capsys.readouterr().err


def test_no_training_outlives_a_study_that_is_killed():
    command = [*STUDY, "--folder", "study", "--steps", "1000000000", "--jobs", "2"]
    with subprocess.Popen([sys.executable, "-m", "anymax", *command], stderr=subprocess.DEVNULL) as process:
        patient(lambda: sum(bool(read_metrics(run)) for run in Path("study/runs").glob("*")) == 2, seconds=120)
        process.kill()
    patient(lambda: all(is_unlocked(run) for run in Path("study/runs").iterdir()), seconds=120)
    # Each saved where it was, and no further one was begun.
    assert len(list(Path("study/runs").iterdir())) == len(list(Path("study/runs").glob("*/checkpoints/step_*"))) == 2


def test_a_study_beside_another_and_one_without_runs_are_refused(capsys: pytest.CaptureFixture[str]):
    with locked(Path("study")):
        assert f"process {os.getpid()} is writing to study" in complaint(capsys, *STUDY, "--folder", "study")
    for option in ("--seeds", "--jobs"):
        assert f"{option[2:]} must be at least 1, got 0" in complaint(capsys, *STUDY, option, "0")
    for option in ("--dims", "--contexts"):
        assert "must be at least" in complaint(capsys, *STUDY, option, "0")
    assert not list(Path().iterdir())
