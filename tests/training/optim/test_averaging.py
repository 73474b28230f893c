"""Averaging in a run: when it begins, what is evaluated and saved, and that it resumes to the bit."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from anymax.training import (
    AtEpoch,
    AveragedSGDConfig,
    Constant,
    NonMonotone,
    SGDConfig,
    open_run,
    read_metrics,
    resume,
    train,
)
from anymax.training.checkpoint.checkpoints import Checkpoints
from tests.training.test_resume import assert_same
from tests.training.toys import StoppingAt, Toy, toy_config

TASK = Toy(carries=True, random_lengths=True, batch_size=5, num_tokens=58, penalty=0.01, bias_rate=0.5)
# So fast that evaluations soon get worse.
OPTIMIZER = AveragedSGDConfig(2.0, begin=NonMonotone(1))
EVERY_STEP = {"schedule": Constant(), "evaluate_every": 1, "log_every": 1, "checkpoint_every": 1, "clip": None}
CONFIG = toy_config(TASK, optimizer=OPTIMIZER, **EVERY_STEP, keep=99, steps=8)
SWITCH = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that begins to average after the third step."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    reporter = StoppingAt()
    train(CONFIG, folder, reporter=reporter)
    assert reporter.messages == [f"averaging begins after step {SWITCH}"]
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same steps without averages."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(replace(CONFIG, optimizer=SGDConfig(2.0)), folder)
    return folder


def tensors(folder: Path, step: int, file: str = "model") -> dict[str, Tensor]:
    path = folder / "checkpoints" / f"step_{step:07d}" / f"{file}.safetensors"
    return load_file(path) if path.exists() else {}


def test_averages_are_saved_and_they_are_the_means_of_what_plain_steps_led_to(whole: Path, plain: Path):
    for step in range(1, 9):
        iterates = [tensors(plain, number) for number in range(min(step, SWITCH + 1), step + 1)]
        for name, saved in tensors(whole, step).items():
            mean = torch.stack([iterate[name].double() for iterate in iterates]).mean(0)
            torch.testing.assert_close(saved, mean.float(), rtol=1e-5, atol=1e-6)


def test_where_its_steps_led_is_in_the_file_of_the_optimizer(whole: Path, plain: Path):
    assert tensors(whole, SWITCH, "optimizer") == {}
    for step in (SWITCH + 1, 8):
        held = tensors(whole, step, "optimizer")
        for name, iterate in tensors(plain, step).items():
            if name != "scale":
                torch.testing.assert_close(held[f"{name}.iterate"], iterate)
                assert held[f"{name}.step"] == step - SWITCH and f"{name}.average" not in held


def test_averages_are_evaluated_and_an_opened_run_has_them(whole: Path):
    losses = {each["step"]: each["metrics"]["loss"] for each in read_metrics(whole) if each["kind"] == "evaluation"}
    assert Checkpoints(whole / "checkpoints").best().step == min(losses, key=losses.get)
    for step in (SWITCH, SWITCH + 1, 8):
        opened = open_run(whole, config=CONFIG, step=step)
        with torch.no_grad():
            assert opened.task.evaluate(opened.task.model, "valid")["loss"] == losses[step]


def test_records_tell_whether_it_averages(whole: Path, plain: Path):
    records = [record["log"] for record in read_metrics(whole) if record["kind"] == "train"]
    assert [log["averaging"] for log in records] == [0.0] * SWITCH + [1.0] * (8 - SWITCH)
    assert all("averaging" not in record.get("log", {}) for record in read_metrics(plain))


@pytest.mark.parametrize("step", range(1, 8))
def test_a_run_resumes_to_the_bit_before_at_and_after_the_switch(tmp_path: Path, whole: Path, step: int):
    shutil.copytree(whole, tmp_path / "run")
    resume(tmp_path / "run", config=CONFIG, step=step)
    assert_same(tmp_path / "run", whole)


def test_what_is_published_resumes_to_the_bit(tmp_path: Path):
    config = replace(CONFIG, optimizer=AveragedSGDConfig(1.0, begin=AtEpoch(1), decay=0.1, start=2, published=True))
    train(config, tmp_path / "whole")
    for step in (2, 4, 6):
        shutil.copytree(tmp_path / "whole", tmp_path / str(step))
        resume(tmp_path / str(step), config=config, step=step)
        assert_same(tmp_path / str(step), tmp_path / "whole")


def test_evaluating_and_saving_averages_changes_nothing_in_training(tmp_path: Path):
    often = replace(CONFIG, optimizer=AveragedSGDConfig(1.0, begin=AtEpoch(0)))
    train(often, tmp_path / "often")
    train(replace(often, evaluate_every=None, checkpoint_every=100), tmp_path / "rarely")
    for file in ("model", "optimizer"):
        one, other = (tensors(tmp_path / name, 8, file) for name in ("often", "rarely"))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_an_epoch_begins_averaging_with_the_step_after_it(tmp_path: Path):
    # Two batches are an epoch.
    task = replace(TASK, random_lengths=False)
    reporter = StoppingAt()
    train(
        replace(CONFIG, task=task, optimizer=AveragedSGDConfig(0.5, begin=AtEpoch(2))),
        tmp_path / "run",
        reporter=reporter,
    )
    assert reporter.messages == ["averaging begins after step 4"]


def test_an_undefined_loss_in_the_step_that_begins_it_loses_nothing(tmp_path: Path, whole: Path):
    failing = replace(CONFIG, task=replace(TASK, nan_from=SWITCH + 1))
    outcome = train(failing, tmp_path / "run")
    assert (outcome.step, outcome.stopped) == (SWITCH, "diverged")
    resume(tmp_path / "run", config=CONFIG)
    for file in ("model", "optimizer"):
        one, other = tensors(tmp_path / "run", 8, file), tensors(whole, 8, file)
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_what_overflowed_is_never_saved(tmp_path: Path):
    config = replace(CONFIG, optimizer=AveragedSGDConfig(1e38, begin=AtEpoch(0)), evaluate_every=None)
    assert train(config, tmp_path / "run").stopped == "diverged"
    for step in Checkpoints(tmp_path / "run" / "checkpoints").steps():
        for file in ("model", "optimizer"):
            assert all(tensor.isfinite().all() for tensor in tensors(tmp_path / "run", step, file).values())


def test_the_state_of_a_run_is_plain_and_tells_since_when(whole: Path):
    state = json.loads((whole / "checkpoints" / "step_0000008" / "state.json").read_text())
    assert state["optimizer"] == "AveragedSGD"
    assert state["progress"]["averaging_since"] == SWITCH and len(state["progress"]["goals"]) == 8 - SWITCH
