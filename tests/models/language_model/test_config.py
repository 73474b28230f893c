"""Configs of language models: toys, what is refused, and how they are set."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
import torch
import tyro
from torch import nn

import anymax
from anymax.attention import EntmaxConfig, LearnedEntmaxConfig, SigmoidConfig
from anymax.models import AWDLSTMConfig, LanguageModelConfig, LSTMConfig, Tie, TransformerConfig, build_language_model
from anymax.transforms import LengthScaleConfig, MonotonicNetworkConfig, PLIFConfig, SigConfig
from anymax.vocabulary import (
    AdaptiveInputConfig,
    AdaptiveOutputConfig,
    CharacterInputConfig,
    FixedInputConfig,
    FullOutputConfig,
    MixtureOutputConfig,
    SparseOutputConfig,
)
from tests.lexicons import Made
from tests.models.language_model.test_building import AWD, BODY, CUTS, LSTM, WORDS, config, size

TOYS = {
    "fixed": config(FixedInputConfig(64), FullOutputConfig(64), TransformerConfig(128, 4, 4, 256), tie=Tie()),
    "fixed, as wide as the model": config(
        FixedInputConfig(128), FullOutputConfig(128), TransformerConfig(128, 4, 4, 256), tie=Tie()
    ),
    "four bands": config(
        AdaptiveInputConfig((2_000, 6_000, 9_000)),
        AdaptiveOutputConfig((2_000, 6_000, 9_000)),
        TransformerConfig(128, 4, 4, 256),
    ),
    "bands of one width": config(
        AdaptiveInputConfig((2_000,), dim=64, factor=1),
        AdaptiveOutputConfig((2_000,), dim=64, factor=1),
        TransformerConfig(128, 4, 4, 256),
        tie=Tie(True, True, True),
    ),
    "bands by share": config(
        AdaptiveInputConfig(shares=(0.1, 0.5)), AdaptiveOutputConfig(shares=(0.1, 0.5)), LSTMConfig(128, 128, 2)
    ),
    "characters": config(
        CharacterInputConfig(num_highways=2), MixtureOutputConfig(15, dim=64), TransformerConfig(128, 4, 4, 256)
    ),
    "LSTM": config(FixedInputConfig(), SparseOutputConfig(dim=64), LSTMConfig(64, 128, 4), tie=Tie()),
    "AWD-LSTM": config(
        FixedInputConfig(),
        FullOutputConfig(bias=True, transform=PLIFConfig()),
        AWDLSTMConfig(64, 128, 3, 64),
        tie=Tie(),
    ),
    "AWD-LSTM and mixture": config(
        FixedInputConfig(),
        MixtureOutputConfig(15, dim=64, variational=True, transform=MonotonicNetworkConfig()),
        AWDLSTMConfig(64, 128, 4, 96),
        tie=Tie(),
    ),
    "AWD-LSTM of one layer": config(
        FixedInputConfig(32), FullOutputConfig(32, transform=SigConfig()), AWDLSTMConfig(64, 64, 1, 64)
    ),
}


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_has_the_structure_of_its_model_and_a_tiny_size(name: str) -> None:
    large = Made(10_000)
    with torch.device("meta"):
        model = build_language_model(TOYS[name], large)
    toy = build_language_model(TOYS[name].toy(), WORDS)

    def structure(model: nn.Module) -> list[str]:
        # Layers beyond the second are left out of a toy.
        beyond = ("blocks.2", "blocks.3", "_l2", "_l3", "lstms.2", "lstms.3")
        return [name for name, _ in model.named_parameters() if not any(part in name for part in beyond)]

    assert structure(toy) == structure(model)
    assert size(toy) < 25_000
    loss = toy(torch.randint(500, (2, 5)), torch.randint(500, (2, 5)))
    assert loss.isfinite()


def test_a_toy_keeps_its_transform_of_few_pieces() -> None:
    for transform, toy in (
        (PLIFConfig(rate=0.1, random_start=True), PLIFConfig(100, rate=0.1, random_start=True)),
        (SigConfig(slope=3.0), SigConfig(slope=3.0)),
        (MonotonicNetworkConfig(rate=0.1), MonotonicNetworkConfig(10, rate=0.1)),
    ):
        assert (
            FullOutputConfig(transform=transform).toy(64).transform
            == MixtureOutputConfig(3, transform=transform).toy(64).transform
            == toy
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaptiveInputConfig(), "cutoffs or shares must be given, and not both"),
        (lambda: AdaptiveOutputConfig((3,), shares=(0.5,)), "cutoffs or shares must be given, and not both"),
        (lambda: AdaptiveInputConfig(shares=(0.5, 0.2)), r"shares must rise and lie between 0 and 1, got \(0.5, 0.2\)"),
        (lambda: AdaptiveInputConfig(shares=(0.5, 1.0)), "shares must rise and lie between 0 and 1"),
        (lambda: Tie(False), "tie must share something"),
        (lambda: EntmaxConfig(-0.5), "alpha must be finite and at least 0, got -0.5"),
        (lambda: LearnedEntmaxConfig(2.0), "initial must lie strictly between 1 and 2, got 2.0"),
        (lambda: LearnedEntmaxConfig(low=-1.0), "low and high must be finite with 0 <= low < high, got -1.0 and 2.0"),
        (
            lambda: config(body=LSTM, mapping=EntmaxConfig()),
            r"mapping must stay SoftmaxConfig\(\) for an LSTM, which has no attention",
        ),
        (
            lambda: config(body=replace(BODY, attention_sink="learned"), mapping=SigmoidConfig()),
            r"body.attention_sink must be None for SigmoidConfig\(.*, got 'learned'; its weights do not depend",
        ),
        (
            lambda: config(CharacterInputConfig(), AdaptiveOutputConfig(CUTS), tie=Tie()),
            "tie must join AdaptiveInputConfig with AdaptiveOutputConfig, .* "
            "got CharacterInputConfig with AdaptiveOutputConfig; leave tie out",
        ),
        (
            lambda: config(CharacterInputConfig(spell_unknown=True), body=AWDLSTMConfig()),
            "body.word_dropout must be 0 with spell_unknown, got 0.1; words outside the vocabulary",
        ),
        (
            lambda: config(FixedInputConfig(), AdaptiveOutputConfig(CUTS), tie=Tie()),
            "got FixedInputConfig with AdaptiveOutputConfig",
        ),
        (
            lambda: config(FixedInputConfig(), FullOutputConfig(), tie=Tie(head=True)),
            "tie.head must be False for FullOutputConfig, which has no head",
        ),
        (
            lambda: config(AdaptiveInputConfig(CUTS), AdaptiveOutputConfig((20, 70)), tie=Tie()),
            r"the same cutoffs to be tied, got \(20, 60\) and \(20, 70\)",
        ),
        (
            lambda: config(AdaptiveInputConfig(CUTS), AdaptiveOutputConfig(CUTS, factor=2), tie=Tie()),
            "the same factor to be tied, got 4 and 2",
        ),
        (
            lambda: config(
                AdaptiveInputConfig(CUTS), AdaptiveOutputConfig(CUTS, head_projection=False), tie=Tie(head=True)
            ),
            "tie.head must be False for an output with head_projection=False",
        ),
        (
            lambda: config(FixedInputConfig(5), FullOutputConfig(4), tie=Tie()),
            "tie must join tables of one width, got 5 in FixedInputConfig and 4 in FullOutputConfig; "
            "set the output's dim to 5",
        ),
        (
            lambda: config(FixedInputConfig(), MixtureOutputConfig(3), AWD, tie=Tie()),
            "got 8 in FixedInputConfig and 16 in MixtureOutputConfig; set the output's dim to 8, or leave tie out",
        ),
        (
            lambda: config(AdaptiveInputConfig(CUTS, dim=8), AdaptiveOutputConfig(CUTS), tie=Tie()),
            "got 8 in AdaptiveInputConfig and 16 in AdaptiveOutputConfig",
        ),
        (
            lambda: config(AdaptiveInputConfig(CUTS), AdaptiveOutputConfig(CUTS), tie=Tie(head=True)),
            "tie.head must be False for an output whose head is as wide as the model, 16, .* head_projection=True",
        ),
        (
            lambda: config(FixedInputConfig(5), MixtureOutputConfig(2, dim=5), tie=Tie(projections=True)),
            "tie.projections must be False where a layer has no projection, got True and MixtureOutputConfig without",
        ),
        (
            lambda: config(FixedInputConfig(), FullOutputConfig(), tie=Tie(projections=True)),
            "got True and FixedInputConfig and FullOutputConfig without",
        ),
        (
            lambda: config(FixedInputConfig(5), FullOutputConfig(5), AWD, tie=Tie(projections=True)),
            "where the body reads and gives vectors of different widths, got 8 and 16; share the tables alone",
        ),
        (
            lambda: config(body=AWD, mapping=EntmaxConfig()),
            r"mapping must stay SoftmaxConfig\(\) for an LSTM, which has no attention",
        ),
        (lambda: PLIFConfig(0), "pieces must be at least 1, got 0"),
        (lambda: PLIFConfig(bound=0.0), "bound must be above 0 and finite, got 0.0"),
        (lambda: PLIFConfig(rate=-1.0), "rate must be at least 0 and finite, got -1.0"),
        (lambda: SigConfig(slope=0.0), "slope must be above 0 and finite, got 0.0"),
        (lambda: SigConfig(shift=float("inf")), "shift must be a finite number, got inf"),
        (lambda: MonotonicNetworkConfig(0), "hidden must be at least 1, got 0"),
        (lambda: MonotonicNetworkConfig(chunk=0), "chunk must be at least 1, got 0"),
    ],
)
def test_wrong_combinations_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_every_field_can_be_set_from_the_command_line() -> None:
    given = config(
        AdaptiveInputConfig(CUTS),
        AdaptiveOutputConfig(CUTS),
        tie=Tie(projections=True),
        mapping=LearnedEntmaxConfig(),
    )
    words = "--body.num-layers 4 --input.cutoffs 5 7 --output.cutoffs 5 7 --tie.no-projections --mapping.initial 1.5"
    changed = tyro.cli(LanguageModelConfig, default=given, args=words.split(), config=(tyro.conf.AvoidSubcommands,))
    assert changed == config(
        AdaptiveInputConfig((5, 7)),
        AdaptiveOutputConfig((5, 7)),
        replace(BODY, num_layers=4),
        tie=Tie(),
        mapping=LearnedEntmaxConfig(1.5),
    )


def test_options_of_attention_can_be_set_from_the_command_line() -> None:
    line = "--body.num-kv-heads 1 --body.attention-gate head --body.attention-sink learned "
    line += "--body.attention-transform.beta 0.5"
    given = config(body=replace(BODY, attention_transform=LengthScaleConfig()))
    changed = tyro.cli(LanguageModelConfig, default=given, args=line.split(), config=(tyro.conf.AvoidSubcommands,))
    wanted = {"num_kv_heads": 1, "attention_gate": "head", "attention_sink": "learned"}
    assert changed == config(body=replace(BODY, **wanted, attention_transform=LengthScaleConfig(0.5)))


def test_fields_of_a_transform_and_an_awd_lstm_can_be_set_from_the_command_line() -> None:
    given = config(FixedInputConfig(), FullOutputConfig(transform=PLIFConfig()), AWDLSTMConfig(), tie=Tie())
    line = "--body.num-layers 2 --body.penalty norm --body.weight-dropout 0.1 --output.transform.rate 0.001 "
    line += "--output.transform.pieces 9 --output.bias"
    changed = tyro.cli(LanguageModelConfig, default=given, args=line.split(), config=(tyro.conf.AvoidSubcommands,))
    assert changed == config(
        FixedInputConfig(),
        FullOutputConfig(bias=True, transform=PLIFConfig(9, rate=0.001)),
        AWDLSTMConfig(num_layers=2, penalty="norm", weight_dropout=0.1),
        tie=Tie(),
    )


def test_fields_are_plain_values() -> None:
    def plain(value: object) -> bool:
        if isinstance(value, dict):
            return all(plain(each) for each in value.values())
        if isinstance(value, tuple):
            return all(plain(each) for each in value)
        return value is None or isinstance(value, int | float | str)

    for each in TOYS.values():
        assert plain(asdict(each))


def test_configs_are_made_without_torch() -> None:
    script = """
import sys
from anymax.models import AWDLSTMConfig, LanguageModelConfig, Tie, TransformerConfig
from anymax.transforms import PLIFConfig
from anymax.vocabulary import AdaptiveInputConfig, AdaptiveOutputConfig, FixedInputConfig, FullOutputConfig
LanguageModelConfig(
    AdaptiveInputConfig((2, 5)), AdaptiveOutputConfig((2, 5)), TransformerConfig(16, 1, 2, 16), Tie()
).toy()
LanguageModelConfig(FixedInputConfig(), FullOutputConfig(transform=PLIFConfig()), AWDLSTMConfig(), Tie()).toy()
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_lexicon_is_what_a_model_is_built_for() -> None:
    lexicon = anymax.data.Lexicon.from_words(["to", "be", "or", "not", "to", "be"])
    model = build_language_model(
        config(CharacterInputConfig(4, ((1, 4),), max_bytes=2), AdaptiveOutputConfig(shares=(0.5,))), lexicon
    )
    assert model.output.vocabulary_size == len(lexicon) == 6
    assert (model.input.end_index, model.input.unknown_index) == (lexicon.eos, lexicon.unk)
