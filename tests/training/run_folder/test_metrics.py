"""Records on disk: lines of JSON that continue after a checkpoint, and TensorBoard's files."""

import importlib.util
import json
from pathlib import Path

import pytest

from anymax.training import EvaluationRecord, TrainRecord, read_metrics, resume, train
from anymax.training.run_folder.metrics import Metrics
from tests.training.toys import StoppingAt, toy_config


def record(step: int) -> TrainRecord:
    return TrainRecord(step, 0.5, 1.25, 0.1, 2.0, 10 * step, 5.0, 1.0, {"kl": 0.3}, {"alpha/head_0": 1.5})


def write(folder: Path, steps: range, after: int = 0) -> None:
    with Metrics(folder, step=after, tensorboard=False) as metrics:
        for step in steps:
            metrics.train(record(step))


def test_a_record_is_a_line_that_is_there_at_once(tmp_path: Path):
    with Metrics(tmp_path, step=0, tensorboard=False) as metrics:
        metrics.train(record(1))
        metrics.evaluation(EvaluationRecord(1, "valid", {"loss": 2.0}, True, 3.0))
        train_line, evaluation_line = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert train_line["kind"] == "train" and train_line["loss"] == 1.25 and train_line["log"] == {"kl": 0.3}
    assert train_line["watch"] == {"alpha/head_0": 1.5}
    assert evaluation_line == {
        "kind": "evaluation", "step": 1, "split": "valid", "metrics": {"loss": 2.0}, "is_best": True, "seconds": 3.0,
    }  # fmt: skip


def test_lines_after_the_checkpoint_and_half_lines_are_dropped(tmp_path: Path):
    write(tmp_path, range(1, 6))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 6, "lo')
    assert [each["step"] for each in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    write(tmp_path, range(4, 6), after=3)
    assert [each["step"] for each in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_damaged_line_is_named(tmp_path: Path):
    write(tmp_path, range(1, 4))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    for wrong in ("{{", "3", '{"kind": "train"}', '{"step": Infinity}', "[" * 99_999, "\udcff"):
        damaged = "\n".join([lines[0], wrong, lines[2], ""]).encode(errors="surrogateescape")
        (tmp_path / "metrics.jsonl").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"metrics.jsonl is damaged: line 2 is no record; remove the line"):
            read_metrics(tmp_path)


def scalars(folder: Path) -> dict[str, list[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder)).Reload()
    return {tag: [event.step for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def test_tensorboard_has_every_step_once_though_the_run_was_stopped(tmp_path: Path):
    pytest.importorskip("tensorboard")
    config = toy_config(tensorboard=True, log_every=1, checkpoint_every=2, evaluate_every=3)
    train(config, tmp_path / "run", reporter=StoppingAt(5))
    resume(tmp_path / "run", config=config, step=4)
    found = scalars(tmp_path / "run" / "tensorboard")
    assert {"train/loss", "train/lr", "train/gradient_norm", "train/rows", "valid/loss", "scale"} <= found.keys()
    assert found["train/loss"] == [1, 2, 3, 4, 5, 6, 7] and found["valid/loss"] == [3, 6, 7]


def test_tensorboard_that_is_missing_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"package is missing, got True; pip install 'anymax\[tensorboard\]'"):
        train(toy_config(tensorboard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
