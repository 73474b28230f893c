"""What a step adds to the loss and to the rate: penalties, drawn lengths, parameters with a rate of their own."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from anymax.training import AdamConfig, AdamWConfig, Constant, SGDConfig, read_metrics, resume, train
from anymax.training.task import Step
from tests.training.test_loop import untrained, weights
from tests.training.toys import StoppingAt, Toy, ToyTask, toy_config


def test_epochs_of_drawn_lengths_are_counted_as_they_come(tmp_path: Path):
    task = Toy(carries=True, random_lengths=True)
    config = toy_config(task, steps=None, epochs=3, accumulate=2, log_every=1, schedule=Constant())
    outcome = train(config, tmp_path / "run")
    batches = untrained(config, tmp_path).batches("train")
    lengths = [batches.length(epoch) for epoch in range(3)]
    expected = [
        epoch + min(taken, length) / length for epoch, length in enumerate(lengths) for taken in range(2, length + 2, 2)
    ]
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert len(set(lengths)) > 1 and outcome.stopped is None
    assert [record["epoch"] for record in records] == pytest.approx(expected)
    assert records[-1]["items"] == 3 * 150


def test_every_group_has_the_rate_of_the_step_and_its_own_factor(tmp_path: Path):
    task = Toy(carries=True, random_lengths=True, dropout=0.0, bias_rate=0.25)
    config = toy_config(
        task, optimizer=SGDConfig(0.5), schedule=Constant(), clip=None, log_every=1, accumulate=2, steps=6
    )
    train(config, tmp_path / "run")
    own = untrained(config, tmp_path)
    batches, rates, carry = own.batches("train"), [], None
    for _ in range(6):
        number = min(2, len(batches) - batches.position)
        carry = None if batches.position == 0 else carry
        steps = []
        for batch in islice(iter(batches), number):
            steps.append(own.step(own.model, batch, carry))
            carry = steps[-1].carry
        (sum(step.loss_sum for step in steps) / sum(step.count for step in steps)).backward()
        rates.append(0.5 * sum(step.lr_factor for step in steps) / number)
        with torch.no_grad():
            for name, parameter in own.model.named_parameters():
                parameter -= rates[-1] * (0.25 if name == "output.bias" else 1.0) * parameter.grad
                parameter.grad = None
    assert [each["lr"] for each in read_metrics(tmp_path / "run") if each["kind"] == "train"] == pytest.approx(rates)
    for name, parameter in own.model.named_parameters():
        torch.testing.assert_close(weights(tmp_path / "run", 6)[name], parameter.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "optimizer", [AdamWConfig(0.05), AdamConfig(0.05), SGDConfig(0.5)], ids=lambda each: type(each).__name__
)
def test_a_parameter_whose_factor_is_zero_stays_also_over_a_checkpoint(tmp_path: Path, optimizer):
    config = toy_config(Toy(bias_rate=0.0), optimizer=optimizer)
    train(config, tmp_path / "run", reporter=StoppingAt(3))
    resume(tmp_path / "run", config=config)
    before = dict(untrained(config, tmp_path).model.named_parameters())
    after = weights(tmp_path / "run", 7)
    assert torch.equal(after["output.bias"], before["output.bias"].detach())
    assert not torch.equal(after["input.table"], before["input.table"].detach())


@pytest.mark.parametrize("optimizer", [AdamWConfig, AdamConfig, SGDConfig], ids=lambda each: each.__name__)
def test_weight_decay_leaves_some_parameters_alone(tmp_path: Path, optimizer, monkeypatch: pytest.MonkeyPatch):
    # Where nothing pulls but decay, they stay as they were.
    monkeypatch.setattr(ToyTask, "step", _without_gradient(ToyTask.step))
    monkeypatch.setattr(ToyTask, "undecayed", lambda task: {task.model.input.table})
    config = toy_config(optimizer=optimizer(0.05, weight_decay=0.1), clip=None, evaluate_every=None)
    train(config, tmp_path / "run")
    before = dict(untrained(config, tmp_path).model.named_parameters())
    after = weights(tmp_path / "run", 7)
    assert torch.equal(after["input.table"], before["input.table"].detach())
    others = [name for name in before if name != "input.table" and before[name].dim() > 1]
    assert others and not any(torch.equal(after[name], before[name].detach()) for name in others)


def _without_gradient(step: Callable[..., Step]) -> Callable[..., Step]:
    def silent(*arguments: object) -> Step:
        taken = step(*arguments)
        return replace(taken, loss_sum=0 * taken.loss_sum)

    return silent


def test_a_rate_of_what_is_not_trained_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ToyTask, "lr_factors", lambda task: {torch.nn.Parameter(torch.ones(3)): 0.5})
    with pytest.raises(
        ValueError, match=r"lr_factors must be of parameters of the model .* of shape \(3,\); leave it out"
    ):
        train(toy_config(), tmp_path / "run")


def test_a_penalty_is_in_gradients_and_not_in_recorded_losses(tmp_path: Path):
    plain = toy_config(Toy(dropout=0.0), steps=4, log_every=1)
    punished = replace(plain, task=replace(plain.task, penalty=0.5))
    for name, config in (("plain", plain), ("punished", punished)):
        train(config, tmp_path / name)
    losses = [
        [each["loss"] for each in read_metrics(tmp_path / name) if each["kind"] == "train"]
        for name in ("plain", "punished")
    ]
    # The first step begins with the same weights; then they part.
    assert losses[1][0] == pytest.approx(losses[0][0], rel=1e-6)
    assert abs(losses[1][3] - losses[0][3]) > 1e-3
    batch = next(iter(untrained(punished, tmp_path).batches("train")))
    one, other = (untrained(config, tmp_path) for config in (plain, punished))
    with_penalty, without = other.step(other.model, batch, None), one.step(one.model, batch, None)
    assert with_penalty.loss_sum.item() == pytest.approx(without.loss_sum.item() + with_penalty.penalty)
    assert with_penalty.penalty > 1
