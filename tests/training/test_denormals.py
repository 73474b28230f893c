"""Numbers too small to be held in full are zero while a run trains, and what they were before and after."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from anymax.training import Constant, resume, train
from anymax.training.reporting import Silent
from anymax.training.run import are_flushed, flushed_denormals
from tests.training.toys import toy_config


@pytest.fixture(autouse=True, params=[False, True], ids=["held before", "flushed before"])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    if not torch.set_flush_denormal(request.param):
        pytest.skip("this processor holds them always")
    yield request.param
    torch.set_flush_denormal(False)


def test_they_are_zero_inside_and_as_before_after_it(before: bool):
    assert are_flushed() == before
    with flushed_denormals():
        assert are_flushed()
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(are_flushed).result()
    assert are_flushed() == before


def test_they_are_as_before_after_an_error(before: bool):
    with pytest.raises(KeyError), flushed_denormals():
        raise KeyError
    assert are_flushed() == before


def test_runs_train_and_resumeout_them(before: bool, tmp_path: Path):
    class Looking(Silent):
        def __init__(self) -> None:
            self.seen: list[bool] = []

        def advanced(self, step: int, loss: float) -> None:
            self.seen.append(are_flushed())

    first, second = Looking(), Looking()
    train(toy_config(schedule=Constant(), steps=2), tmp_path / "run", reporter=first)
    assert are_flushed() == before
    resume(tmp_path / "run", config=toy_config(schedule=Constant(), steps=4), reporter=second)
    assert are_flushed() == before
    assert first.seen == second.seen == [True, True]
