"""Recipes of discrete latents: every choice builds and trains, with the rates and sizes of the paper."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from anymax.data.images.config import ImageSet
from anymax.data.images.images import Images
from anymax.latent import (
    DenseMarginalConfig,
    GumbelConfig,
    IndependentConfig,
    NVILConfig,
    ScoreFunctionConfig,
    SparseMapConfig,
    SparseMarginalConfig,
    SumAndSampleConfig,
    TopKSparsemaxConfig,
)
from anymax.recipes import choices, find, names
from anymax.training import AdamConfig, Constant, Ranks, as_plain, run_config, train
from anymax.training.tasks.bit_vectors.config import BitVectorsConfig
from anymax.training.tasks.semi_supervised.config import SemiSupervisedConfig
from anymax.training.tasks.signalling.config import SignallingConfig
from tests.each import each

RECIPES = [name for name in names() if name.startswith("latent.")]
CHOICES = [f"{name}.{value}" for name in RECIPES for value in choices(name).values]
SIZED = [name for name in CHOICES if "_quick" not in name and "_features" not in name]

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_task_has_a_published_and_a_quick_form_with_the_same_choices():
    assert [f"latent.{name}" for name in RECIPE_TASKS] == RECIPES
    for name, (_, count) in RECIPE_TASKS.items():
        offered = choices(f"latent.{name}")
        assert offered.argument == "estimator" and len(offered.values) == count
        assert find(f"latent.{name}")() in [find(f"latent.{name}.{value}")() for value in offered.values]


RECIPE_TASKS = {
    "ssvae": (SemiSupervisedConfig, 8),
    "ssvae_quick": (SemiSupervisedConfig, 8),
    "signalling": (SignallingConfig, 9),
    "signalling_features": (SignallingConfig, 9),
    "signalling_quick": (SignallingConfig, 9),
    "bits": (BitVectorsConfig, 8),
    "bits_128": (BitVectorsConfig, 8),
    "bits_quick": (BitVectorsConfig, 8),
}


@each("name", CHOICES)
def test_a_choice_is_a_config_of_its_own_that_comes_back_from_its_file(name: str):
    config, base = find(name)(), name.rpartition(".")[0]
    assert isinstance(config.task, RECIPE_TASKS[base.partition(".")[2]][0])
    assert find(name).__doc__ == find(base).__doc__
    for run in (config, config.toy()):
        assert run_config(json.loads(json.dumps(as_plain(run)))) == run
    others = [find(f"{base}.{value}")() for value in choices(base).values]
    assert others.count(config) == 1


# What differs in rates alone has the same toy.
TOYS = list({repr(find(name)().toy().task): name for name in reversed(CHOICES)}.values())


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_trains_and_is_measured(name: str, tmp_path: Path):
    config = replace(find(name)().toy(), steps=2, threads=1, evaluate_every=None, checkpoint_every=2)
    outcome = train(config, tmp_path / "run")
    assert outcome.step == 2 and "loss" in outcome.metrics and "calls" in outcome.metrics
    assert all(map(math.isfinite, outcome.metrics.values()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("latent.ssvae.denze", "'latent.ssvae.denze' must name a choice of the recipe latent.ssvae; they are sparse, "),
        ("latent.bits.dense", "must name a choice of the recipe latent.bits; they are sparsemap, budget, topk"),
        ("latent.ssvae.", "must name a choice of the recipe latent.ssvae"),
        ("sotu.softmax.dense", "must name a choice of the recipe sotu.softmax; it has none"),
        ("latent.ssva", "perhaps latent.ssvae"),
    ],
)
def test_a_choice_that_is_not_offered_is_refused(name: str, message: str):
    with pytest.raises(ValueError, match=message):
        find(name)


def blank(number: int, side: int) -> Callable[[ImageSet], dict[str, Images]]:
    """Sets of the size that a config speaks of, without the images."""

    def open_blank(config: ImageSet) -> dict[str, Images]:
        def images(many: int) -> Images:
            return Images(torch.zeros(1, side**2, dtype=torch.uint8).expand(many, -1), torch.arange(many) % 10, side)

        valid = config.num_valid(number)
        return {"train": images(number - valid), "valid": images(valid), "test": images(10_000)}

    return open_blank


def layers(*widths: int) -> int:
    return sum((before + 1) * after for before, after in pairwise(widths))


BASELINE = layers(784, 512, 512, 512, 1)
# Classifier, inference network and generator; sender and receiver; inference network, generator and shared levels.
SIZES = {
    "ssvae": layers(784, 256, 256, 256, 10) + layers(794, 128, 128, 16) + layers(18, 128, 128, 784),
    "signalling": 2 * (784 * 256 + 256 * 256) + 512 + 512,
    "bits": layers(784, 128, 32) + layers(32, 128, 784 * 5) + layers(5, 256),
    "bits_128": layers(784, 128, 128) + layers(128, 128, 784 * 5) + layers(5, 256),
}


@pytest.mark.parametrize("name", SIZED)
def test_models_have_the_size_of_the_paper(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anymax.training.tasks.image_task.open_images", blank(60_000, 28))
    task = find(name)().task.build(Path(), Ranks(), seed=1, announce=lambda *_: None)
    size = sum(parameter.numel() for parameter in task.model.parameters())
    _, recipe, estimator = name.split(".")
    assert size == SIZES[recipe] + (BASELINE if estimator == "nvil" else 0)


def estimator_of(choice: str, rate: float) -> object:
    """What a choice stands for, where relaxed samples get colder at a rate."""
    return {
        "sparse": SparseMarginalConfig(),
        "sparsemap": SparseMarginalConfig(),
        "budget": SparseMarginalConfig(),
        "topk": SparseMarginalConfig(),
        "dense": DenseMarginalConfig(),
        "sfe": ScoreFunctionConfig("average"),
        "sfe_success": ScoreFunctionConfig("average"),
        "sfe_plus": ScoreFunctionConfig("sample"),
        "nvil": NVILConfig(512),
        "gumbel": GumbelConfig(rate, floor=0.5, every=1000),
        "st_gumbel": GumbelConfig(rate, floor=0.5, every=1000, hard=True),
        "sum_and_sample": SumAndSampleConfig(1),
    }[choice]


CLASS_RATES = {"sparse": 5e-4, "sfe": 1e-4, "sfe_plus": 1e-4}


@pytest.mark.parametrize("choice", choices("latent.ssvae").values)
def test_classification_is_trained_as_published(choice: str):
    config = find(f"latent.ssvae.{choice}")()
    task, lr = config.task, CLASS_RATES.get(choice, 1e-3)
    assert (config.optimizer, config.schedule) == (AdamConfig(lr, weight_decay=1e-5), Constant())
    assert (config.epochs, task.warm_epochs) == (300, 100) and lr * task.warm_rate == pytest.approx(1e-3)
    assert (task.images.name, task.images.num_valid(60_000)) == ("mnist", 10_000)
    assert (task.num_labelled, task.batch_size, task.entropy) == (5000, 64, 1.0)
    assert task.mapping == ("sparsemax" if choice == "sparse" else "softmax")
    assert task.estimator == estimator_of(choice, 1e-4)


# Rate, and how much entropy is worth. For the last none are published.
MESSAGES = {
    "sparse": (5e-3, 0.1),
    "dense": (1e-3, 0.1),
    "nvil": (1e-3, 0.1),
    "sfe": (1e-3, 0.05),
    "sfe_success": (1e-3, 0.01),
    "sfe_plus": (1e-3, 0.05),
    "gumbel": (1e-3, 0.01),
    "st_gumbel": (1e-3, 0.01),
    "sum_and_sample": (1e-3, 0.1),
}


@each("choice", MESSAGES)
def test_games_are_trained_as_published(choice: str):
    config = find(f"latent.signalling_features.{choice}")()
    task, (lr, entropy) = config.task, MESSAGES[choice]
    assert (config.optimizer, config.schedule) == (AdamConfig(lr), Constant()) and config.optimizer.weight_decay == 0
    assert config.epochs * task.num_batches == 50_000 and (task.batch_size, task.entropy) == (64, entropy)
    assert (task.num_messages, task.num_candidates, task.dim, task.num_units, task.scale) == (256, 16, 256, 512, 10.0)
    assert task.distinct == "labels" and not task.centred and task.images.path is not None
    assert task.mapping == ("sparsemax" if choice == "sparse" else "softmax")
    # Nothing is published for this one, and with no baseline it ends in one message for all.
    averaged = SumAndSampleConfig(1, baseline="average")
    assert task.estimator == (averaged if choice == "sum_and_sample" else estimator_of(choice, 1e-5))
    assert task.pick == (task.estimator if choice in ("sfe_success", "sfe_plus") else None)


@each("choice", MESSAGES)
def test_games_about_clothes_differ_from_the_published_in_what_was_searched_for(choice: str):
    published, config = (find(f"latent.{name}.{choice}")() for name in ("signalling_features", "signalling"))
    assert config.task.images == ImageSet("fashion-mnist", valid=10_000)
    searched = {"entropy": config.task.entropy, "scale": config.task.scale}
    task = replace(published.task, images=config.task.images, distinct="images", centred=True, **searched)
    assert replace(published, task=task, optimizer=config.optimizer) == config


# Rates for 32 bits and for 128, and how fast relaxed samples get colder.
CODES = {
    "sparsemap": (2e-3, 2e-3, 0.0, 0.0),
    "budget": (2e-3, 2e-3, 0.0, 0.0),
    "topk": (2e-3, 1e-3, 0.0, 0.0),
    "sfe": (1e-3, 1e-3, 0.0, 0.0),
    "sfe_plus": (1e-3, 1e-3, 0.0, 0.0),
    "nvil": (1e-3, 5e-4, 0.0, 0.0),
    "gumbel": (1e-3, 1e-3, 1e-5, 1e-4),
    "st_gumbel": (1e-3, 5e-4, 1e-5, 1e-5),
}


@each("choice", CODES)
@each(("name", "num_bits"), [("bits", 32), ("bits_128", 128)])
def test_codes_are_trained_as_published(name: str, num_bits: int, choice: str):
    config, is_long = find(f"latent.{name}.{choice}")(), num_bits == 128
    task = config.task
    assert (config.optimizer, config.schedule) == (AdamConfig(CODES[choice][is_long]), Constant())
    assert (config.epochs, task.num_bits, task.images.num_valid(60_000)) == (100, num_bits, 5000)
    assert task.batch_size == (16 if is_long and choice in ("sparsemap", "budget") else 64)
    assert task.estimator == estimator_of(choice, CODES[choice][2 + is_long])
    mappings = {
        "sparsemap": SparseMapConfig(),
        "budget": SparseMapConfig(num_bits // 2),
        "topk": TopKSparsemaxConfig(10),
    }
    assert task.mapping == mappings.get(choice, IndependentConfig())


@pytest.mark.parametrize("name", [name for name in CHOICES if "_quick" in name])
def test_quick_forms_take_the_embedded_digits_and_few_steps(name: str, monkeypatch: pytest.MonkeyPatch):
    config = find(name)()
    published = find(name.replace("_quick", ""))()
    assert config.task.images == ImageSet()
    assert (config.task.estimator, config.task.batch_size) == (published.task.estimator, published.task.batch_size)
    monkeypatch.setattr("anymax.training.tasks.image_task.open_images", blank(1437, 8))
    task = config.task.build(Path(), Ranks(), seed=1, announce=lambda *_: None)
    steps = config.total_steps(task.batches("train").length)
    assert 500 < steps < 3000 and config.evaluate_every < steps / 2
