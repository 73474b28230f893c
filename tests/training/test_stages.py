"""Stages: a run that begins with the weights of another, and one that stops early by its evaluations."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from anymax.training import AtEpoch, AveragedSGDConfig, Constant, NonMonotone, read_metrics, resume, train
from anymax.training.checkpoint.checkpoints import Checkpoints
from tests.training.test_resume import assert_same
from tests.training.toys import StoppingAt, Toy, toy_config

# So fast that evaluations get worse from the third on.
FAST = toy_config(
    Toy(carries=True, batch_size=5, num_tokens=58),
    optimizer=AveragedSGDConfig(20.0, begin=AtEpoch(0)),
    schedule=Constant(),
    clip=None,
    evaluate_every=1,
    log_every=5,
    steps=30,
    stop=NonMonotone(2),
)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "run"
    train(toy_config(steps=10, keep=9), folder)
    return folder


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step_{step:07d}" / "model.safetensors")


def test_a_run_begins_with_the_best_weights_of_another(tmp_path: Path, first: Path):
    # A rate so small that nothing is learned.
    config = toy_config(start=first, optimizer=AveragedSGDConfig(1e-30, begin=AtEpoch(0)), evaluate_every=1, steps=3)
    outcome = train(config, tmp_path / "run")
    best = Checkpoints(first / "checkpoints").best()
    assert outcome.metrics == best.metrics
    for name, tensor in weights(first, best.step).items():
        assert torch.equal(weights(tmp_path / "run", 3)[name], tensor)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["start"] == str(first)


def test_a_second_stage_resumes_by_itself_from_any_step(tmp_path: Path, first: Path):
    shutil.copytree(first, tmp_path / "first")
    config = toy_config(start=tmp_path / "first", optimizer=AveragedSGDConfig(0.1, begin=AtEpoch(0)))
    train(config, tmp_path / "whole")
    train(config, tmp_path / "run", reporter=StoppingAt(2))
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints")
    # One that was killed before its first checkpoint begins again with those weights.
    resume(tmp_path / "again", config=config)
    shutil.rmtree(tmp_path / "first")
    resume(tmp_path / "run", config=config)
    for name in ("run", "again"):
        assert_same(tmp_path / name, tmp_path / "whole", steps=False)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Toy(name="b"), "must belong to this stream, but was trained with hash of a and this is hash of b"),
        (Toy(dim=6), r"input.table is \(13, 8\) float32 there and \(13, 6\) float32 here"),
    ],
)
def test_weights_of_something_else_are_refused_before_anything_is_written(tmp_path: Path, first: Path, task, message):
    with pytest.raises(ValueError, match=message):
        train(toy_config(task, start=first), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_run_without_a_checkpoint_and_a_folder_without_a_run_are_refused(tmp_path: Path, first: Path):
    with pytest.raises(ValueError, match=r"folder must hold a run, but .*absent/config.json is missing"):
        train(toy_config(start=tmp_path / "absent"), tmp_path / "run")
    shutil.copytree(first, tmp_path / "first")
    shutil.rmtree(tmp_path / "first" / "checkpoints")
    with pytest.raises(ValueError, match=r"first/checkpoints must hold a checkpoint, but none was saved yet"):
        train(toy_config(start=tmp_path / "first"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_begun_keeps_its_start(tmp_path: Path, first: Path):
    train(toy_config(), tmp_path / "run", reporter=StoppingAt(3))
    with pytest.raises(ValueError, match=r"start must stay None in a run that has begun, got .*run; train anew"):
        resume(tmp_path / "run", config=toy_config(start=first))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    reporter = StoppingAt()
    outcome = train(FAST, folder, reporter=reporter)
    assert outcome.stopped is None and outcome.is_early and 4 <= outcome.step < 30
    assert f"finished after step {outcome.step} of 30, stopped early by NonMonotone(window=2)" in reporter.messages[-1]
    return folder


def losses(folder: Path) -> list[float]:
    return [each["metrics"]["loss"] for each in read_metrics(folder) if each["kind"] == "evaluation"]


def test_a_run_ends_well_at_the_first_evaluation_that_tells(stopped: Path):
    goals = losses(stopped)
    due = [NonMonotone(2).is_due(goals[:number], 0) for number in range(1, len(goals) + 1)]
    assert due == [False] * (len(goals) - 1) + [True]
    summary = json.loads((stopped / "summary.json").read_text())
    assert (summary["steps"], summary["ended_by"]) == (len(goals), "stop")
    assert Checkpoints(stopped / "checkpoints").steps()[-1] == len(goals)
    # The last record has the steps since the one before, as at any other end.
    last = [record for record in read_metrics(stopped) if record["kind"] == "train"][-1]
    assert last["step"] == len(goals)


def test_a_run_that_is_finished_says_so_and_stays(tmp_path: Path, stopped: Path):
    shutil.copytree(stopped, tmp_path / "run")
    reporter = StoppingAt()
    outcome = resume(tmp_path / "run", config=replace(FAST, steps=60), reporter=reporter)
    assert (outcome.step, outcome.is_early) == (len(losses(stopped)), True)
    said = "stopped early by NonMonotone(window=2), as evaluations no longer get better; resume with another stop to"
    assert said in reporter.messages[-1]
    for name, tensor in weights(stopped, outcome.step).items():
        assert torch.equal(weights(tmp_path / "run", outcome.step)[name], tensor)


def test_with_another_stop_it_resumes(tmp_path: Path, stopped: Path):
    shutil.copytree(stopped, tmp_path / "run")
    outcome = resume(tmp_path / "run", config=replace(FAST, stop=None, steps=12))
    assert (outcome.step, outcome.is_early) == (12, False)
    train(replace(FAST, stop=None, steps=12), tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ended_by"] == "steps"


def test_stopping_before_the_end_changes_nothing(tmp_path: Path, stopped: Path):
    train(FAST, tmp_path / "run", reporter=StoppingAt(2))
    resume(tmp_path / "run", config=FAST)
    assert_same(tmp_path / "run", stopped, steps=False)


def test_a_run_that_averages_is_not_over_before_it_does(tmp_path: Path):
    # Both wait for the same; the end counts anew once averages are evaluated.
    config = replace(FAST, optimizer=AveragedSGDConfig(20.0, begin=NonMonotone(2)))
    reporter = StoppingAt()
    outcome = train(config, tmp_path / "run", reporter=reporter)
    (begins,) = [text for text in reporter.messages if text.startswith("averaging begins")]
    began = int(begins.split()[-1])
    goals = losses(tmp_path / "run")
    assert NonMonotone(2).is_due(goals[:began], 0) and not NonMonotone(2).is_due(goals[: began - 1], 0)
    assert outcome.is_early and NonMonotone(2).is_due(goals[began:], 0)
