"""From configs of language models to the models, for a lexicon."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import anymax
from anymax.attention import EntmaxConfig, LearnedEntmaxConfig
from anymax.models import (
    AWDLSTM,
    LSTMLM,
    AWDLSTMConfig,
    LanguageModelConfig,
    LSTMConfig,
    Tie,
    TransformerConfig,
    TransformerLM,
    build_language_model,
    fsdp_groups,
    learned_alphas,
)
from anymax.models.language_model.building import output_rates
from anymax.regularizers import VariationalDropout
from anymax.transforms import MonotonicNetworkConfig, PLIFConfig, SigConfig
from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveInputConfig,
    AdaptiveOutput,
    AdaptiveOutputConfig,
    Bands,
    CharacterInput,
    CharacterInputConfig,
    FixedInput,
    FixedInputConfig,
    FullOutput,
    FullOutputConfig,
    MixtureOutput,
    MixtureOutputConfig,
    SparseOutput,
    SparseOutputConfig,
)
from tests.lexicons import Made

WORDS = Made(500)
BODY = TransformerConfig(16, 3, 2, 32, dropout=0.1)
LSTM = LSTMConfig(8, 16)
AWD = AWDLSTMConfig(8, 12, 2, 16)
CUTS = (20, 60)


def config(
    input: object = FixedInputConfig(), output: object = FullOutputConfig(), body: object = BODY, **options: object
) -> LanguageModelConfig:
    return LanguageModelConfig(input, output, body, **options)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_each_input_becomes_its_layer_with_its_options() -> None:
    def built(input: object) -> nn.Module:
        return build_language_model(config(input, AdaptiveOutputConfig(CUTS)), WORDS).input

    fixed = built(FixedInputConfig(5))
    assert isinstance(fixed, FixedInput) and fixed.table.shape == (500, 5) and fixed.projection is not None
    assert built(FixedInputConfig()).table.shape == (500, 16)
    adaptive = built(AdaptiveInputConfig(CUTS, dim=12, factor=3))
    assert isinstance(adaptive, AdaptiveInput) and adaptive.bands == Bands(500, CUTS, (12, 4, 1))
    assert built(AdaptiveInputConfig(CUTS)).bands == Bands(500, CUTS, (16, 4, 1))
    characters = built(CharacterInputConfig(3, ((1, 4), (2, 5)), num_highways=2, max_bytes=3))
    assert isinstance(characters, CharacterInput)
    assert [tuple(weight.shape) for weight in characters.filters] == [(3, 1, 4), (3, 2, 5)]
    assert len(characters.highways) == 2 and characters.spellings.shape == (500, 3)
    assert (characters.end_index, characters.unknown_index, characters.windows) == (0, 1, "word")
    assert built(CharacterInputConfig(3, ((1, 4),), windows="padded")).windows == "padded"


def test_each_output_becomes_its_layer_with_its_options() -> None:
    def built(output: object) -> nn.Module:
        return build_language_model(config(output=output), WORDS).output

    full = built(FullOutputConfig(5, bias=True, label_smoothing=0.1))
    assert isinstance(full, FullOutput) and full.table.shape == (500, 5)
    assert full.bias is not None and full.label_smoothing == 0.1
    options = {"tail_dropout": 0.2, "softmax_input_dropout": 0.3, "head_projection": True}
    adaptive = built(AdaptiveOutputConfig(CUTS, dim=16, factor=2, **options))
    assert isinstance(adaptive, AdaptiveOutput) and adaptive.bands == Bands(500, CUTS, (16, 8, 4))
    assert adaptive.tail_dropout == (0.2, 0.2) and adaptive.softmax_input_dropout == 0.3
    assert adaptive.head_projection is not None
    mixture = built(MixtureOutputConfig(3, dim=7, bias=False, latent_dropout=0.4))
    assert isinstance(mixture, MixtureOutput) and (mixture.num_experts, mixture.dim, mixture.bias) == (3, 7, None)
    assert mixture.latent_dropout.p == 0.4 and isinstance(mixture.latent_dropout, nn.Dropout)
    latent_dropout = built(MixtureOutputConfig(3, latent_dropout=0.4, variational=True)).latent_dropout
    assert isinstance(latent_dropout, VariationalDropout)
    assert (latent_dropout.rate, latent_dropout.dim) == (0.4, -2)
    sparse = built(SparseOutputConfig(1.3, learn_alpha=True, dim=7, bias=True, label_smoothing=0.1))
    assert isinstance(sparse, SparseOutput) and sparse.dim == 7 and sparse.bias is not None
    assert sparse.label_smoothing == 0.1 and sparse.alpha.item() == pytest.approx(1.3)
    assert built(SparseOutputConfig(1.7)).alpha == 1.7


@pytest.mark.parametrize(
    "output", [FullOutputConfig(), MixtureOutputConfig(2)], ids=lambda output: type(output).__name__
)
def test_each_transform_becomes_its_module_with_its_options(output: FullOutputConfig | MixtureOutputConfig) -> None:
    def built(transform: object) -> nn.Module | None:
        return build_language_model(config(output=replace(output, transform=transform)), WORDS).output.transform

    assert built(None) is None
    plif = built(PLIFConfig(50, 3.0, random_start=True))
    assert isinstance(plif, anymax.PLIF) and (plif.weight.shape, plif.bound, plif.random_start) == ((50,), 3.0, True)
    assert built(PLIFConfig(50)).weight.unique().numel() == 1
    sig = built(SigConfig(shift=-1.5, slope=2.5))
    assert isinstance(sig, anymax.Sig) and (sig.shift, sig.slope) == (-1.5, 2.5)
    network = built(MonotonicNetworkConfig(30, bound=4.0, chunk=7))
    assert isinstance(network, anymax.MonotonicNetwork)
    assert (network.shift.shape, network.bound, network.chunk) == ((30,), 4.0, 7)


@pytest.mark.parametrize(
    "output", [FullOutputConfig(), MixtureOutputConfig(2)], ids=lambda output: type(output).__name__
)
@pytest.mark.parametrize(
    ("transform", "num_slow"),
    [
        (None, 0),
        (SigConfig(), 0),
        (PLIFConfig(50), 0),
        (PLIFConfig(50, rate=0.001), 1),
        (PLIFConfig(50, rate=0.0), 1),
        (MonotonicNetworkConfig(5, rate=0.1), 5),
    ],
    ids=str,
)
def test_parameters_of_a_transform_learn_at_its_rate(
    output: FullOutputConfig | MixtureOutputConfig, transform: PLIFConfig | None, num_slow: int
) -> None:
    asked = replace(output, transform=transform)
    layer = build_language_model(config(output=asked), WORDS).output
    rates = output_rates(asked, layer)
    assert len(rates) == num_slow
    if num_slow:
        assert rates == dict.fromkeys(layer.transform.parameters(), transform.rate)


def test_layers_without_a_transform_have_no_rates_of_their_own() -> None:
    for output in (SparseOutputConfig(), AdaptiveOutputConfig(CUTS)):
        assert output_rates(output, build_language_model(config(output=output), WORDS).output) == {}


def test_tables_of_an_awd_lstm_start_small_and_its_layers_by_their_width() -> None:
    for output, tie in (
        (FullOutputConfig(8, bias=True), Tie()),
        (FullOutputConfig(bias=True), None),
        (MixtureOutputConfig(2, dim=8), Tie()),
    ):
        model = build_language_model(config(FixedInputConfig(), output, AWD, tie=tie), WORDS)
        assert (model.input.table is model.output.table) == (tie is not None)
        for table in (model.input.table, model.output.table):
            assert table.abs().max() <= 0.1 and table.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)
        assert not model.output.bias.any()
        for lstm, width in zip(model.lstms, (12, 16), strict=True):
            for parameter in lstm.parameters():
                assert 0.8 * width**-0.5 < parameter.abs().max() <= width**-0.5
    # Layers of another kind start as they always do.
    cuts = {"cutoffs": CUTS, "factor": 2}
    model = build_language_model(config(AdaptiveInputConfig(**cuts), AdaptiveOutputConfig(**cuts), AWD), WORDS)
    assert model.input.tables[0].abs().max() > 0.2


def test_a_variational_mixture_drops_the_same_at_all_positions_of_a_row() -> None:
    output = build_language_model(
        config(output=MixtureOutputConfig(3, latent_dropout=0.5, variational=True)), WORDS
    ).output
    hidden = torch.randn(16).expand(4, 6, 16)
    first, second = output.log_probs(hidden), output.log_probs(hidden)
    torch.testing.assert_close(first, first[:, :1].expand_as(first))
    assert not torch.equal(first, second) and not torch.equal(first[0], first[1])
    alone = build_language_model(config(output=MixtureOutputConfig(3, latent_dropout=0.5)), WORDS).output.log_probs(
        hidden
    )
    assert not torch.equal(alone[:, 0], alone[:, 1])


def test_each_body_becomes_its_model() -> None:
    model = build_language_model(config(), WORDS)
    assert isinstance(model, TransformerLM) and model.config == BODY and len(model.blocks) == 3
    assert not config().carries_state and not model.carries_state
    model = build_language_model(config(FixedInputConfig(), FullOutputConfig(8), LSTM), WORDS)
    assert isinstance(model, LSTMLM) and model.config == LSTM
    assert config(body=LSTM).carries_state and model.carries_state
    assert model.input.table.shape == model.output.table.shape == (500, 8)
    model = build_language_model(config(FixedInputConfig(), FullOutputConfig(8), AWD), WORDS)
    assert isinstance(model, AWDLSTM) and model.config == AWD
    assert config(body=AWD).carries_state and model.carries_state


TIES: dict[str, tuple[LanguageModelConfig, list[str]]] = {
    "tables": (
        config(FixedInputConfig(5), FullOutputConfig(5), tie=Tie()),
        ["table"],
    ),
    "projection": (
        config(FixedInputConfig(5), SparseOutputConfig(dim=5), tie=Tie(projections=True)),
        ["table", "projection"],
    ),
    "tables of an LSTM": (
        config(FixedInputConfig(), FullOutputConfig(8), LSTM, tie=Tie()),
        ["table"],
    ),
    "tables of a mixture in an AWD-LSTM": (
        config(FixedInputConfig(), MixtureOutputConfig(2, dim=8), AWD, tie=Tie()),
        ["table"],
    ),
    "adaptive tables": (
        config(AdaptiveInputConfig(CUTS), AdaptiveOutputConfig(CUTS), tie=Tie()),
        ["tables.0", "tables.1", "tables.2"],
    ),
    "adaptive projections": (
        config(AdaptiveInputConfig(CUTS), AdaptiveOutputConfig(CUTS), tie=Tie(projections=True)),
        ["tables.0", "tables.1", "tables.2", "tail_projections.0", "tail_projections.1"],
    ),
    "adaptive head alone": (
        config(
            AdaptiveInputConfig(CUTS), AdaptiveOutputConfig(CUTS, head_projection=True), tie=Tie(False, False, True)
        ),
        ["head_projection"],
    ),
}


@pytest.mark.parametrize("name", TIES)
def test_what_is_tied_is_one_parameter_and_one_group(name: str) -> None:
    tied, shared = TIES[name]
    model = build_language_model(tied, WORDS)
    of_input = {id(parameter) for parameter in model.input.parameters()}
    found = [name for name, parameter in model.output.named_parameters() if id(parameter) in of_input]
    assert sorted(found) == sorted(shared)
    assert fsdp_groups(model) == [[model.input, model.output], *([layer] for layer in model.layers())]
    free = build_language_model(replace(tied, tie=None), WORDS)
    assert fsdp_groups(free) == [[free.input], *([layer] for layer in free.layers()), [free.output]]


def test_alphas_of_heads_are_told_by_layer_and_head() -> None:
    model = build_language_model(config(mapping=LearnedEntmaxConfig()), WORDS)
    alphas = learned_alphas(model)
    assert list(alphas) == [f"alpha/layer_{i}/head_{j}" for i in range(3) for j in range(2)]
    assert alphas["alpha/layer_2/head_1"] == model.blocks[2].attention.mapping.alpha[1].item()
    assert all(1 < alpha < 2 for alpha in alphas.values()) and len(set(alphas.values())) == 6
    begun = build_language_model(config(mapping=LearnedEntmaxConfig(1.2)), WORDS)
    assert list(learned_alphas(begun).values()) == pytest.approx([1.2] * 6)


def test_a_fixed_mapping_learns_no_alpha() -> None:
    model = build_language_model(config(mapping=EntmaxConfig(1.7)), WORDS)
    assert [block.attention.mapping.alpha for block in model.blocks] == [1.7] * 3
    assert learned_alphas(model) == learned_alphas(build_language_model(config(body=LSTM), WORDS)) == {}
    assert build_language_model(config(), WORDS).blocks[0].attention.mapping is None


def test_bands_by_share_fit_lexicons_of_any_size() -> None:
    asked = config(AdaptiveInputConfig(shares=(0.12, 0.36)), AdaptiveOutputConfig(shares=(0.12, 0.36)), tie=Tie())
    for size, cutoffs in ((500, (60, 180)), (33_278, (3_993, 11_980)), (5, (1, 2)), (3, (1, 2))):
        model = build_language_model(asked, Made(size))
        assert model.input.bands.cutoffs == model.output.bands.cutoffs == cutoffs


def test_cutoffs_beyond_the_lexicon_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cutoffs must rise strictly and lie from 1 to 499.* got \(20, 600\)"):
        build_language_model(config(AdaptiveInputConfig((20, 600))), WORDS)
