"""The tasks on images: what a step adds up over ranks, that they learn, resume and evaluate alike; what they refuse."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from anymax.data.images.config import ImageSet
from anymax.latent import (
    DenseMarginalConfig,
    GumbelConfig,
    IndependentConfig,
    SparseMapConfig,
    SparseMarginalConfig,
    SumAndSampleConfig,
    TopKSparsemaxConfig,
)
from anymax.training import AdamConfig, Ranks, as_plain, resume, run_config, train
from anymax.training.tasks.image_task import ImageTask
from tests.training.differences import differences
from tests.training.tasks.image_toys import (
    CLASSES,
    CODES,
    DRAWN,
    EXACT,
    GAMES,
    ImageConfig,
    build,
    measure,
    run,
    small_batches,
    some_batches,
    without_noise,
)
from tests.training.test_loop import untrained, weights
from tests.training.toys import StoppingAt

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = EXACT | DRAWN


def as_rank(task: ImageTask, rank: int, world_size: int) -> ImageTask:
    """The same task as one of several processes has it."""
    other = copy.copy(task)
    other.ranks = Ranks(rank, world_size)
    return other


def gradients(task: ImageTask) -> list[Tensor]:
    found = [parameter.grad for parameter in task.model.parameters()]
    assert all(gradient is not None for gradient in found), "a parameter took no part"
    task.model.zero_grad()
    return found


@pytest.mark.parametrize("world_size", [2, 5])
@pytest.mark.parametrize("name", EXACT)
def test_the_shares_of_all_ranks_add_up_to_the_step_of_one_process(name: str, world_size: int):
    alone = without_noise(build(small_batches(EXACT[name])))
    ranks = [as_rank(alone, rank, world_size) for rank in range(world_size)]
    for whole, *parts in zip(some_batches(alone), *map(some_batches, ranks), strict=True):
        step = alone.step(alone.model, whole, None)
        step.loss_sum.backward()
        expected = gradients(alone)
        steps = [task.step(alone.model, part, None) for task, part in zip(ranks, parts, strict=True)]
        for each in steps:
            each.loss_sum.backward()
        assert sum(each.count for each in steps) == step.count
        assert {each.lr_factor for each in steps} == {step.lr_factor}
        torch.testing.assert_close(sum(each.loss_sum for each in steps), step.loss_sum, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(gradients(alone), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_a_rank_without_items_takes_part_with_every_parameter(name: str):
    task = build(small_batches(ALL[name]), Ranks(4, 5))
    for batch in some_batches(task):
        step = task.step(task.model, batch, None)
        step.loss_sum.backward()
        assert step.count == 0 and step.loss_sum.item() == 0
        assert not any(gradient.any() for gradient in gradients(task))


@pytest.mark.parametrize("name", ALL)
def test_evaluation_is_the_same_whatever_was_drawn_before_and_changes_nothing(name: str):
    task = build(ALL[name])
    before = {key: tensor.clone() for key, tensor in task.model.state_dict().items()}
    random = torch.get_rng_state()
    with torch.no_grad():
        measured = task.evaluate(task.model, "valid")
        assert torch.equal(torch.get_rng_state(), random)
        torch.rand(3)
        assert task.evaluate(task.model, "valid") == measured
    assert task.goal in measured and all(torch.tensor(list(measured.values())).isfinite())
    assert all(torch.equal(before[key], tensor) for key, tensor in task.model.state_dict().items())
    assert task.model.training


@pytest.mark.parametrize("name", DRAWN)
def test_a_stopped_run_resumes_to_the_bit(name: str, tmp_path: Path):
    config = run(DRAWN[name], steps=7, evaluate_every=4, checkpoint_every=3)
    train(config, tmp_path / "whole")
    assert train(config, tmp_path / "stopped", reporter=StoppingAt(4)).stopped == "signal"
    resume(tmp_path / "stopped")
    assert differences(tmp_path / "whole", tmp_path / "stopped") == []


LEARNING = {
    "classes": run(replace(CLASSES, warm_epochs=25), steps=100),
    "games": run(replace(GAMES, scale=1.0, batch_size=32, dim=16, num_units=16, entropy=0.02), steps=200, lr=5e-3),
    "codes": run(CODES, steps=60, lr=2e-2),
}


# Guessing is right for a tenth of the classes and a quarter of the games, and takes eight bits.
@pytest.mark.parametrize(
    ("name", "metric", "low", "high"),
    [("classes", "accuracy", 0.3, 1), ("games", "success", 0.4, 1), ("codes", "bits_per_dim", 0, 5)],
)
def test_training_does_better_than_guessing(name: str, metric: str, low: float, high: float, tmp_path: Path):
    before, after = measure(build(LEARNING[name].task)), train(LEARNING[name], tmp_path / "run").metrics
    assert low < after[metric] < high and after["loss"] < before["loss"]


def test_a_learned_baseline_waits_for_its_turn_as_it_is(tmp_path: Path):
    task = replace(DRAWN["classes by nvil"], warm_epochs=100)
    config = replace(run(task, 4), optimizer=AdamConfig(1e-2, weight_decay=0.1))
    train(config, tmp_path / "run")
    before, after = untrained(config, tmp_path).model.state_dict(), weights(tmp_path / "run", 4)
    changed = {name.partition(".")[0] for name in after if not torch.equal(before[name], after[name])}
    assert "estimator" in {name.partition(".")[0] for name in after}
    assert "classifier" in changed and "estimator" not in changed


def test_a_loss_that_is_no_number_stops_with_the_weights_from_before(tmp_path: Path):
    reporter = StoppingAt()
    outcome = train(run(GAMES, 8, lr=1e30), tmp_path / "run", reporter=reporter)
    assert outcome.stopped == "diverged" and outcome.step < 8
    assert "lower learning rate (now 1e+30)" in reporter.messages[-1]


@pytest.mark.parametrize("name", ALL)
def test_a_config_comes_back_from_its_file(name: str):
    config = run(ALL[name], steps=3)
    assert run_config(json.loads(json.dumps(as_plain(config)))) == config
    assert not config.task.is_likelihood


def test_the_identity_is_that_of_the_training_images():
    assert build(CLASSES).identity() == build(GAMES).identity()
    assert build(CLASSES).identity() != build(replace(CLASSES, images=ImageSet(split_seed=2))).identity()


def test_other_images_cannot_resume_a_run(tmp_path: Path):
    config = run(CODES, steps=2)
    train(config, tmp_path / "run")
    other = replace(config, task=replace(CODES, images=ImageSet(split_seed=2)), steps=4)
    with pytest.raises(ValueError, match="must belong to this set of images"):
        resume(tmp_path / "run", config=other)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (CLASSES, {"estimator": GumbelConfig(1e-4)}, "mapping must be softmax for the estimator GumbelConfig"),
        (GAMES, {"estimator": GumbelConfig(1e-4, hard=True)}, "mapping must be softmax for the estimator GumbelConfig"),
        (CODES, {"estimator": GumbelConfig(1e-4)}, "mapping must be IndependentConfig for the estimator GumbelConfig"),
        (CODES, {"mapping": SparseMapConfig(7)}, "mapping.budget must be at most num_bits, 6, got 7"),
        (
            CODES,
            {"estimator": SumAndSampleConfig(), "mapping": IndependentConfig()},
            "estimator must be another than SumAndSampleConfig",
        ),
        (CODES, {"measured": 0}, "measured must be at least 1"),
        (CODES, {"samples": 0}, "samples must be at least 1"),
        (CODES, {"num_bits": 0}, "num_bits must be at least 1"),
        (CLASSES, {"num_labelled": 0}, "num_labelled must be at least 1"),
        (CLASSES, {"warm_epochs": -1}, "warm_epochs must be at least 0"),
        (CLASSES, {"warm_rate": 0.0}, "warm_rate must be above 0"),
        (CLASSES, {"entropy": -0.1}, "entropy must be at least 0"),
        (GAMES, {"num_candidates": 1}, "num_candidates must be at least 2"),
        (GAMES, {"num_messages": 1}, "num_messages must be at least 2"),
        (GAMES, {"scale": 0.0}, "scale must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: ImageConfig, changes: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        replace(config, **changes)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (CLASSES, {"num_labelled": 1293}, "num_labelled must leave some of the 1,293 training images without a label"),
        (GAMES, {"num_candidates": 11}, "num_candidates must be at most the 10 different labels that there are"),
        (GAMES, {"num_candidates": 145, "distinct": "images"}, "at most the 144 different images that there are"),
    ],
)
def test_settings_that_the_images_do_not_allow_are_refused_before_training(
    config: ImageConfig, changes: dict[str, object], message: str
):
    with pytest.raises(ValueError, match=message):
        build(replace(config, **changes))


def features(folder: Path, values: Tensor) -> ImageSet:
    for split in ("train", "test"):
        save_file({"features": values, "labels": torch.arange(len(values)) % 5}, folder / f"{split}.safetensors")
    return ImageSet(path=folder, valid=0.4)


def test_features_are_for_games_and_refused_where_pixels_are_needed(tmp_path: Path):
    images = features(tmp_path, torch.randn(100, 7))
    task = build(replace(GAMES, images=images, distinct="labels"))
    assert task.model.sender.embed.in_features == 7
    step = task.step(task.model, next(iter(task.batches("train"))), None)
    assert step.count == 8 and step.loss_sum.isfinite()
    with pytest.raises(ValueError, match="images must be pixels with 256 levels, got features"):
        build(replace(CODES, images=images))
    with pytest.raises(ValueError, match=r"features must be between 0 and 1, .* got -.* in train; scale them"):
        build(replace(CLASSES, images=images, num_labelled=10))


def test_features_between_zero_and_one_are_classified(tmp_path: Path):
    task = build(replace(CLASSES, images=features(tmp_path, torch.rand(100, 7)), num_labelled=20))
    assert measure(task)["support"] <= 5


def test_a_budget_and_a_number_of_bit_vectors_fit_the_toy():
    for mapping, expected in (
        (SparseMapConfig(64), SparseMapConfig(3)),
        (TopKSparsemaxConfig(10), TopKSparsemaxConfig(4)),
    ):
        assert replace(CODES, num_bits=128, mapping=mapping, estimator=SparseMarginalConfig()).toy().mapping == expected
    assert (
        replace(CODES, mapping=IndependentConfig(), estimator=DenseMarginalConfig()).toy().mapping
        == IndependentConfig()
    )


def test_a_task_without_text_takes_no_lines_of_your_own():
    task = build(CODES)
    assert task.texts("valid", limit=3, seed=1, announce=lambda _: None) == []
    with pytest.raises(ValueError, match="must be for a task that writes text, got BitVectorTask"):
        task.texts_for(["a"], announce=lambda _: None)
