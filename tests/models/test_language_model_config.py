"""Configs of language models, and the models that are built from them for a lexicon."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import pytest
import torch
import tyro
from torch import nn

import anymax
from anymax.models import (
    AWDLSTM,
    LSTMLM,
    Adaptive,
    AdaptiveSoftmax,
    AWDLSTMConfig,
    Characters,
    EntmaxAttention,
    Fixed,
    Full,
    LanguageModelConfig,
    LearnedEntmaxAttention,
    LSTMConfig,
    Mixture,
    MonotonicNetworkConfig,
    PLIFConfig,
    SigConfig,
    Sparse,
    Tie,
    TransformerConfig,
    TransformerLM,
    build_language_model,
    fsdp_groups,
    learned_alphas,
)
from anymax.models.building import output_rates
from anymax.regularizers import VariationalDropout
from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveOutput,
    Bands,
    CharacterInput,
    FixedInput,
    FullOutput,
    MixtureOutput,
    SparseOutput,
)


@dataclass
class Made:
    """A lexicon of made-up words whose counts fall as in real text."""

    size: int
    num_specials: int = 2
    eos: int = 0
    unk: int = 1

    def __len__(self) -> int:
        return self.size

    @cached_property
    def words(self) -> list[str]:
        return [f"w{i}" for i in range(self.size)]

    @cached_property
    def counts(self) -> list[int]:
        return [100_000 // (i + 1) for i in range(self.size)]


WORDS = Made(500)
BODY = TransformerConfig(16, 3, 2, 32, dropout=0.1)
LSTM = LSTMConfig(8, 16)
AWD = AWDLSTMConfig(8, 12, 2, 16)
CUTS = (20, 60)


def config(
    input: object = Fixed(), output: object = Full(), body: object = BODY, **options: object
) -> LanguageModelConfig:
    return LanguageModelConfig(input, output, body, **options)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_each_input_becomes_its_layer_with_its_options() -> None:
    def built(input: object) -> nn.Module:
        return build_language_model(config(input, AdaptiveSoftmax(CUTS)), WORDS).input

    fixed = built(Fixed(5))
    assert isinstance(fixed, FixedInput) and fixed.table.shape == (500, 5) and fixed.projection is not None
    assert built(Fixed()).table.shape == (500, 16)
    adaptive = built(Adaptive(CUTS, dim=12, factor=3))
    assert isinstance(adaptive, AdaptiveInput) and adaptive.bands == Bands(500, CUTS, (12, 4, 1))
    assert built(Adaptive(CUTS)).bands == Bands(500, CUTS, (16, 4, 1))
    characters = built(Characters(3, ((1, 4), (2, 5)), num_highways=2, max_bytes=3))
    assert isinstance(characters, CharacterInput)
    assert [tuple(weight.shape) for weight in characters.filters] == [(3, 1, 4), (3, 2, 5)]
    assert len(characters.highways) == 2 and characters.spellings.shape == (500, 3)
    assert (characters.end_index, characters.unknown_index) == (0, 1)


def test_each_output_becomes_its_layer_with_its_options() -> None:
    def built(output: object) -> nn.Module:
        return build_language_model(config(output=output), WORDS).output

    full = built(Full(5, bias=True, label_smoothing=0.1))
    assert isinstance(full, FullOutput) and full.table.shape == (500, 5)
    assert full.bias is not None and full.label_smoothing == 0.1
    options = {"tail_dropout": 0.2, "softmax_input_dropout": 0.3, "head_projection": True}
    adaptive = built(AdaptiveSoftmax(CUTS, dim=16, factor=2, **options))
    assert isinstance(adaptive, AdaptiveOutput) and adaptive.bands == Bands(500, CUTS, (16, 8, 4))
    assert adaptive.tail_dropout == (0.2, 0.2) and adaptive.softmax_input_dropout == 0.3
    assert adaptive.head_projection is not None
    mixture = built(Mixture(3, dim=7, bias=False, latent_dropout=0.4))
    assert isinstance(mixture, MixtureOutput) and (mixture.num_experts, mixture.dim, mixture.bias) == (3, 7, None)
    assert mixture.latent_dropout.p == 0.4 and isinstance(mixture.latent_dropout, nn.Dropout)
    latent_dropout = built(Mixture(3, latent_dropout=0.4, variational=True)).latent_dropout
    assert isinstance(latent_dropout, VariationalDropout)
    assert (latent_dropout.rate, latent_dropout.dim) == (0.4, -2)
    sparse = built(Sparse(1.3, learn_alpha=True, dim=7, bias=True, label_smoothing=0.1))
    assert isinstance(sparse, SparseOutput) and sparse.dim == 7 and sparse.bias is not None
    assert sparse.label_smoothing == 0.1 and sparse.alpha.item() == pytest.approx(1.3)
    assert built(Sparse(1.7)).alpha == 1.7


@pytest.mark.parametrize("output", [Full(), Mixture(2)], ids=lambda output: type(output).__name__)
def test_each_transform_becomes_its_module_with_its_options(output: Full | Mixture) -> None:
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


@pytest.mark.parametrize("output", [Full(), Mixture(2)], ids=lambda output: type(output).__name__)
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
    output: Full | Mixture, transform: PLIFConfig | None, num_slow: int
) -> None:
    asked = replace(output, transform=transform)
    layer = build_language_model(config(output=asked), WORDS).output
    rates = output_rates(asked, layer)
    assert len(rates) == num_slow
    if num_slow:
        assert rates == dict.fromkeys(layer.transform.parameters(), transform.rate)


def test_layers_without_a_transform_have_no_rates_of_their_own() -> None:
    for output in (Sparse(), AdaptiveSoftmax(CUTS)):
        assert output_rates(output, build_language_model(config(output=output), WORDS).output) == {}


def test_tables_of_an_awd_lstm_start_small_and_its_layers_by_their_width() -> None:
    for output, tie in ((Full(8, bias=True), Tie()), (Full(bias=True), None), (Mixture(2, dim=8), Tie())):
        model = build_language_model(config(Fixed(), output, AWD, tie=tie), WORDS)
        assert (model.input.table is model.output.table) == (tie is not None)
        for table in (model.input.table, model.output.table):
            assert table.abs().max() <= 0.1 and table.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)
        assert not model.output.bias.any()
        for lstm, width in zip(model.lstms, (12, 16), strict=True):
            for parameter in lstm.parameters():
                assert 0.8 * width**-0.5 < parameter.abs().max() <= width**-0.5
    # Layers of another kind start as they always do.
    cuts = {"cutoffs": CUTS, "factor": 2}
    model = build_language_model(config(Adaptive(**cuts), AdaptiveSoftmax(**cuts), AWD), WORDS)
    assert model.input.tables[0].abs().max() > 0.2


def test_a_variational_mixture_drops_the_same_at_all_positions_of_a_row() -> None:
    output = build_language_model(config(output=Mixture(3, latent_dropout=0.5, variational=True)), WORDS).output
    hidden = torch.randn(16).expand(4, 6, 16)
    first, second = output.log_probs(hidden), output.log_probs(hidden)
    torch.testing.assert_close(first, first[:, :1].expand_as(first))
    assert not torch.equal(first, second) and not torch.equal(first[0], first[1])
    alone = build_language_model(config(output=Mixture(3, latent_dropout=0.5)), WORDS).output.log_probs(hidden)
    assert not torch.equal(alone[:, 0], alone[:, 1])


def test_each_body_becomes_its_model() -> None:
    model = build_language_model(config(), WORDS)
    assert isinstance(model, TransformerLM) and model.config == BODY and len(model.blocks) == 3
    assert not config().carries_state and not model.carries_state
    model = build_language_model(config(Fixed(), Full(8), LSTM), WORDS)
    assert isinstance(model, LSTMLM) and model.config == LSTM
    assert config(body=LSTM).carries_state and model.carries_state
    assert model.input.table.shape == model.output.table.shape == (500, 8)
    model = build_language_model(config(Fixed(), Full(8), AWD), WORDS)
    assert isinstance(model, AWDLSTM) and model.config == AWD
    assert config(body=AWD).carries_state and model.carries_state


TIES: dict[str, tuple[LanguageModelConfig, list[str]]] = {
    "tables": (
        config(Fixed(5), Full(5), tie=Tie()),
        ["table"],
    ),
    "projection": (
        config(Fixed(5), Sparse(dim=5), tie=Tie(projections=True)),
        ["table", "projection"],
    ),
    "tables of an LSTM": (
        config(Fixed(), Full(8), LSTM, tie=Tie()),
        ["table"],
    ),
    "tables of a mixture in an AWD-LSTM": (
        config(Fixed(), Mixture(2, dim=8), AWD, tie=Tie()),
        ["table"],
    ),
    "adaptive tables": (
        config(Adaptive(CUTS), AdaptiveSoftmax(CUTS), tie=Tie()),
        ["tables.0", "tables.1", "tables.2"],
    ),
    "adaptive projections": (
        config(Adaptive(CUTS), AdaptiveSoftmax(CUTS), tie=Tie(projections=True)),
        ["tables.0", "tables.1", "tables.2", "tail_projections.0", "tail_projections.1"],
    ),
    "adaptive head alone": (
        config(Adaptive(CUTS), AdaptiveSoftmax(CUTS, head_projection=True), tie=Tie(False, False, True)),
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
    model = build_language_model(config(mapping=LearnedEntmaxAttention()), WORDS)
    alphas = learned_alphas(model)
    assert list(alphas) == [f"alpha/layer_{i}/head_{j}" for i in range(3) for j in range(2)]
    assert alphas["alpha/layer_2/head_1"] == model.blocks[2].attention.mapping.alpha[1].item()
    assert all(1 < alpha < 2 for alpha in alphas.values()) and len(set(alphas.values())) == 6
    begun = build_language_model(config(mapping=LearnedEntmaxAttention(1.2)), WORDS)
    assert list(learned_alphas(begun).values()) == pytest.approx([1.2] * 6)


def test_a_fixed_mapping_learns_no_alpha() -> None:
    model = build_language_model(config(mapping=EntmaxAttention(1.7)), WORDS)
    assert [block.attention.mapping.alpha for block in model.blocks] == [1.7] * 3
    assert learned_alphas(model) == learned_alphas(build_language_model(config(body=LSTM), WORDS)) == {}
    assert build_language_model(config(), WORDS).blocks[0].attention.mapping is None


def test_bands_by_share_fit_lexicons_of_any_size() -> None:
    asked = config(Adaptive(shares=(0.12, 0.36)), AdaptiveSoftmax(shares=(0.12, 0.36)), tie=Tie())
    for size, cutoffs in ((500, (60, 180)), (33_278, (3_993, 11_980)), (5, (1, 2)), (3, (1, 2))):
        model = build_language_model(asked, Made(size))
        assert model.input.bands.cutoffs == model.output.bands.cutoffs == cutoffs


def test_cutoffs_beyond_the_lexicon_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cutoffs must rise strictly and lie from 1 to 499.* got \(20, 600\)"):
        build_language_model(config(Adaptive((20, 600))), WORDS)


TOYS = {
    "fixed": config(Fixed(64), Full(64), TransformerConfig(128, 4, 4, 256), tie=Tie()),
    "fixed, as wide as the model": config(Fixed(128), Full(128), TransformerConfig(128, 4, 4, 256), tie=Tie()),
    "four bands": config(
        Adaptive((2_000, 6_000, 9_000)), AdaptiveSoftmax((2_000, 6_000, 9_000)), TransformerConfig(128, 4, 4, 256)
    ),
    "bands of one width": config(
        Adaptive((2_000,), dim=64, factor=1),
        AdaptiveSoftmax((2_000,), dim=64, factor=1),
        TransformerConfig(128, 4, 4, 256),
        tie=Tie(True, True, True),
    ),
    "bands by share": config(Adaptive(shares=(0.1, 0.5)), AdaptiveSoftmax(shares=(0.1, 0.5)), LSTMConfig(128, 128, 2)),
    "characters": config(Characters(num_highways=2), Mixture(15, dim=64), TransformerConfig(128, 4, 4, 256)),
    "LSTM": config(Fixed(), Sparse(dim=64), LSTMConfig(64, 128, 4), tie=Tie()),
    "AWD-LSTM": config(Fixed(), Full(bias=True, transform=PLIFConfig()), AWDLSTMConfig(64, 128, 3, 64), tie=Tie()),
    "AWD-LSTM and mixture": config(
        Fixed(),
        Mixture(15, dim=64, variational=True, transform=MonotonicNetworkConfig()),
        AWDLSTMConfig(64, 128, 4, 96),
        tie=Tie(),
    ),
    "AWD-LSTM of one layer": config(Fixed(32), Full(32, transform=SigConfig()), AWDLSTMConfig(64, 64, 1, 64)),
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
        assert Full(transform=transform).toy(64).transform == Mixture(3, transform=transform).toy(64).transform == toy


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adaptive(), "cutoffs or shares must be given, and not both"),
        (lambda: AdaptiveSoftmax((3,), shares=(0.5,)), "cutoffs or shares must be given, and not both"),
        (lambda: Adaptive(shares=(0.5, 0.2)), r"shares must rise and lie between 0 and 1, got \(0.5, 0.2\)"),
        (lambda: Adaptive(shares=(0.5, 1.0)), "shares must rise and lie between 0 and 1"),
        (lambda: Tie(False), "tie must share something"),
        (lambda: EntmaxAttention(0.5), "alpha must be at least 1, got 0.5"),
        (lambda: LearnedEntmaxAttention(2.0), "initial must lie strictly between 1 and 2, got 2.0"),
        (
            lambda: config(body=LSTM, mapping=EntmaxAttention()),
            r"mapping must stay SoftmaxAttention\(\) for an LSTM, which has no attention",
        ),
        (
            lambda: config(Characters(), AdaptiveSoftmax(CUTS), tie=Tie()),
            "tie must join Adaptive with AdaptiveSoftmax, .* got Characters with AdaptiveSoftmax; leave tie out",
        ),
        (lambda: config(Fixed(), AdaptiveSoftmax(CUTS), tie=Tie()), "got Fixed with AdaptiveSoftmax"),
        (lambda: config(Fixed(), Full(), tie=Tie(head=True)), "tie.head must be False for Full, which has no head"),
        (
            lambda: config(Adaptive(CUTS), AdaptiveSoftmax((20, 70)), tie=Tie()),
            r"the same cutoffs to be tied, got \(20, 60\) and \(20, 70\)",
        ),
        (
            lambda: config(Adaptive(CUTS), AdaptiveSoftmax(CUTS, factor=2), tie=Tie()),
            "the same factor to be tied, got 4 and 2",
        ),
        (
            lambda: config(Adaptive(CUTS), AdaptiveSoftmax(CUTS, head_projection=False), tie=Tie(head=True)),
            "tie.head must be False for an output with head_projection=False",
        ),
        (
            lambda: config(Fixed(5), Full(4), tie=Tie()),
            "tie must join tables of one width, got 5 in Fixed and 4 in Full; set the output's dim to 5",
        ),
        (
            lambda: config(Fixed(), Mixture(3), AWD, tie=Tie()),
            "got 8 in Fixed and 16 in Mixture; set the output's dim to 8, or leave tie out",
        ),
        (
            lambda: config(Adaptive(CUTS, dim=8), AdaptiveSoftmax(CUTS), tie=Tie()),
            "got 8 in Adaptive and 16 in AdaptiveSoftmax",
        ),
        (
            lambda: config(Adaptive(CUTS), AdaptiveSoftmax(CUTS), tie=Tie(head=True)),
            "tie.head must be False for an output whose head is as wide as the model, 16, .* head_projection=True",
        ),
        (
            lambda: config(Fixed(5), Mixture(2, dim=5), tie=Tie(projections=True)),
            "tie.projections must be False where a layer has no projection, got True and Mixture without",
        ),
        (
            lambda: config(Fixed(), Full(), tie=Tie(projections=True)),
            "got True and Fixed and Full without",
        ),
        (
            lambda: config(Fixed(5), Full(5), AWD, tie=Tie(projections=True)),
            "where the body reads and gives vectors of different widths, got 8 and 16; share the tables alone",
        ),
        (
            lambda: config(body=AWD, mapping=EntmaxAttention()),
            r"mapping must stay SoftmaxAttention\(\) for an LSTM, which has no attention",
        ),
        (lambda: PLIFConfig(0), "pieces must be at least 1, got 0"),
        (lambda: PLIFConfig(bound=0.0), "bound must be a positive finite number, got 0.0"),
        (lambda: PLIFConfig(rate=-1.0), "rate must be a finite number of at least 0, got -1.0"),
        (lambda: SigConfig(slope=0.0), "slope must be a positive finite number, got 0.0"),
        (lambda: SigConfig(shift=float("inf")), "shift must be a finite number, got inf"),
        (lambda: MonotonicNetworkConfig(0), "hidden must be at least 1, got 0"),
        (lambda: MonotonicNetworkConfig(chunk=0), "chunk must be at least 1, got 0"),
    ],
)
def test_wrong_combinations_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_every_field_can_be_set_from_the_command_line() -> None:
    given = config(Adaptive(CUTS), AdaptiveSoftmax(CUTS), tie=Tie(projections=True), mapping=LearnedEntmaxAttention())
    words = "--body.num-layers 4 --input.cutoffs 5 7 --output.cutoffs 5 7 --tie.no-projections --mapping.initial 1.5"
    changed = tyro.cli(LanguageModelConfig, default=given, args=words.split(), config=(tyro.conf.AvoidSubcommands,))
    assert changed == config(
        Adaptive((5, 7)),
        AdaptiveSoftmax((5, 7)),
        replace(BODY, num_layers=4),
        tie=Tie(),
        mapping=LearnedEntmaxAttention(1.5),
    )


def test_fields_of_a_transform_and_an_awd_lstm_can_be_set_from_the_command_line() -> None:
    given = config(Fixed(), Full(transform=PLIFConfig()), AWDLSTMConfig(), tie=Tie())
    line = "--body.num-layers 2 --body.penalty norm --body.weight-dropout 0.1 --output.transform.rate 0.001 "
    line += "--output.transform.pieces 9 --output.bias"
    changed = tyro.cli(LanguageModelConfig, default=given, args=line.split(), config=(tyro.conf.AvoidSubcommands,))
    assert changed == config(
        Fixed(),
        Full(bias=True, transform=PLIFConfig(9, rate=0.001)),
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
from anymax.models import Adaptive, AdaptiveSoftmax, LanguageModelConfig, Tie, TransformerConfig
from anymax.models import AWDLSTMConfig, Fixed, Full, PLIFConfig
LanguageModelConfig(Adaptive((2, 5)), AdaptiveSoftmax((2, 5)), TransformerConfig(16, 1, 2, 16), Tie()).toy()
LanguageModelConfig(Fixed(), Full(transform=PLIFConfig()), AWDLSTMConfig(), Tie()).toy()
assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_lexicon_is_what_a_model_is_built_for() -> None:
    lexicon = anymax.data.Lexicon.from_words(["to", "be", "or", "not", "to", "be"])
    model = build_language_model(config(Characters(4, ((1, 4),), max_bytes=2), AdaptiveSoftmax(shares=(0.5,))), lexicon)
    assert model.output.vocabulary_size == len(lexicon) == 6
    assert (model.input.end_index, model.input.unknown_index) == (lexicon.eos, lexicon.unk)
