"""The exponential average of a run: its published weights, what is saved, and that it resumes to the bit."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from anymax.training import (
    AveragedSGDConfig,
    BertAdamConfig,
    Constant,
    ExponentialAverageConfig,
    open_run,
    read_metrics,
    resume,
    train,
)
from tests.training.test_resume import assert_same
from tests.training.toys import Toy, toy_config

EVERY_STEP = {"schedule": Constant(), "evaluate_every": 1, "log_every": 1, "checkpoint_every": 1, "clip": None}
PLAIN = toy_config(Toy(), optimizer=BertAdamConfig(0.02), **EVERY_STEP, keep=99, steps=8)
CONFIG = replace(PLAIN, average=ExponentialAverageConfig(0.5))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same steps with an average, and without."""
    folder = tmp_path_factory.mktemp("runs")
    train(CONFIG, folder / "averaged")
    train(PLAIN, folder / "plain")
    return folder / "averaged", folder / "plain"


def tensors(folder: Path, step: int, file: str = "model") -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"step_{step:07d}" / f"{file}.safetensors")


def test_weights_are_the_published_ones():
    weights = [ExponentialAverageConfig().weight(step) for step in (1, 2, 90, 10**4, 10**5, 10**6)]
    assert weights == pytest.approx([9 / 11, 9 / 12, 9 / 100, 9 / 10_010, 1e-4, 1e-4])
    with pytest.raises(ValueError, match="weight_at_least must be"):
        ExponentialAverageConfig(0.0)


def test_checkpoints_have_the_average_of_what_the_same_steps_led_to_without(runs):
    averaged, plain = runs
    expected: dict[str, Tensor] = {}
    for step in range(1, 9):
        led_to = tensors(plain, step)
        iterates = tensors(averaged, step, "iterates")
        assert all(tensor.equal(led_to[name]) for name, tensor in iterates.items())
        assert set(iterates) == set(led_to) - {"scale"}
        weight = max(0.5, 1 - (step + 1) / (step + 10))
        expected = {
            name: led_to[name] if step == 1 else (1 - weight) * expected[name] + weight * tensor
            for name, tensor in iterates.items()
        }
        found = tensors(averaged, step)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor)
    assert not (plain / "checkpoints" / "step_0000008" / "iterates.safetensors").exists()


def test_the_average_is_what_is_evaluated(runs):
    averaged = runs[0]
    losses = [
        [record["metrics"]["loss"] for record in read_metrics(run) if record["kind"] == "evaluation"] for run in runs
    ]
    assert losses[0][0] == losses[1][0] and losses[0][-1] != losses[1][-1]
    task = open_run(averaged, step=8, config=CONFIG).task
    with torch.no_grad():
        assert task.evaluate(task.model, "valid")["loss"] == pytest.approx(losses[0][-1])


def test_a_run_resumes_to_the_bit_from_every_step(runs, tmp_path: Path):
    averaged, _ = runs
    for step in (1, 4, 7):
        run = tmp_path / str(step)
        shutil.copytree(averaged, run)
        resume(run, step=step, config=CONFIG)
        assert_same(run, averaged)


def test_an_average_cannot_come_or_go_when_a_run_is_resumed(runs, tmp_path: Path):
    for run, config, was in zip(runs, (PLAIN, CONFIG), ("with", "without"), strict=True):
        copy = tmp_path / was
        shutil.copytree(run, copy)
        with pytest.raises(ValueError, match=f"average must be as in the run, which was trained {was} an average"):
            resume(copy, step=4, config=config)


def test_an_optimizer_that_averages_has_none_beside_it():
    with pytest.raises(ValueError, match="average must be None with AveragedSGDConfig"):
        replace(CONFIG, optimizer=AveragedSGDConfig(1.0))
