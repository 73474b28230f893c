"""The loop: gradients of the mean, records, evaluations, what is kept, and how it ends."""

import json
import math
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from anymax.training import Constant, Cosine, NesterovConfig, Ranks, open_run, read_metrics, resume, train
from anymax.training.checkpoint.checkpoints import Checkpoints
from anymax.training.loop import seed_of
from tests.training.toys import StoppingAt, Toy, ToyTask, toy_config

SGD = NesterovConfig(0.5, momentum=0.5)


def weights(folder: Path, step: int) -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"step_{step:07d}" / "model.safetensors")


def untrained(config, folder: Path) -> ToyTask:
    """The task as `train` builds it."""
    torch.manual_seed(seed_of(config.seed, "model"))
    return config.task.build(folder, Ranks(), seed=config.seed, announce=lambda *_: None)


@pytest.mark.parametrize("carries", [False, True])
def test_a_run_is_what_a_plain_loop_over_the_same_batches_gives(tmp_path: Path, carries: bool):
    config = toy_config(Toy(dropout=0.0, carries=carries), optimizer=SGD, schedule=Constant(), clip=0.2, steps=12)
    train(config, tmp_path / "run")
    task = untrained(config, tmp_path)
    optimizer = torch.optim.SGD(task.model.parameters(), 0.5, momentum=0.5, nesterov=True)
    batches, losses, norms = task.batches("train"), [], []
    while len(losses) < 12:
        zeros = torch.zeros(4, 8)
        state = zeros
        for batch in batches:
            loss, state = task.model(batch.ids, batch.target, (state if carries else zeros)[: len(batch.ids)])
            loss = loss / batch.lengths.sum()
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(task.model.parameters(), 0.2)))
            optimizer.step()
            optimizer.zero_grad()
            losses.append((loss.item(), int(batch.lengths.sum())))
            if len(losses) == 12:
                break
    saved = weights(tmp_path / "run", 12)
    assert set(saved) == {*dict(task.model.named_parameters()), "scale"}
    for name, parameter in task.model.named_parameters():
        torch.testing.assert_close(saved[name], parameter.detach())
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
    for i, record in enumerate(records):
        (first, m), (second, n) = losses[2 * i : 2 * i + 2]
        assert record["loss"] == pytest.approx((m * first + n * second) / (m + n), rel=1e-5)
        assert record["gradient_norm"] == pytest.approx(norms[2 * i + 1], rel=1e-4)
        assert record["watch"] == {"scale": 1.5}
    assert records[-1]["items"] == sum(number for _, number in losses)


