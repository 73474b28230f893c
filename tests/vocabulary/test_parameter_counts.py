"""Published sizes of language models, to the last parameter: layers built on the meta device, bodies by formula."""

from itertools import pairwise

import torch
from torch import nn

import anymax
from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveOutput,
    Bands,
    CharacterInput,
    FixedInput,
    FullOutput,
    MixtureOutput,
    OutputLayer,
    tie_,
)
from tests.each import each

WIKITEXT = 267_744
WIKITEXT_BPE, BILLION_BPE = 33_337, 32_347
# Two dictionaries of the Billion Word corpus are in use, and the published figures fit both.
BILLION = (793_472, 793_304)


def transformer(model_dim: int = 1024, inner_dim: int = 4096, num_blocks: int = 16) -> int:
    """Attention of four square layers with bias, two feed-forward layers with bias, two norms; no norm at the end."""
    attention = 4 * model_dim**2 + 4 * model_dim
    feed_forward = 2 * model_dim * inner_dim + inner_dim + model_dim
    return num_blocks * (attention + feed_forward + 4 * model_dim)


def lstm(*sizes: int) -> int:
    """Layers from each size to the next, each with two bias vectors."""
    return sum(4 * out * (into + out + 2) for into, out in pairwise(sizes))


def count(*layers: nn.Module) -> int:
    """Parameters of all layers, those they share once."""
    return sum(parameter.numel() for parameter in nn.ModuleList(layers).parameters())


def fixed(size: int, dim: int, output_dim: int | None = None, *, tied: bool = False) -> int:
    """A table in, a softmax out."""
    input = FixedInput(size, 1024, dim=dim)
    output = FullOutput(size, 1024, dim=dim if output_dim is None else output_dim)
    if tied:
        tie_(input, output)
    return count(input, output)


def bands(size: int, model_dim: int = 1024) -> Bands:
    """The bands of the paper, which are printed there as sizes."""
    cutoffs = (20_000, 60_000) if size == WIKITEXT else (60_000, 160_000)
    return Bands.from_cutoffs(cutoffs, size, dim=model_dim, factor=4)


def table_in(size: int, dim: int) -> int:
    """A table in, an adaptive softmax out."""
    return count(FixedInput(size, 1024, dim=dim), AdaptiveOutput(bands(size), 1024))


def characters_in(size: int, num_highways: int) -> int:
    # The sizes of the filters do not depend on the words.
    input = CharacterInput(["a", "b"], 1024, end_index=0, unknown_index=1, num_highways=num_highways)
    return count(input, AdaptiveOutput(bands(size), 1024))


def adaptive(size: int, model_dim: int = 1024, **ties: bool) -> int:
    """Adaptive in and out."""
    cut = bands(size, model_dim)
    input = AdaptiveInput(cut, model_dim)
    output = AdaptiveOutput(cut, model_dim, head_projection=ties.get("head"))
    if ties:
        tie_(input, output, **ties)
    return count(input, output)


# What is built, its parameters together with the body, and the published figure in millions.
WIKITEXT_ROWS = {
    "softmax 512": (lambda: fixed(WIKITEXT, 512), 476_758_016, "476.8"),
    "softmax 512 tied": (lambda: fixed(WIKITEXT, 512, tied=True), 339_673_088, "339.7"),
    "subwords": (lambda: fixed(WIKITEXT_BPE, 1024), 269_813_760, "270"),
    "subwords tied": (lambda: fixed(WIKITEXT_BPE, 1024, tied=True), 235_676_672, "235.7"),
    "characters": (lambda: characters_in(WIKITEXT, 1), 266_343_808, "266.3"),
    "table 256": (lambda: table_in(WIKITEXT, 256), 314_689_536, "314.7"),
    "table 128": (lambda: table_in(WIKITEXT, 128), 280_287_232, "280.3"),
    "table 64": (lambda: table_in(WIKITEXT, 64), 263_086_080, "263.1"),
    "table 32": (lambda: table_in(WIKITEXT, 32), 254_485_504, "254.5"),
    "softmax 256 tied": (lambda: fixed(WIKITEXT, 256, tied=True), 270_606_336, "270.6"),
    "softmax 256": (lambda: fixed(WIKITEXT, 256), 339_148_800, "339.1"),
    "table 64, softmax 512": (lambda: fixed(WIKITEXT, 64, 512), 356_349_952, "356.3"),
    "adaptive": (lambda: adaptive(WIKITEXT), 291_276_800, "291.3"),
    "adaptive, tables tied": (lambda: adaptive(WIKITEXT, tables=True), 247_261_184, "247.3"),
    "adaptive, projections tied": (lambda: adaptive(WIKITEXT, projections=True), 246_933_504, "246.9"),
    "adaptive, head tied": (lambda: adaptive(WIKITEXT, projections=True, head=True), 246_933_504, "246.9"),
    "Billion Word subwords": (lambda: fixed(BILLION_BPE, 1024), 267_786_240, "267.8"),
    "Billion Word subwords tied": (lambda: fixed(BILLION_BPE, 1024, tied=True), 234_662_912, "234.7"),
}


@each("row", WIKITEXT_ROWS)
def test_transformers_of_sixteen_blocks_have_their_published_size(row: str) -> None:
    build, expected, published = WIKITEXT_ROWS[row]
    with torch.device("meta"):
        size = build() + transformer()
    assert size == expected
    assert abs(size / 1e6 - float(published)) <= (0.0501 if "." in published else 0.5)


