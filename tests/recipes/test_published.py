"""Recipes of papers: their models have the published sizes, and they are trained as the papers say."""

from dataclasses import replace

import pytest
import torch

from anymax.models import LanguageModelConfig, build_language_model
from anymax.recipes import billion_word, find, names, wikitext103
from anymax.training.optim.optimizers import NesterovConfig
from anymax.training.tasks.language_modeling.config import Blocks, Sentences
from tests.each import each
from tests.lexicons import Made

WIKITEXT, WIKITEXT_PIECES = 267_744, 33_337
BILLION, BILLION_PIECES = 793_472, 32_347

# The parameters by the formula of the paper's layers, and the published figure in millions.
WIKITEXT_ROWS = {
    "softmax": (476_758_016, "476.8"),
    "bpe": (269_813_760, "270"),
    "bpe_tied": (235_676_672, "235.7"),
    "softmax_tied": (339_673_088, "339.7"),
    "adaptive_softmax": (263_086_080, "263.1"),
    "character_cnn": (266_343_808, "266.3"),
    "adaptive": (291_276_800, "291.3"),
    "adaptive_tied": (246_933_504, "246.9"),
    "adaptive_tied_2048": (246_933_504, "246.9"),
    "adaptive_tied_3072": (246_933_504, "246.9"),
    "adaptive_tied_fairseq": (246_933_504, "246.9"),
    "adaptive_no_tail_dropout": (291_276_800, "291.3"),
    "adaptive_softmax_no_tail_dropout": (263_086_080, "263.1"),
    "adaptive_softmax_256": (314_689_536, "314.7"),
    "adaptive_softmax_128": (280_287_232, "280.3"),
    "adaptive_softmax_32": (254_485_504, "254.5"),
    "softmax_tied_more_dropout": (339_673_088, "339.7"),
    "softmax_more_dropout": (476_758_016, "476.8"),
    "softmax_tied_256": (270_606_336, "270.6"),
    "softmax_256": (339_148_800, "339.1"),
    "softmax_64_512": (356_349_952, "356.3"),
    "adaptive_tied_tables": (247_261_184, "247.3"),
    "adaptive_tied_head": (246_933_504, "246.9"),
    # Which projections are shared is not told, so the formula is not known.
    "adaptive_tied_one_width": (None, "340.2"),
    "bands_20k_140k_100k": (266_133_504, None),
    "bands_20k_40k_60k_140k": (239_859_200, None),
    "bands_60k_100k_100k": (296_853_504, None),
    "bands_5k_155k_100k": (254_613_504, None),
    "bands_10k_60k_190k": (241_173_504, None),
}
BILLION_ROWS = {
    "bpe_tied": (234_662_912, "234.7"),
    "bpe": (267_786_240, "267.8"),
    "adaptive_softmax": (532_842_496, "532.8"),
    "character_cnn": (365_775_744, "365.8"),
    "adaptive": (458_409_984, "458.4"),
    "adaptive_tied": (330_827_776, "330.8"),
    "character_cnn_large_batch": (365_775_744, "366"),
    "adaptive_tied_large_batch": (330_827_776, "331"),
    "large": (465_139_712, "465"),
    "very_large": (1_026_210_816, "1026"),
}
ROWS = {f"wikitext103.{name}": row for name, row in WIKITEXT_ROWS.items()}
ROWS |= {f"billion_word.{name}": row for name, row in BILLION_ROWS.items()}


def count(model: LanguageModelConfig, size: int) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_language_model(model, Made(size)).parameters())


def vocabulary_of(name: str) -> int:
    words, pieces = (WIKITEXT, WIKITEXT_PIECES) if name.startswith("wikitext103") else (BILLION, BILLION_PIECES)
    return pieces if ".bpe" in name else words


def test_every_recipe_of_the_paper_is_a_row() -> None:
    assert [name for name in names() if name.startswith(("wikitext103.", "billion_word."))] == sorted(
        ROWS, key=lambda name: name.split(".")[0]
    )


@each("name", ROWS)
def test_a_model_has_its_published_size_and_its_docstring_says_it(name: str) -> None:
    formula, published = ROWS[name]
    size = count(find(name)().task.model, vocabulary_of(name))
    assert formula in (size, None)
    if published is not None:
        assert abs(size / 1e6 - float(published)) <= (0.0501 if "." in published else 0.5)
        assert f"{published}M parameters" in " ".join(find(name).__doc__.split())


