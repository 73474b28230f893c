"""Configs of translators: what each field becomes, toys, what is refused, and how they are set."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import tyro
from torch import nn

from anymax.attention import EntmaxConfig, LearnedEntmaxConfig, SigmoidConfig, SoftpickConfig
from anymax.mappings import Softpick
from anymax.models import Tie, TransformerConfig, Translator, TranslatorConfig, learned_alphas
from anymax.plain import as_plain, from_plain
from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveInputConfig,
    AdaptiveOutput,
    AdaptiveOutputConfig,
    CharacterInputConfig,
    FixedInputConfig,
    FullOutputConfig,
    MixtureOutputConfig,
    SparseOutput,
    SparseOutputConfig,
)
from tests.each import each
from tests.lexicons import Made

BODY = TransformerConfig(16, 3, 2, 32, dropout=0.1, final_norm=True)
CUTS = (20, 60)
SOURCE, TARGET = Made(300), Made(500)
THREE_WAY = {"share_input": True, "tie": Tie()}
ALPHAS = dict.fromkeys(("encoder_mapping", "decoder_mapping", "cross_mapping"), LearnedEntmaxConfig(clamp=1.01))


def config(
    input: object = FixedInputConfig(), output: object = FullOutputConfig(bias=True), **options: object
) -> TranslatorConfig:
    return TranslatorConfig(input, output, options.pop("body", BODY), **options)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_each_field_becomes_what_it_is_named_for() -> None:
    model = config(
        AdaptiveInputConfig(CUTS, dim=12, factor=3),
        AdaptiveOutputConfig(CUTS, dim=12, factor=3, tail_dropout=0.2),
        source_input=FixedInputConfig(5),
        tie=Tie(projections=True),
        decoder_layers=2,
        encoder_mapping=EntmaxConfig(1.3),
        decoder_mapping=LearnedEntmaxConfig(1.2, clamp=1.01),
        cross_mapping=SoftpickConfig(),
        max_positions=70,
    ).build(SOURCE, TARGET)
    assert isinstance(model, Translator) and model.config == BODY and model.max_positions == 70
    assert model.source_input.table.shape == (300, 5)
    assert isinstance(model.target_input, AdaptiveInput) and isinstance(model.output, AdaptiveOutput)
    assert model.output.vocabulary_size == 500 and model.output.bands == model.target_input.bands
    assert model.output.tail_dropout == (0.2, 0.2)
    shared = {id(p) for p in model.target_input.parameters()} & {id(p) for p in model.output.parameters()}
    assert len(shared) == 5
    assert len(model.encoder.blocks) == 3 and len(model.decoder.blocks) == 2
    assert [block.attention.mapping.alpha for block in model.encoder.blocks] == [1.3] * 3
    assert [block.attention.mapping.clamp for block in model.decoder.blocks] == [1.01] * 2
    assert all(isinstance(block.cross_attention.mapping, Softpick) for block in model.decoder.blocks)
    assert model.encoder.final_norm is not None and model.decoder.final_norm is not None


def test_tables_are_three_two_or_one() -> None:
    def tables(**options: object) -> list[int]:
        model = config(**options).build(TARGET, TARGET)
        layers = (model.source_input, model.target_input, model.output)
        found = [id(layer.table) for layer in layers]
        return [found.index(table) for table in found]

    assert tables() == [0, 1, 2]
    assert tables(tie=Tie()) == [0, 1, 1]
    assert tables(share_input=True) == [0, 0, 2]
    assert tables(**THREE_WAY) == [0, 0, 0]
    untied, tied = (config(**options).build(TARGET, TARGET) for options in ({}, THREE_WAY))
    assert size(untied) - size(tied) == 2 * 500 * 16


def test_defaults_are_softmax_equal_stacks_and_no_limit() -> None:
    model = config(output=SparseOutputConfig(1.3)).build(SOURCE, TARGET)
    assert isinstance(model.output, SparseOutput) and model.source_input.table.shape == (300, 16)
    assert len(model.encoder.blocks) == len(model.decoder.blocks) == 3 and model.max_positions is None
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    assert all(block.attention.mapping is None for block in blocks) and learned_alphas(model) == {}


def test_the_published_base_model_comes_from_its_config() -> None:
    asked = config(body=TransformerConfig(512, 6, 8, 2048, final_norm=True), **THREE_WAY, **ALPHAS)
    with torch.device("meta"):
        model = asked.build(Made(1000), Made(1000))
    assert size(model) == 44_140_544 + 144 + 512 * 1000 + 1000
    alphas = asked.toy().build(TARGET, TARGET)
    named = learned_alphas(alphas)
    assert len(named) == 3 * 2 * 2 and all(1.01 <= alpha < 2 for alpha in named.values())
    assert len(set(named.values())) == len(named)


TOYS = {
    "base": config(body=TransformerConfig(128, 4, 4, 256), decoder_layers=3, **THREE_WAY, **ALPHAS),
    "adaptive": config(
        AdaptiveInputConfig((2_000, 6_000)),
        AdaptiveOutputConfig((2_000, 6_000)),
        body=TransformerConfig(128, 4, 4, 256, positions="rotary"),
        source_input=AdaptiveInputConfig((1_000,)),
        tie=Tie(projections=True),
    ),
    "characters": config(
        CharacterInputConfig(num_highways=2),
        MixtureOutputConfig(15, dim=64),
        body=TransformerConfig(128, 4, 4, 256, num_kv_heads=2),
        share_input=True,
    ),
    "sparse": config(
        FixedInputConfig(64), SparseOutputConfig(dim=64), body=TransformerConfig(128, 2, 4, 256), decoder_layers=1
    ),
}


@each("name", TOYS)
def test_a_toy_has_the_structure_of_its_model_and_a_tiny_size(name: str) -> None:
    large = Made(10_000)
    with torch.device("meta"):
        model = TOYS[name].build(large, large)
    toy = TOYS[name].toy().build(TARGET, TARGET)

    def structure(model: nn.Module) -> list[str]:
        # Layers beyond the second are left out of a toy.
        return [name for name, _ in model.named_parameters() if ".blocks.2" not in name and ".blocks.3" not in name]

    assert structure(toy) == structure(model)
    assert size(toy) < 45_000
    words = torch.randint(500, (4, 2, 5))
    assert toy(words[0], None, words[1], words[2]).isfinite()


@each(
    ("make", "message"),
    [
        (lambda: config(decoder_layers=0), "decoder_layers must be at least 1, got 0"),
        (lambda: config(decoder_layers=1001), "num_layers must be at most 1000, got 1001"),
        (lambda: config(max_positions=0), "max_positions must be at least 1, got 0"),
        (
            lambda: config(share_input=True, source_input=FixedInputConfig()),
            r"source_input must be left out with share_input, got FixedInputConfig\(dim=None\); one layer reads both",
        ),
        (
            lambda: config(source_input=CharacterInputConfig(spell_unknown=True)),
            "source_input.spell_unknown must be False in a translator, got True",
        ),
        (lambda: config(CharacterInputConfig(spell_unknown=True)), "input.spell_unknown must be False in a translator"),
        (
            lambda: config(body=replace(BODY, attention_sink=0.0), cross_mapping=SigmoidConfig()),
            r"body.attention_sink must be None for SigmoidConfig\(.*, got 0.0; its weights do not depend",
        ),
        (lambda: config(output=AdaptiveOutputConfig(CUTS), tie=Tie()), "got FixedInputConfig with AdaptiveOutput"),
        (lambda: config(FixedInputConfig(5), tie=Tie()), "tie must join tables of one width, got 5 in FixedInput"),
        (
            lambda: config(share_input=True).build(SOURCE, TARGET),
            "source and target must have one lexicon with share_input, got two, of 300 and 500 words; learn the units",
        ),
    ],
)
def test_wrong_combinations_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_equal_lexicons_may_be_shared() -> None:
    model = config(**THREE_WAY).build(Made(50), Made(50))
    assert model.source_input is model.target_input


def test_a_config_comes_back_from_json_and_every_field_can_be_set_from_the_command_line() -> None:
    for each_config in TOYS.values():
        assert from_plain(TranslatorConfig, json.loads(json.dumps(as_plain(each_config)))) == each_config
    line = "--share-input --decoder-layers 2 --max-positions 90 --body.num-layers 5 --output.label-smoothing 0.1 "
    line += "--output.smoothing opennmt --encoder-mapping.clamp 1.01 --cross-mapping.alpha 1.7"
    asked = config(encoder_mapping=LearnedEntmaxConfig(), cross_mapping=EntmaxConfig(), tie=Tie())
    changed = tyro.cli(TranslatorConfig, default=asked, args=line.split(), config=(tyro.conf.AvoidSubcommands,))
    assert changed == config(
        output=FullOutputConfig(bias=True, label_smoothing=0.1, smoothing="opennmt"),
        body=replace(BODY, num_layers=5),
        **THREE_WAY,
        decoder_layers=2,
        max_positions=90,
        encoder_mapping=LearnedEntmaxConfig(clamp=1.01),
        cross_mapping=EntmaxConfig(1.7),
    )


def test_configs_are_made_without_torch() -> None:
    script = """
import sys
from anymax.attention import LearnedEntmaxConfig
from anymax.models import Tie, TransformerConfig, TranslatorConfig
from anymax.vocabulary import FixedInputConfig, FullOutputConfig
TranslatorConfig(
    FixedInputConfig(), FullOutputConfig(smoothing="opennmt"), TransformerConfig(16, 1, 2, 16),
    share_input=True, tie=Tie(), encoder_mapping=LearnedEntmaxConfig(clamp=1.01),
).toy()
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