def test_eight_blocks_have_the_size_that_training_printed() -> None:
    with torch.device("meta"):
        assert adaptive(WIKITEXT, projections=True) + transformer(num_blocks=8) == 146_163_712


BILLION_ROWS = {
    "table 256": (lambda size: table_in(size, 256), transformer(), (532_842_496, 532_788_736), 532.8),
    "characters": (lambda size: characters_in(size, 2), transformer(), (365_775_744, 365_764_992), 365.8),
    "adaptive": (adaptive, transformer(), (458_409_984, 458_388_480), 458.4),
    "adaptive, tables tied": (
        lambda size: adaptive(size, tables=True),
        transformer(),
        (330_827_776, 330_817_024),
        330.8,
    ),
    "large": (
        lambda size: adaptive(size, tables=True),
        transformer(1024, 6144, 20),
        (465_139_712, 465_128_960),
        465,
    ),
    "very large": (
        lambda size: adaptive(size, 1536, tables=True),
        transformer(1536, 8192, 24),
        (1_026_210_816, 1_026_194_688),
        1026,
    ),
}


@each("which", [0, 1])
@each("row", BILLION_ROWS)
def test_billion_word_transformers_have_their_published_size(row: str, which: int) -> None:
    build, body, expected, published = BILLION_ROWS[row]
    with torch.device("meta"):
        size = build(BILLION[which]) + body
    assert size == expected[which]
    assert abs(size / 1e6 - published) <= (0.0501 if isinstance(published, float) else 0.5)


def test_bands_of_one_width_have_the_published_size_to_a_tenth_of_a_million() -> None:
    """The paper does not say which projections of the 512-wide bands are shared; sharing all of them fits."""
    with torch.device("meta"):
        cut = Bands.from_cutoffs((20_000, 60_000), WIKITEXT, dim=512, factor=1)
        input, output = AdaptiveInput(cut, 1024), AdaptiveOutput(cut, 1024)
        tie_(input, output, projections=True, head=True)
        size = count(input, output) + transformer()
    assert abs(size / 1e6 - 340.2) <= 0.1


PENN, WIKITEXT_2 = 10_000, 33_278


def awd(output: OutputLayer, hidden: int, last: int) -> int:
    """An LSTM language model of three layers, its output tied to its input."""
    input = FixedInput(output.vocabulary_size, output.dim)
    tie_(input, output)
    return count(input, output) + lstm(output.dim, hidden, hidden, last)


def softmax(size: int, dim: int, hidden: int = 1150, transform: nn.Module | None = None) -> int:
    return awd(FullOutput(size, dim, bias=True, transform=transform), hidden, dim)


def mixture(size: int, num_experts: int, dim: int, hidden: int, last: int, transform: nn.Module | None = None) -> int:
    return awd(MixtureOutput(size, last, num_experts=num_experts, dim=dim, transform=transform), hidden, last)


LSTM_ROWS = {
    "Penn": (lambda: softmax(PENN, 400), 24_221_600),
    "Penn PLIF": (lambda: softmax(PENN, 400, transform=anymax.PLIF(100_000)), 24_321_600),
    "Penn 280": (lambda: softmax(PENN, 280, 960), 16_350_800),
    "Penn 340": (lambda: softmax(PENN, 340, 960), 17_560_880),
    "WikiText-2": (lambda: softmax(WIKITEXT_2, 400), 33_556_078),
    "WikiText-2 PLIF": (lambda: softmax(WIKITEXT_2, 400, transform=anymax.PLIF(100_000)), 33_656_078),
    "Penn mixture of 1": (lambda: mixture(PENN, 1, 280, 960, 620), 19_057_620),
    "Penn mixture of 3": (lambda: mixture(PENN, 3, 280, 960, 620), 19_406_620),
    "Penn mixture of 5": (lambda: mixture(PENN, 5, 280, 960, 620), 19_755_620),
    "Penn mixture of 10": (lambda: mixture(PENN, 10, 280, 960, 620), 20_628_120),
    "Penn mixture of 15": (lambda: mixture(PENN, 15, 280, 960, 620), 21_500_620),
    "Penn mixture of 20": (lambda: mixture(PENN, 20, 280, 960, 620), 22_373_120),
    "Penn mixture of 15, 280 last": (lambda: mixture(PENN, 15, 280, 960, 280), 17_535_200),
    "Penn mixture of 15, 400 wide": (lambda: mixture(PENN, 15, 400, 1150, 400), 26_633_600),
    "Penn mixture and PLIF": (lambda: mixture(PENN, 15, 400, 1150, 400, anymax.PLIF(1_000_000)), 27_633_600),
    "WikiText-2 mixture of 10": (lambda: mixture(WIKITEXT_2, 10, 300, 1150, 650), 33_929_778),
    "WikiText-2 mixture of 15": (lambda: mixture(WIKITEXT_2, 15, 300, 1150, 650), 34_909_528),
    "WikiText-2 mixture of 20": (lambda: mixture(WIKITEXT_2, 20, 300, 1150, 650), 35_889_278),
}


@each("row", LSTM_ROWS)
def test_lstm_models_have_their_published_size(row: str) -> None:
    build, expected = LSTM_ROWS[row]
    with torch.device("meta"):
        assert build() == expected


def test_a_mixture_has_the_parameters_of_its_formula() -> None:
    for size, model_dim, num_experts, dim in ((50, 7, 3, 4), (10, 5, 1, 5)):
        layer = MixtureOutput(size, model_dim, num_experts=num_experts, dim=dim)
        latents = num_experts * dim
        assert count(layer) == model_dim * num_experts + model_dim * latents + latents + size * dim + size