def test_eight_blocks_have_the_size_that_training_printed() -> None:
    model = wikitext103.adaptive_tied_fairseq().task.model
    assert count(replace(model, body=replace(model.body, num_layers=8)), WIKITEXT) == 146_163_712


@each("name", WIKITEXT_ROWS)
def test_wikitext_models_are_trained_as_the_paper_says(name: str) -> None:
    run = find(f"wikitext103.{name}")()
    body, batching = run.task.model.body, run.task.batching
    assert (body.num_layers, body.num_heads) == (16, 8 if name.endswith("fairseq") else 16)
    more = name.endswith("more_dropout")
    assert (body.dropout, body.attention_dropout, body.activation_dropout) == (0.4 if more else 0.3, 0.1, 0.1)
    assert (run.optimizer, run.clip, run.steps) == (NesterovConfig(1.0, momentum=0.99), 0.1, 286_000)
    assert isinstance(batching, Blocks) and run.task.evaluation.block == batching.block
    assert run.task.evaluation.windows == "sentences"
    # Blocks of 3072 do not make 65,536.
    per_step = batching.block * batching.batch_size * run.accumulate
    assert per_step == (73_728 if batching.block == 3072 else 65_536)


def test_rates_fall_in_four_cycles_on_wikitext_and_in_three_on_billion_word() -> None:
    run = wikitext103.adaptive_tied()
    rates = [run.optimizer.lr * run.schedule.factor(step, run.steps) for step in (0, 16_000, 34_000, 70_000, 142_000)]
    assert rates == pytest.approx([1e-7, 1, 0.75, 0.5625, 0.421875])
    assert run.schedule.factor(285_999, run.steps) == pytest.approx(1e-5 * 0.421875, rel=1e-3)
    run = billion_word.adaptive_tied()
    rates = [run.optimizer.lr * run.schedule.factor(step, run.steps) for step in (16_000, 153_000, 427_000)]
    assert rates == pytest.approx([1, 0.6, 0.36])
    assert run.schedule.factor(974_999, run.steps) == pytest.approx(1e-5 * 0.36, rel=1e-3)
    fairseq = wikitext103.adaptive_tied_fairseq()
    assert fairseq.schedule.factor(285_999, fairseq.steps) == pytest.approx(1e-4, rel=1e-3)


@each("name", BILLION_ROWS)
def test_billion_word_models_are_trained_as_the_paper_says(name: str) -> None:
    run = find(f"billion_word.{name}")()
    body, batching = run.task.model.body, run.task.batching
    assert (body.num_heads, body.dropout, body.attention_dropout, body.activation_dropout) == (16, 0.1, 0.1, 0.0)
    assert (run.optimizer, run.clip, run.steps) == (NesterovConfig(1.0, momentum=0.99), 0.1, 975_000)
    of_table_1 = name.endswith(("large", "large_batch"))
    assert batching == Sentences(131_072 if of_table_1 else 65_536) and run.accumulate == 1


def test_tails_are_dropped_on_wikitext_alone_but_where_a_name_says_so() -> None:
    for name in ROWS:
        output = find(name)().task.model.output
        if type(output).__name__ == "AdaptiveOutputConfig":
            dropped = name.startswith("wikitext103") and not name.endswith("no_tail_dropout")
            assert output.tail_dropout == (0.2 if dropped else 0.0)
            assert output.softmax_input_dropout == (0.2 if name.endswith("fairseq") else 0.0)


@pytest.mark.parametrize(("name", "block", "context"), [("", 512, 0), ("_2048", 2048, 1536), ("_3072", 3072, 2560)])
def test_longer_blocks_are_scored_with_context(name: str, block: int, context: int) -> None:
    evaluation = find(f"wikitext103.adaptive_tied{name}")().task.evaluation
    assert (evaluation.block, evaluation.context) == (block, context)


def test_the_lstm_of_grave_has_the_size_of_its_formula() -> None:
    lstm = 4 * 512 * (256 + 512 + 2)
    size = 33_278
    tails = 8_000 * 128 + (size - 10_000) * 32 + 512 * (128 + 32) + 2 * 512
    assert count(find("grave.full")().task.model, size) == lstm + size * (256 + 512)
    assert count(find("grave.adaptive")().task.model, size) == lstm + size * 256 + 2_000 * 512 + tails
