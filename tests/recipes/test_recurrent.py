"""Recipes of recurrent models: the published sizes, and trained as the papers' commands say."""

import pytest
import torch

from anymax.models import AWDLSTMConfig, build_language_model
from anymax.recipes import find, names
from anymax.training.optim.optimizers import AdamConfig, AveragedSGDConfig, SGDConfig
from anymax.training.optim.schedules import NonMonotone
from anymax.training.tasks.language_modeling.config import Contiguous, LanguageModelingConfig
from tests.each import each
from tests.lexicons import Made

WORDS = {"ptb": 10_000, "wikitext-2": 33_278}
SIZES = {
    "merity.ptb": 24_221_600,
    "merity.ptb_sgd": 24_221_600,
    "merity.ptb_adam": 24_221_600,
    "merity.wikitext2": 33_556_078,
    "yang.ptb": 21_500_620,
    "yang.wikitext2": 34_909_528,
    "ganea.ptb_plif": 24_321_600,
    "ganea.ptb_sigsoftmax": 24_221_600,
    "ganea.ptb_mixture": 26_633_600,
    "ganea.ptb_mixture_plif": 27_633_600,
    "ganea.wikitext2_plif": 33_656_078,
}


def test_every_recipe_of_these_papers_is_here() -> None:
    assert set(SIZES) == {name for name in names() if name.split(".")[0] in ("merity", "yang", "ganea")}


@each("name", SIZES)
def test_models_have_the_published_number_of_parameters(name: str) -> None:
    task = LanguageModelingConfig.of(find(name)().task)
    with torch.device("meta"):
        model = build_language_model(task.model, Made(WORDS[task.data.corpus]))
    assert sum(parameter.numel() for parameter in model.parameters()) == SIZES[name]


@pytest.mark.parametrize(
    ("name", "batch_size", "epochs", "lr", "rates", "longest"),
    [
        # Rates for words, the input, between layers, the output and recurrent weights.
        ("merity.ptb", 20, 500, 30.0, (0.1, 0.4, 0.25, 0.4, 0.5), None),
        ("merity.wikitext2", 80, 750, 30.0, (0.1, 0.65, 0.2, 0.4, 0.5), None),
        ("yang.ptb", 12, 1000, 20.0, (0.1, 0.4, 0.225, 0.4, 0.5), 110),
        ("yang.wikitext2", 15, 1000, 15.0, (0.1, 0.55, 0.2, 0.4, 0.5), 90),
    ],
)
def test_training_has_the_published_flags(
    name: str, batch_size: int, epochs: int, lr: float, rates: tuple[float, ...], longest: int | None
) -> None:
    config = find(name)()
    task, optimizer = LanguageModelingConfig.of(config.task), config.optimizer
    body, batching = task.model.body, task.batching
    assert (
        isinstance(body, AWDLSTMConfig)
        and isinstance(batching, Contiguous)
        and isinstance(optimizer, AveragedSGDConfig)
    )
    assert rates == (
        body.word_dropout,
        body.input_dropout,
        body.layer_dropout,
        body.output_dropout,
        body.weight_dropout,
    )
    assert (body.activation, body.temporal_activation, body.penalty) == (2.0, 1.0, "mean_square")
    assert (optimizer.lr, optimizer.weight_decay, optimizer.begin) == (lr, 1.2e-6, NonMonotone(5))
    assert (batching.batch_size, batching.block, config.epochs, config.clip) == (batch_size, 70, epochs, 0.25)
    assert batching.random_lengths is not None and batching.random_lengths.most == longest
    assert config.evaluate_every == "epoch"


def test_the_other_optimizers_change_nothing_else() -> None:
    plain = find("merity.ptb")()
    for name, kind in (("merity.ptb_sgd", SGDConfig), ("merity.ptb_adam", AdamConfig)):
        other = find(name)()
        assert isinstance(other.optimizer, kind) and other.task == plain.task and other.epochs == plain.epochs


@each(
    ("base", "name", "field"),
    [
        ("regularized", "without_averaging", "optimizer"),
        ("regularized", "without_weight_decay", "optimizer"),
        ("regularized", "without_random_lengths", "task"),
        ("regularized", "without_word_dropout", "task"),
        ("regularized", "without_penalties", "task"),
        ("regularized", "without_weight_drop", "task"),
        *(("linear", name, "task") for name in ("scaled", "sigsoftmax", "plif", "sparse")),
        *(("linear", name, "task") for name in ("mixture_5", "mixture_15", "mixture_plif")),
    ],
)
def test_small_recipes_differ_from_the_plain_one_in_what_they_name(base: str, name: str, field: str) -> None:
    plain, other = find(f"ptb.{base}")(), find(f"ptb.{name}")()
    assert {key for key in vars(plain) if getattr(plain, key) != getattr(other, key)} == {field}