def test_accumulated_batches_are_one_large_batch_though_they_have_uneven_counts(tmp_path: Path):
    # 150 tokens in rows of 5 are 30 rows: batches of 4 end with one of 2, batches of 12 with one of 6.
    large = toy_config(Toy(dropout=0.0, batch_size=12), optimizer=SGD, schedule=Constant())
    small = replace(large, task=replace(large.task, batch_size=4), accumulate=3)
    train(large, tmp_path / "large")
    train(small, tmp_path / "small")
    records = [read_metrics(tmp_path / name) for name in ("large", "small")]
    for one, other in zip(*records, strict=True):
        assert one["step"] == other["step"] and one.get("items") == other.get("items")
        losses = [record.get("metrics", record)["loss"] for record in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.testing.assert_close(weights(tmp_path / "small", 7), weights(tmp_path / "large", 7), rtol=1e-4, atol=1e-5)


def test_epochs_are_counted_in_steps_that_do_not_reach_over_their_ends(tmp_path: Path):
    # 30 rows in batches of 4 are 8 batches: with 3 to a step, steps of 3, 3 and 2.
    config = toy_config(Toy(), steps=None, epochs=2, accumulate=3, log_every=1)
    outcome = train(config, tmp_path / "run")
    assert (outcome.step, outcome.total_steps, outcome.stopped) == (6, 6, None)
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert [record["epoch"] for record in records] == [0.375, 0.75, 1.0, 1.375, 1.75, 2.0]
    assert [record["items"] for record in records] == [60, 120, 150, 210, 270, 300]
    assert replace(config, epochs=0.5).total_steps(lambda epoch: 8) == 2
    assert replace(config, epochs=0.1, accumulate=1).total_steps(lambda epoch: 30) == 3


def test_evaluations_come_whenever_an_epoch_ends(tmp_path: Path):
    # Eight batches, two to a step, are an epoch of four steps.
    train(toy_config(steps=10, accumulate=2, evaluate_every="epoch"), tmp_path / "run")
    evaluations = [record["step"] for record in read_metrics(tmp_path / "run") if record["kind"] == "evaluation"]
    assert evaluations == [4, 8, 10]
    state = json.loads((tmp_path / "run" / "checkpoints" / "step_0000010" / "state.json").read_text())
    records = [record["metrics"]["loss"] for record in read_metrics(tmp_path / "run") if record["kind"] == "evaluation"]
    assert state["progress"]["goals"] == records


def test_the_rate_of_a_record_is_the_one_that_was_used(tmp_path: Path):
    schedule = Cosine(0.3, minimum=0.1)
    train(toy_config(schedule=schedule, log_every=1), tmp_path / "run")
    rates = [record["lr"] for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert rates == [0.05 * schedule.factor(step, 7) for step in range(7)]


def test_evaluations_come_when_due_and_at_the_end_and_the_best_stays(tmp_path: Path):
    outcome = train(toy_config(steps=10, keep=1), tmp_path / "run")
    evaluations = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "evaluation"]
    assert [record["step"] for record in evaluations] == [3, 6, 9, 10]
    losses = {record["step"]: record["metrics"]["loss"] for record in evaluations}
    best = min(losses, key=losses.get)
    assert outcome.best_step == best and outcome.metrics == evaluations[-1]["metrics"]
    noted = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    assert noted == {"step": best, "metrics": {"loss": losses[best], "words": 40.0}}
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == sorted({best, 10})


def test_the_last_checkpoints_stay(tmp_path: Path):
    train(toy_config(steps=9, evaluate_every=None, keep=3, checkpoint_every=2), tmp_path / "run")
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [6, 8, 9]


def test_evaluating_and_saving_more_often_changes_nothing_in_training(tmp_path: Path):
    often = toy_config(evaluate_every=1, checkpoint_every=1, log_every=1)
    rarely = toy_config(evaluate_every=None, checkpoint_every=100, log_every=1)
    train(often, tmp_path / "often")
    train(rarely, tmp_path / "rarely")
    assert_same_tensors(weights(tmp_path / "often", 7), weights(tmp_path / "rarely", 7))


def assert_same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_seed_decides_everything(tmp_path: Path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(len(name) + seed)
        train(toy_config(seed=seed), tmp_path / name)
    assert_same_tensors(weights(tmp_path / "a", 7), weights(tmp_path / "b", 7))
    assert not torch.equal(weights(tmp_path / "a", 7)["input.table"], weights(tmp_path / "c", 7)["input.table"])


def test_the_summary_tells_what_the_run_took(tmp_path: Path):
    outcome = train(toy_config(), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    task = untrained(toy_config(), tmp_path)
    assert summary["num_parameters"] == sum(p.numel() for p in task.model.parameters())
    assert (summary["steps"], summary["items"], summary["item"]) == (7, 140, "word")
    assert summary["metrics"] == outcome.metrics and summary["best"]["step"] == outcome.best_step
    assert 0 < summary["training_seconds"] <= summary["seconds"]
    assert summary["items_per_second"] == pytest.approx(140 / summary["training_seconds"])
    assert summary["peak_memory_bytes"] > 50e6 and summary["peak_gpu_memory_bytes"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_saves_and_leaves_the_handlers_as_they_were(tmp_path: Path, number: signal.Signals):
    before = signal.getsignal(number)
    reporter = StoppingAt(5, number)
    outcome = train(toy_config(evaluate_every=None), tmp_path / "run", reporter=reporter)
    # The signal of step 5 came when it was over, so the next step sees it.
    assert (outcome.step, outcome.stopped) == (6, "signal")
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [4, 6]
    assert any("saved at step 6 of 7" in text for text in reporter.messages)
    assert signal.getsignal(number) is before
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_second_interrupt_ends_at_once(tmp_path: Path):
    class Impatient(StoppingAt):
        def advanced(self, step: int, loss: float) -> None:
            if step == 3:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(toy_config(evaluate_every=None), tmp_path / "run", reporter=Impatient())
    assert signal.getsignal(signal.SIGINT) is before
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2]


def test_a_run_that_diverged_resumes_from_a_checkpoint_before(tmp_path: Path):
    reporter = StoppingAt()
    config = toy_config(Toy(nan_from=6), evaluate_every=None, keep=1)
    outcome = train(config, tmp_path / "run", reporter=reporter)
    assert (outcome.step, outcome.stopped) == (5, "diverged")
    (printed,) = reporter.messages
    assert "the loss became nan after step 5. Resume from step 4, with a lower learning rate (now 0.05)" in printed
    assert printed.endswith(f"anymax resume {tmp_path / 'run'} --optimizer.lr 0.0125")
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [4]
    whole = replace(config, task=Toy())
    train(whole, tmp_path / "whole")
    assert resume(tmp_path / "run", config=whole).step == 7
    assert_same_tensors(weights(tmp_path / "run", 7), weights(tmp_path / "whole", 7))
    left = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert left == {path.name for path in (tmp_path / "whole" / "checkpoints").iterdir()}


@pytest.mark.parametrize("carries", [False, True])
def test_weights_from_before_a_divergence_can_be_chosen_by_their_step(tmp_path: Path, carries: bool):
    config = toy_config(Toy(carries=carries, nan_from=6), evaluate_every=None, keep=9)
    assert train(config, tmp_path / "run").stopped == "diverged"
    whole = replace(config, task=Toy(carries=carries))
    train(whole, tmp_path / "whole")
    resume(tmp_path / "run", config=whole, step=5)
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2, 4, 5, 6, 7]
    assert_same_tensors(weights(tmp_path / "run", 7), weights(tmp_path / "whole", 7))


def test_a_checkpoint_at_which_the_loss_had_risen_is_not_the_one_to_resume_from(tmp_path: Path):
    # Steps so long that the loss rises until it is infinite, saved after each of them.
    every = {"log_every": 1, "checkpoint_every": 1, "keep": 99, "evaluate_every": None, "steps": 400}
    config = toy_config(
        Toy(dropout=0.0), optimizer=NesterovConfig(30.0, momentum=0.999), schedule=Constant(), clip=None, **every
    )
    reporter = StoppingAt()
    assert train(config, tmp_path / "run", reporter=reporter).stopped == "diverged"
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    losses = {record["step"]: record["loss"] for record in read_metrics(tmp_path / "run") if record["kind"] == "train"}
    chosen = checkpoints.find("last")
    assert losses[chosen] <= losses[1] and all(losses[step] > losses[1] for step in losses if step > chosen)
    assert f"Resume from step {chosen}," in reporter.messages[-1] and chosen < checkpoints.steps()[-1]
    calm = replace(config, optimizer=NesterovConfig(0.05, momentum=0.9), steps=chosen + 20)
    assert resume(tmp_path / "run", config=calm).stopped is None


def test_weights_that_overflowed_are_never_saved(tmp_path: Path):
    reporter = StoppingAt()
    config = toy_config(
        optimizer=NesterovConfig(3e38, momentum=0.9), schedule=Constant(), clip=None, evaluate_every=None
    )
    outcome = train(config, tmp_path / "run", reporter=reporter)
    assert outcome.stopped == "diverged" and Checkpoints(tmp_path / "run" / "checkpoints").steps() == []
    assert "Resume from the first step, as no checkpoint was saved before" in reporter.messages[-1]
    calm = replace(config, optimizer=NesterovConfig(0.1, momentum=0.9))
    assert resume(tmp_path / "run", config=calm).stopped is None


def test_a_step_without_items_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Empty(ToyTask):
        def step(self, model, batch, carry):
            if self.calls == 2:
                batch = batch._replace(target=torch.full_like(batch.target, -100), lengths=0 * batch.lengths)
            return super().step(model, batch, carry)

    monkeypatch.setattr("tests.training.toys.ToyTask", Empty)
    train(toy_config(evaluate_every=None, checkpoint_every=1, keep=9), tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    for name in ("model", "optimizer"):
        before, after = (load_file(folder / f"step_{step:07d}" / f"{name}.safetensors") for step in (2, 3))
        assert_same_tensors(before, after)
    assert not torch.equal(weights(tmp_path / "run", 4)["input.table"], weights(tmp_path / "run", 3)["input.table"])


def test_half_precision_changes_the_digits_and_not_the_course(tmp_path: Path):
    losses = []
    for precision in ("float32", "bfloat16"):
        train(toy_config(Toy(dropout=0.0), precision=precision, log_every=7), tmp_path / precision)
        (record,) = [each for each in read_metrics(tmp_path / precision) if each["kind"] == "train"]
        losses.append(record["loss"])
    assert losses[0] != losses[1] and math.isclose(*losses, rel_tol=0.02)


def test_gradients_that_overflow_in_float16_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The scale begins so high that the first steps overflow; on the CPU it works as on a GPU.
    monkeypatch.setattr("anymax.training.run.check_precision", lambda precision, device: None)
    config = toy_config(Toy(dropout=0.0), precision="float16", evaluate_every=None, checkpoint_every=1, keep=9, steps=8)
    assert train(config, tmp_path / "run").stopped is None
    states = [
        json.loads((tmp_path / "run" / "checkpoints" / f"step_{step:07d}" / "state.json").read_text())
        for step in range(1, 9)
    ]
    scales = [65536.0, *(state["scaler"]["scale"] for state in states)]
    tables = [weights(tmp_path / "run", step)["input.table"] for step in range(1, 9)]
    skipped = [after < before for before, after in pairwise(scales)]
    assert skipped[0] and not skipped[-1]
    for (before, after), was_skipped in zip(pairwise(tables), skipped[1:], strict=True):
        assert torch.equal(before, after) == was_skipped


def test_a_compiled_model_trains_as_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiled = []

    def compile(module: torch.nn.Module) -> None:
        compiled.append(type(module).__name__)
        module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compile)
    train(toy_config(Toy(dropout=0.0), steps=3), tmp_path / "plain")
    train(toy_config(Toy(dropout=0.0), steps=3, compile=True), tmp_path / "compiled")
    assert compiled == ["ToyModel"]
    torch.testing.assert_close(weights(tmp_path / "compiled", 3), weights(tmp_path / "plain", 3))


def test_a_step_that_wants_more_batches_than_an_epoch_has_says_so(tmp_path: Path):
    reporter = StoppingAt()
    outcome = train(toy_config(accumulate=99, steps=3), tmp_path / "run", reporter=reporter)
    assert any("an epoch has 8 batches, fewer than accumulate" in text for text in reporter.messages)
    assert outcome.step == 3 and read_metrics(tmp_path / "run")[-1]["step"] == 3


def test_a_parameter_that_a_step_does_not_use_has_no_gradient_and_no_harm(tmp_path: Path, monkeypatch):
    class Partial(ToyTask):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            self.model.extra = torch.nn.Parameter(torch.ones(3))

        def step(self, model, batch, carry):
            step = super().step(model, batch, carry)
            return replace(step, loss_sum=step.loss_sum + model.extra.sum()) if self.calls > 2 else step

    monkeypatch.setattr("tests.training.toys.ToyTask", Partial)
    train(toy_config(optimizer=SGD, schedule=Constant(), checkpoint_every=1, keep=9), tmp_path / "run")
    values = [weights(tmp_path / "run", step)["extra"] for step in (2, 3)]
    assert (values[0] == 1).all() and (values[1] != 1).all()


def test_an_opened_run_has_the_best_weights_and_does_not_drop(tmp_path: Path):
    outcome = train(toy_config(), tmp_path / "run")
    opened = open_run(tmp_path / "run", config=toy_config())
    assert opened.step == outcome.best_step and not opened.task.model.training
    with torch.no_grad():
        metrics = opened.task.evaluate(opened.task.model, "valid")
    best = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    assert metrics == best["metrics"]
    assert open_run(tmp_path / "run", config=toy_config(), step=7).step == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": Constant(100), "steps": None, "epochs": 1}, r"warmup must be less than the 8 steps .* got 100"),
        ({"precision": "float16"}, "precision must be 'float32' or 'bfloat16' on the CPU"),
        ({"device": "cuda"}, "device must be 'cpu' where torch finds no GPU"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(tmp_path: Path, changes, message: str):
    with pytest.raises(ValueError, match=message):
        train(toy_config(**changes), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_goal_that_is_no_metric_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ToyTask, "goal", "accuracy")
    with pytest.raises(ValueError, match="goal must be a metric of evaluate, loss, words, got 'accuracy'"):
        train(toy_config(), tmp_path / "run")
