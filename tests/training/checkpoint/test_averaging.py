"""The mean of checkpoints: as computed by hand, of those that were named, and only where they fit together."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from anymax.training import average_checkpoints, open_run, train
from anymax.training.checkpoint.checkpoints import Checkpoints
from anymax.training.checkpoint.tensors import load_model, model_tensors
from tests.training.toys import toy_config


def saved(run: Path, step: int, *, identity: str = "1f", **tensors: Tensor) -> None:
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    state = {"identity": {"lexicon": identity}}
    Checkpoints(run / "checkpoints", keep=9).save(step, state, {"model": tensors, "optimizer": {"m": torch.ones(3)}})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step, factor in ((10, 1.0), (20, 2.0), (30, 6.0), (40, 100.0)):
        saved(
            tmp_path,
            step,
            weight=factor * torch.arange(4.0).view(2, 2),
            half=torch.full((3,), factor, dtype=torch.bfloat16),
            count=torch.tensor(step),
        )
    return tmp_path


def test_the_mean_is_that_of_the_named_checkpoints(run: Path):
    for options, factor, step in (
        ({"steps": [30, 10, 20]}, 3.0, 30),
        ({"last": 2}, 53.0, 40),
        ({"last": 4}, 109 / 4, 40),
        ({"steps": [20]}, 2.0, 20),
    ):
        mean = average_checkpoints(run, **options)
        torch.testing.assert_close(mean["weight"], factor * torch.arange(4.0).view(2, 2))
        torch.testing.assert_close(mean["half"], torch.full((3,), factor, dtype=torch.bfloat16))
        assert mean["count"] == step and mean["count"].dtype == torch.int64


def test_many_nearly_equal_numbers_keep_their_precision(tmp_path: Path):
    values = [1 + i * 2.0**-23 for i in range(7)]
    for step, value in enumerate(values):
        saved(tmp_path, step, weight=torch.tensor([value]))
    mean = average_checkpoints(tmp_path, last=7)["weight"]
    assert float(mean) == values[3]


def test_the_mean_of_a_run_fits_its_model(tmp_path: Path):
    folder = tmp_path / "run"
    config = toy_config(keep=3, steps=6)
    train(config, folder)
    steps = Checkpoints(folder / "checkpoints").steps()
    opened = open_run(folder, config=config, step=steps[-1])
    parts = [open_run(folder, config=config, step=step).task.model for step in steps[-3:]]
    load_model(opened.task.model, average_checkpoints(folder, last=3), folder)
    for name, tensor in model_tensors(opened.task.model).items():
        by_hand = sum(model_tensors(part)[name].detach().double() for part in parts) / 3
        torch.testing.assert_close(tensor.detach(), by_hand.float())


def test_what_has_no_mean_is_refused(run: Path):
    for options, message in (
        ({}, "either last or steps must be given, got last=None and steps=None"),
        ({"last": 1, "steps": [10]}, "either last or steps must be given"),
        ({"last": 0}, "last must be at least 1, got 0"),
        ({"last": 5}, "number of checkpoints in .*, 4, got 5; train with keep=5"),
        ({"steps": []}, "steps must name one checkpoint or several different ones"),
        ({"steps": [10, 10]}, r"several different ones, got \[10, 10\]"),
        ({"steps": [10, 11]}, "step must be one that was saved, 10, 20, 30, 40, got 11"),
    ):
        with pytest.raises(ValueError, match=message):
            average_checkpoints(run, **options)
    saved(run, 50, weight=torch.ones(3))
    with pytest.raises(ValueError, match="must hold the same tensors as the latest checkpoint, but"):
        average_checkpoints(run, last=2)
    saved(run, 60, weight=torch.ones(3), identity="2e")
    with pytest.raises(ValueError, match="must belong to this lexicon"):
        average_checkpoints(run, last=2)
    saved(run, 70, weight=torch.tensor([1.0, torch.inf, 2.0]), identity="2e")
    with pytest.raises(ValueError, match="must hold finite numbers, but weight does not"):
        average_checkpoints(run, last=2)
