"""The Dirichlet experiment as a task: what it measures, that it learns, and what it refuses."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anymax.training import (
    AdamConfig,
    Cosine,
    DirichletConfig,
    Ranks,
    RunConfig,
    as_plain,
    open_run,
    resume,
    run_config,
    train,
)
from anymax.training.tasks.dirichlet.task import DirichletTask
from anymax.transforms import MonotonicNetworkConfig, PLIFConfig, SigConfig
from anymax.vocabulary import FullOutputConfig, MixtureOutputConfig, SparseOutputConfig
from tests.training.differences import differences
from tests.training.toys import StoppingAt

OUTPUTS = {
    "linear": FullOutputConfig(),
    "bias": FullOutputConfig(bias=True),
    "sigsoftmax": FullOutputConfig(transform=SigConfig()),
    "plif": FullOutputConfig(transform=PLIFConfig(50, random_start=True)),
    "monotone": FullOutputConfig(transform=MonotonicNetworkConfig(4, bound=3.0)),
    "mixture": MixtureOutputConfig(3, bias=False),
    "sparse": SparseOutputConfig(1.5),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def experiment(
    output: FullOutputConfig | MixtureOutputConfig | SparseOutputConfig = OUTPUTS["linear"], **changes: object
) -> DirichletConfig:
    return replace(DirichletConfig(40, 30, 4, 0.1, output), **changes)


def run(task: DirichletConfig, steps: int = 40, lr: float = 0.1, **changes: object) -> RunConfig:
    return RunConfig(task, AdamConfig(lr), Cosine(), steps=steps, threads=1, device="cpu", **changes)


def measure(task: DirichletTask) -> dict[str, float]:
    with torch.no_grad():
        return task.evaluate(task.model, "valid")


def of(config: DirichletConfig, seed: int = 1) -> DirichletTask:
    return DirichletTask(config, Ranks(), seed=seed)


@pytest.mark.parametrize(
    ("name", "rank"), [("linear", 5), ("bias", 6), ("sigsoftmax", 30), ("plif", 30), ("monotone", 30), ("mixture", 30)]
)
def test_products_of_vectors_bound_the_rank_and_what_bends_or_mixes_them_does_not(name: str, rank: int):
    task = of(experiment(OUTPUTS[name]))
    with torch.no_grad():
        if task.model.output.bias is not None:
            task.model.output.bias.normal_()
        # Latents of mixtures are drawn small, where hyperbolic tangents are nearly straight.
        task.model.vectors.mul_(3)
    assert measure(task)["rank"] == rank


def test_the_cross_entropy_exceeds_the_divergence_by_the_entropy_of_the_targets():
    task = of(experiment())
    measured = measure(task)
    entropy = torch.special.entr(task.log_targets.exp()).sum(1).mean()
    assert measured["cross_entropy"] - measured["kl"] == pytest.approx(float(entropy))
    step = task.step(task.model, torch.arange(40), None)
    assert step.loss_sum.item() / step.count == pytest.approx(measured["cross_entropy"], rel=1e-5)


def test_a_sparse_output_is_measured_by_its_loss_and_has_neither_divergence_nor_rank():
    task = of(experiment(OUTPUTS["sparse"]))
    measured = measure(task)
    assert task.goal == "loss" and {"kl", "cross_entropy", "rank"}.isdisjoint(measured)
    assert all(map(math.isfinite, measured.values()))
    assert task.step(task.model, torch.arange(40), None).loss_sum.item() / 40 == pytest.approx(
        measured["loss"], rel=1e-5
    )


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_training_brings_distributions_nearer(name: str, tmp_path: Path):
    config = run(experiment(OUTPUTS[name]))
    before, after = measure(of(config.task)), train(config, tmp_path / "run").metrics
    goal = "loss" if name == "sparse" else "kl"
    assert after[goal] < 0.8 * before[goal] and after["mode_matching"] > before["mode_matching"]
    assert after["total_variation"] < before["total_variation"]


def test_as_many_dimensions_as_words_are_enough_for_a_linear_softmax(tmp_path: Path):
    outcome = train(run(experiment(dim=30), steps=300, lr=0.3), tmp_path / "run")
    assert outcome.metrics["mode_matching"] == 1 and outcome.metrics["kl"] < 1e-2


def test_all_outputs_of_a_seed_have_the_same_targets_and_other_seeds_others():
    linear, mixture, other = of(experiment()), of(experiment(OUTPUTS["mixture"])), of(experiment(), seed=2)
    assert torch.equal(linear.log_targets, mixture.log_targets) and linear.identity() == mixture.identity()
    assert linear.identity() != other.identity()
    assert linear.identity() != of(experiment(concentration=0.2)).identity()


def test_small_batches_resume_to_the_bit(tmp_path: Path):
    config = run(experiment(batch_size=16), steps=9, evaluate_every=4, checkpoint_every=3)
    train(config, tmp_path / "whole")
    assert train(config, tmp_path / "stopped", reporter=StoppingAt(5)).stopped == "signal"
    resume(tmp_path / "stopped")
    assert differences(tmp_path / "whole", tmp_path / "stopped") == []


def test_a_run_is_opened_with_what_it_reached(tmp_path: Path):
    reached = train(run(experiment(OUTPUTS["plif"])), tmp_path / "run").metrics
    assert measure(open_run(tmp_path / "run", device="cpu").task) == reached


def test_another_seed_cannot_go_on_with_a_run(tmp_path: Path):
    config = run(experiment(), steps=2)
    train(config, tmp_path / "run")
    with pytest.raises(ValueError, match="must belong to this draw"):
        resume(tmp_path / "run", config=replace(config, seed=2, steps=4))


def test_two_ranks_see_every_context_once_and_sum_to_one_process():
    config = experiment(batch_size=16)
    alone = of(config)
    ranks = [DirichletTask(config, Ranks(rank, 2), seed=1) for rank in range(2)]
    batches = zip(alone.batches("train"), *(task.batches("train") for task in ranks), strict=True)
    for whole, *parts in batches:
        expected = alone.step(alone.model, whole, None)
        steps = [task.step(alone.model, part, None) for task, part in zip(ranks, parts, strict=True)]
        assert sum(step.count for step in steps) == expected.count
        assert sum(step.loss_sum.item() for step in steps) == pytest.approx(expected.loss_sum.item(), rel=1e-5)


def test_a_transform_learns_at_its_own_rate():
    task = of(experiment(FullOutputConfig(transform=PLIFConfig(50, rate=0.2))))
    assert list(task.rates().values()) == [0.2] and next(iter(task.rates())) is task.model.output.transform.weight
    assert of(experiment()).rates() == {}


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_a_config_comes_back_from_its_file(name: str):
    config = run(experiment(OUTPUTS[name], batch_size=8))
    assert run_config(json.loads(json.dumps(as_plain(config)))) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_words": 1}, "num_words must be at least 2"),
        ({"dim": 0}, "dim must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"concentration": -1.0}, "concentration must be above 0"),
        ({"output": FullOutputConfig(3)}, "output.dim must be None"),
        ({"output": SparseOutputConfig(label_smoothing=0.1)}, "output.label_smoothing must be 0"),
        ({"output": MixtureOutputConfig(3, latent_dropout=0.1)}, "output.latent_dropout must be 0"),
    ],
)
def test_settings_that_make_no_experiment_are_refused(changes: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        experiment(**changes)
