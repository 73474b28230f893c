"""Language modelling as a task: what its config refuses, drawn lengths, penalties, and rows of an evaluation."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from anymax.data import RandomLengths
from anymax.models import AWDLSTMConfig
from anymax.recipes import find
from anymax.training import Ranks, RunConfig, open_run, read_metrics, train
from anymax.training.tasks.language_modeling.config import Contiguous, Evaluation

QUICK = {"threads": 1, "device": "cpu", "steps": 3, "evaluate_every": None, "checkpoint_every": 99}


def recurrent(**changes) -> RunConfig:
    """An LSTM at toy size on text that is in every Python."""
    run = find("grave.full")().toy()
    return replace(run, task=replace(run.task, **changes), **QUICK)


def awd(body: AWDLSTMConfig) -> RunConfig:
    run = recurrent(batching=Contiguous(4, 8, RandomLengths(0.3, 2.0, 2)))
    return replace(run, task=replace(run.task, model=replace(run.task.model, body=body.toy())))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(recurrent(), folder)
    return folder


def test_rows_are_measured_together_and_each_starts_without_a_state(trained: Path):
    task = open_run(trained).task
    exact, quick = (task.perplexity(task.model, "valid", evaluation=Evaluation(rows=rows)) for rows in (1, 4))
    assert (exact.rows, quick.rows) == (1, 4) and exact.num_tokens == quick.num_tokens
    assert exact.loss != quick.loss and exact.loss == pytest.approx(quick.loss, rel=0.01)
    task.config = replace(task.config, evaluation=Evaluation(rows=4))
    assert task.evaluate(task.model, "valid") == quick.metrics()


def test_rows_are_refused_where_they_do_not_apply():
    run = find("sotu.softmax_tied")()
    with pytest.raises(
        ValueError, match=r"evaluation.rows must be 1 for a TransformerConfig, .* got 4; its windows are"
    ):
        replace(run.task, evaluation=Evaluation(rows=4))
    with pytest.raises(
        ValueError, match=r"evaluation.first_window must be 'block' for a .*LSTMConfig, .* leave it out"
    ):
        recurrent(evaluation=Evaluation(first_window="stride"))
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        Evaluation(rows=0)
    assert recurrent(evaluation=Evaluation(rows=10)).toy().task.evaluation.rows == 4


def test_lengths_are_drawn_by_the_seed_of_the_run_and_reach_the_rate(tmp_path: Path):
    run = recurrent(batching=Contiguous(4, 8, RandomLengths(0.3, 2.0, 2)))
    tasks = [run.task.build(tmp_path, Ranks(), seed=seed, announce=lambda *_: None) for seed in (1, 1, 2)]
    rates = [[next(iter(batches)).lr_factor for _ in range(9)] for batches in (task.batches("train") for task in tasks)]
    assert rates[0] == rates[1] != rates[2]
    batch = next(iter(tasks[0].batches("train")))
    step = tasks[0].step(tasks[0].model, batch, tasks[0].new_carry())
    assert step.lr_factor == batch.lr_factor == rates[0][0] and (step.penalty, step.log) == (0.0, {})
    assert run.toy().task.batching.random_lengths == RandomLengths(0.3, 2.0, 2)


def test_a_penalty_is_recorded_by_itself_and_kept_out_of_the_loss(tmp_path: Path):
    plain, punished = (awd(AWDLSTMConfig(activation=strength)) for strength in (0.0, 50.0))
    plain = replace(
        plain,
        task=replace(
            plain.task, model=replace(plain.task.model, body=replace(plain.task.model.body, temporal_activation=0.0))
        ),
    )
    records = []
    for name, run in (("plain", plain), ("punished", punished)):
        train(replace(run, log_every=1), tmp_path / name)
        records.append([record for record in read_metrics(tmp_path / name) if record["kind"] == "train"])
    assert all(record["log"] == {} for record in records[0])
    assert all(record["log"]["penalty"] > 0 for record in records[1])
    # The same weights and the same dropout before the first step.
    assert records[1][0]["loss"] == pytest.approx(records[0][0]["loss"], rel=1e-5)
    assert records[1][0]["gradient_norm"] != pytest.approx(records[0][0]["gradient_norm"], rel=1e-3)


def test_a_recorded_penalty_is_that_of_an_item(tmp_path: Path):
    run = awd(AWDLSTMConfig())
    task = run.task.build(tmp_path, Ranks(), seed=1, announce=lambda *_: None)
    batch = next(iter(task.batches("train")))
    torch.manual_seed(3)
    step = task.step(task.model, batch, task.new_carry())
    torch.manual_seed(3)
    mean = task.model(batch.ids, batch.target, "mean", task.new_carry()).item()
    assert step.log["penalty"] == pytest.approx(step.penalty / step.count) == pytest.approx(float(task.model.penalty))
    assert step.loss_sum.item() / step.count == pytest.approx(mean, rel=1e-5)


def test_the_training_loss_of_subwords_is_recorded_per_word_as_evaluations_measure_it(tmp_path: Path):
    run = find("sotu.bpe_tied")().toy()
    model = replace(run.task.model, body=replace(run.task.model.body, dropout=0.0))
    task = replace(run.task, model=model, batching=replace(run.task.batching, batch_size=64))
    # An epoch in records of seven steps, with weights that stay as they are.
    still = replace(run, task=task, optimizer=replace(run.optimizer, lr=1e-30), steps=None, epochs=1.0, log_every=7)
    train(replace(still, accumulate=2, evaluate_every=None, checkpoint_every=999, threads=1), tmp_path / "run")
    records = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    opened = open_run(tmp_path / "run").task
    measured = opened.perplexity(opened.model, "train")
    items = [after["items"] - before["items"] for before, after in pairwise([{"items": 0}, *records])]
    words = [n * record["loss"] / record["log"]["loss_per_word"] for n, record in zip(items, records, strict=True)]
    assert sum(words) == pytest.approx(measured.num_units) and sum(items) == measured.num_tokens
    total = sum(n * record["log"]["loss_per_word"] for n, record in zip(words, records, strict=True))
    assert total / sum(words) == pytest.approx(measured.loss, rel=1e-5)
    assert measured.num_units < 0.9 * measured.num_tokens
