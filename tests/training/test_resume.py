"""Resume: to the bit what the run would have been, from wherever it was stopped."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from anymax.training import AdagradConfig, Cosine, NesterovConfig, read_metrics, resume, train
from anymax.training.checkpoint.checkpoints import Checkpoints
from tests.training.toys import StoppingAt, Toy, toy_config

KINDS = {
    "blocks": toy_config(accumulate=3),
    # Two batches are an epoch, where the state begins anew.
    "rows with a state": toy_config(Toy(carries=True, batch_size=5, num_tokens=58)),
    "nesterov": toy_config(optimizer=NesterovConfig(0.1, momentum=0.9, weight_decay=0.01), evaluate_every=None),
    "adagrad": toy_config(optimizer=AdagradConfig(0.1), schedule=Cosine(0.3), log_every=3),
}
TIMES = {"seconds", "items_per_second"}


def contents(folder: Path) -> dict[str, Any]:
    """Everything a finished run leaves that must not depend on where it was stopped."""
    last = folder / "checkpoints" / f"step_{Checkpoints(folder / 'checkpoints').steps()[-1]:07d}"
    files = {file.name: load_file(file) for file in sorted(last.glob("*.safetensors"))}
    state = json.loads((last / "state.json").read_text())
    progress = {name: value for name, value in state["progress"].items() if "seconds" not in name}
    progress["since_record"].pop("seconds")
    return {
        "tensors": {f"{file}/{name}": tensor for file, held in files.items() for name, tensor in held.items()},
        "state": {**progress, "data": state["data"], "identity": state["identity"]},
        "metrics": [{k: v for k, v in record.items() if k not in TIMES} for record in read_metrics(folder)],
        "best": Checkpoints(folder / "checkpoints").best(),
        "steps": Checkpoints(folder / "checkpoints").steps(),
        "config": json.loads((folder / "config.json").read_text()),
    }


def assert_same(one: Path, other: Path, *, steps: bool = True) -> None:
    left, right = contents(one), contents(other)
    tensors = left.pop("tensors"), right.pop("tensors")
    assert tensors[0].keys() == tensors[1].keys()
    assert [name for name in tensors[0] if not torch.equal(tensors[0][name], tensors[1][name])] == []
    if not steps:
        left.pop("steps"), right.pop("steps")
    assert left == right


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that were never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    for name, config in KINDS.items():
        train(config, folder / name)
    return {name: folder / name for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("step", [2, 3, 4, 5, 6])
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path: Path, whole, name: str, step: int):
    config = KINDS[name]
    # A signal after a step ends the next one.
    stopped = train(config, tmp_path / "run", reporter=StoppingAt(step - 1))
    assert (stopped.step, stopped.stopped) == (step, "signal")
    resumed = resume(tmp_path / "run", config=config)
    assert (resumed.step, resumed.stopped) == (7, None)
    assert_same(tmp_path / "run", whole[name], steps=False)


def test_stopping_after_every_step_changes_nothing(tmp_path: Path, whole):
    config = KINDS["rows with a state"]
    outcome = train(config, tmp_path / "run", reporter=StoppingAt(1))
    while outcome.stopped:
        outcome = resume(tmp_path / "run", config=config, reporter=StoppingAt(outcome.step + 1))
    assert_same(tmp_path / "run", whole["rows with a state"], steps=False)


def test_a_run_reads_its_own_config(tmp_path: Path, whole, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anymax.training.config.TASKS", (Toy,))
    train(KINDS["blocks"], tmp_path / "run", reporter=StoppingAt(4))
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", whole["blocks"], steps=False)


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path, whole):
    shutil.copytree(whole["blocks"], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "toy.txt").unlink()
    resume(tmp_path / "run", config=KINDS["blocks"])
    assert_same(tmp_path / "run", whole["blocks"])
    assert (tmp_path / "run" / "toy.txt").read_text() == "a"


def test_an_older_checkpoint_can_be_chosen_and_later_ones_go(tmp_path: Path, whole):
    config = replace(KINDS["blocks"], keep=9)
    train(config, tmp_path / "run")
    reporter = StoppingAt()
    resume(tmp_path / "run", config=config, step=2, reporter=reporter)
    later = [step for step in Checkpoints(tmp_path / "run" / "checkpoints").steps() if step > 2]
    assert f"removing the checkpoints of later steps: {', '.join(map(str, later))}" in reporter.messages
    train(config, tmp_path / "again")
    assert_same(tmp_path / "run", tmp_path / "again")


def test_going_back_before_the_best_forgets_it(tmp_path: Path):
    config = toy_config(steps=12, keep=9, checkpoint_every=1, evaluate_every=5)
    assert train(config, tmp_path / "run", reporter=StoppingAt(5)).best_step == 5
    outcome = resume(tmp_path / "run", config=config, step=2, reporter=StoppingAt(3))
    assert (outcome.step, outcome.best_step) == (4, None)
    assert not (tmp_path / "run" / "checkpoints" / "best.json").exists()


def test_a_best_whose_checkpoint_is_gone_is_forgotten(tmp_path: Path):
    config = toy_config(steps=9, keep=2, checkpoint_every=1, evaluate_every=3)
    stopped = train(config, tmp_path / "run", reporter=StoppingAt(6))
    assert stopped.best_step == 6 and Checkpoints(tmp_path / "run" / "checkpoints").steps() == [6, 7]
    # As if step 6 had not been the best, and the one that was had been removed by hand.
    train(config, tmp_path / "other", reporter=StoppingAt(4))
    shutil.rmtree(tmp_path / "other" / "checkpoints" / "step_0000003")
    outcome = resume(tmp_path / "other", config=replace(config, evaluate_every=None), reporter=StoppingAt(6))
    assert (outcome.step, outcome.best_step) == (7, None)


def test_more_steps_resume_from_the_end_and_are_kept_in_the_config(tmp_path: Path):
    config = toy_config(steps=4)
    train(config, tmp_path / "run")
    reporter = StoppingAt()
    more = replace(config, steps=7)
    outcome = resume(tmp_path / "run", config=more, reporter=reporter)
    assert outcome.step == 7 and "resuming with another config: steps 4 -> 7" in reporter.messages
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 7
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 7


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, whole):
    shutil.copytree(whole["blocks"], tmp_path / "run")
    outcome = resume(tmp_path / "run", config=KINDS["blocks"])
    assert (outcome.step, outcome.stopped) == (7, None) and outcome.metrics
    assert_same(tmp_path / "run", whole["blocks"])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 7


def test_fewer_steps_end_a_stopped_run_with_an_evaluation(tmp_path: Path):
    config = toy_config(evaluate_every=None)
    stopped = train(config, tmp_path / "run", reporter=StoppingAt(3))
    assert stopped.metrics == {}
    outcome = resume(tmp_path / "run", config=replace(config, steps=4))
    assert outcome.step == 4 and outcome.metrics["loss"] > 0 and outcome.best_step == 4


def test_times_add_up_over_resumed_runs(tmp_path: Path):
    config = toy_config(Toy(pace=0.02), log_every=1)
    train(config, tmp_path / "run", reporter=StoppingAt(4))
    resume(tmp_path / "run", config=config)
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds) and seconds[-1] > 7 * 0.02
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["training_seconds"] > 7 * 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": Toy(name="b")}, r"must belong to this stream, but was trained with hash of a and this is hash of b"),
        ({"task": Toy(batch_size=3)}, r"made with batch_size 4 \(now 3\)"),
        ({"task": Toy(dim=6)}, r"model.safetensors must fit the model, but input.table is \(13, 8\) float32 there and"),
        (
            {"optimizer": NesterovConfig(0.1)},
            r"must be the AdamW that .*step_0000004 was trained with, got SGD",
        ),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_and_stays(tmp_path: Path, change: dict[str, Any], message: str):
    config = toy_config(evaluate_every=None)
    train(config, tmp_path / "run", reporter=StoppingAt(3))
    before = (tmp_path / "run" / "config.json").read_text()
    with pytest.raises(ValueError, match=message):
        resume(tmp_path / "run", config=replace(config, **change))
    assert (tmp_path / "run" / "config.json").read_text() == before
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2, 4]


def test_a_new_run_needs_a_folder_of_its_own(tmp_path: Path):
    train(toy_config(steps=3), tmp_path / "run")
    with pytest.raises(ValueError, match=r"holds a run; continue it with `anymax resume .*run`, or name another"):
        train(toy_config(), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"folder must be new or empty, but .*other holds other files"):
        train(toy_config(), tmp_path / "other")
    with pytest.raises(ValueError, match=r"folder must hold a run, but .*config.json is missing"):
        resume(tmp_path / "other")


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"folder must be writable, but .*file/run is not: Not a directory"):
        train(toy_config(), tmp_path / "file" / "run")


def test_a_disk_without_room_for_the_checkpoints_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ValueError, match=r"must have room for 0.0 MB of checkpoints, but 0.0 MB are free; make room"):
        train(toy_config(), tmp_path / "run")


def test_a_run_of_another_thread_is_trained_without_signals(tmp_path: Path):
    from concurrent.futures import ThreadPoolExecutor

    handler = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(train, toy_config(steps=3), tmp_path / "run").result()
    assert outcome.step == 3 and signal.getsignal(signal.SIGINT) is handler
