"""Discrete latents as one types it: choices of a recipe, training with one, and several side by side."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from anymax import cli
from anymax.cli.compare import Job
from anymax.cli.train import chosen, new_run
from tests.cli.commands import QUICK, complaint

pytestmark = pytest.mark.usefixtures("one_thread", "desk")


def test_recipes_are_listed_with_their_choices(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["recipes", "latent"]) == 0
    words = [(line.split(), line) for line in capsys.readouterr().out.splitlines()]
    lines = {first[0]: line for first, line in words if first and "." in first[0]}
    assert all(name.startswith("latent.") for name in lines) and len(lines) == 8
    offered = "--estimator sparse | dense | sfe | sfe_plus | nvil | gumbel | st_gumbel | sum_and_sample"
    assert lines["latent.ssvae_quick"].rstrip().endswith(offered)
    assert "--estimator sparsemap | budget | topk |" in lines["latent.bits_128"]


def test_a_choice_is_an_option_or_part_of_the_name():
    for words in (["--estimator", "dense"], ["--estimator=dense"]):
        assert chosen("latent.ssvae", ["--toy", *words, "--seed", "2"]) == (
            "latent.ssvae.dense",
            ["--toy", "--seed", "2"],
        )
    for name in ("latent.ssvae.dense", "latent.ssvae", "sotu.softmax"):
        assert chosen(name, ["--estimator.hidden", "3"]) == (name, ["--estimator.hidden", "3"])


def test_a_choice_is_trained_measured_and_resumed(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "latent.ssvae_quick", "--estimator", "dense", *QUICK, "--vector-size", "3"]) == 0
    printed = capsys.readouterr().out
    run = Path("runs/latent.ssvae_quick.dense")
    task = json.loads((run / "config.json").read_text())["task"]
    assert (
        task["estimator"]["kind"] == "DenseMarginalConfig" and task["vector_size"] == 3 and task["mapping"] == "softmax"
    )
    tested = json.loads((run / "evaluations" / "test.json").read_text())
    assert tested["split"] == "test" and tested["metrics"]["calls"] == 10
    assert re.search(r"On the test split:\n(.*\n)*accuracy 0\.\d+", printed) and f"anymax evaluate {run}" in printed
    assert cli.main(["evaluate", str(run), "--split", "valid"]) == 0
    assert "accuracy " in capsys.readouterr().out
    assert cli.main(["resume", str(run), "--steps", "3"]) == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 3


def test_the_settings_of_a_choice_are_options():
    config = new_run("latent.bits_quick.gumbel", ["--estimator.rate", "0.5", "--num-bits", "7"]).config
    assert (config.task.estimator.rate, config.task.num_bits) == (0.5, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "latent.ssvae_quick", "--estimator", "denze"],
            "must name a choice of the recipe latent.ssvae_quick",
        ),
        (["train", "latent.ssvae_quick", "--estimator"], "must name a choice of the recipe latent.ssvae_quick"),
        (["train", "latent.bits_quick.dense"], "they are sparsemap, budget, topk"),
        (["train", "latent.ssvae", "--images.root", "absent"], "train-images-idx3-ubyte is not there"),
        (["train", "latent.signalling_quick", "--images.path", "absent"], "train.safetensors is not there"),
        (["train", "latent.signalling_quick", "--distinct", "labels", "--num-candidates", "11"], "10 different labels"),
        (["compare", "latent.ssvae_quick", "latent.bits_quick", "--toy"], "recipes must be of one task to be compared"),
        (["compare", "latent.ssvae_quick", "sotu.softmax", "--toy"], "recipes must be of one task to be compared"),
        (["compare", "latent.bits_quick.sfe", "--tokens", "9"], "--tokens cannot be given for latent.bits_quick.sfe"),
        (["compare", "latent.bits_quick.sfe", "latent.bits_quick.x"], "must name a choice of the recipe"),
    ],
)
def test_a_mistake_is_reported_and_nothing_is_left_behind(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert message in complaint(capsys, *arguments)
    assert not [path for path in Path().rglob("*") if path.is_file()]


def trained_here(job: Job, command: list[str]) -> SimpleNamespace:
    """A training that is over when it begins, in place of a process of its own."""
    assert command[:3] == [sys.executable, "-m", "anymax"]
    code = cli.main(command[3:])
    return SimpleNamespace(returncode=code, poll=lambda: code)


def test_choices_are_compared_side_by_side(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anymax.cli.compare._start", trained_here)
    recipes = ["latent.bits_quick.topk", "latent.bits_quick.sfe"]
    command = ["compare", *recipes, *QUICK, "--folder", "both"]
    assert cli.main(command) == 0
    printed, page = capsys.readouterr().out, Path("both/comparison.md").read_text()
    head, _, *rows = [line for line in page.splitlines() if line.startswith("|")]
    columns = ["recipe", "loss", "rate", "distortion", "bits_per_dim", "calls", "exact", "parameters", "ms a step"]
    assert [cell.strip() for cell in head.split("|")[1:10]] == columns
    assert [row.split("|")[1].strip() for row in rows] == recipes and all(name in printed for name in recipes)
    for name, row in zip(recipes, rows, strict=True):
        tested = json.loads(Path(f"both/{name}-seed-1/evaluations/test.json").read_text())["metrics"]
        assert row.split("|")[2].strip() == f"{tested['loss']:.4g}"
    assert f"anymax {' '.join(command)}" in page
    assert Path("both/comparison.png").exists() == (importlib.util.find_spec("matplotlib") is not None)
    assert "Unrecognized options" in complaint(capsys, "evaluate", f"both/{recipes[0]}-seed-1", "--context", "4")


def test_features_are_found_from_any_folder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    Path("features").mkdir()
    for split in ("train", "test"):
        tensors = {"features": torch.rand(60, 7), "labels": torch.arange(60) % 6}
        save_file(tensors, f"features/{split}.safetensors")
    # The toy has its own images; what is asked for comes after it.
    options = ["--images.path", "features", "--num-labelled", "20", "--folder", "run"]
    assert cli.main(["train", "latent.ssvae_quick", *QUICK, *options]) == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert cli.main(["resume", "../run", "--steps", "3"]) == 0
