"""Published sizes to the last parameter where no recipe has them: layers on the meta device, bodies by formula."""

import torch
from torch import nn

from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveOutput,
    Bands,
    CharacterInput,
    FixedInput,
    MixtureOutput,
    tie_,
)
from tests.each import each

# Another dictionary of the Billion Word corpus than that of the recipes, which the published figures fit as well.
BILLION = 793_304


def transformer(model_dim: int = 1024, inner_dim: int = 4096, num_blocks: int = 16) -> int:
    """Attention of four square layers with bias, two feed-forward layers with bias, two norms; no norm at the end."""
    attention = 4 * model_dim**2 + 4 * model_dim
    feed_forward = 2 * model_dim * inner_dim + inner_dim + model_dim
    return num_blocks * (attention + feed_forward + 4 * model_dim)


def count(*layers: nn.Module) -> int:
    """Parameters of all layers, those they share once."""
    return sum(parameter.numel() for parameter in nn.ModuleList(layers).parameters())


def bands(model_dim: int = 1024) -> Bands:
    """The bands of the paper, which are printed there as sizes."""
    return Bands.from_cutoffs((60_000, 160_000), BILLION, dim=model_dim, factor=4)


def table_in(dim: int) -> int:
    """A table in, an adaptive softmax out."""
    return count(FixedInput(BILLION, 1024, dim=dim), AdaptiveOutput(bands(), 1024))


def characters_in(num_highways: int) -> int:
    # The sizes of the filters do not depend on the words.
    input = CharacterInput(["a", "b"], 1024, end_index=0, unknown_index=1, num_highways=num_highways)
    return count(input, AdaptiveOutput(bands(), 1024))


def adaptive(model_dim: int = 1024, **ties: bool) -> int:
    """Adaptive in and out."""
    cut = bands(model_dim)
    input = AdaptiveInput(cut, model_dim)
    output = AdaptiveOutput(cut, model_dim, head_projection=ties.get("head"))
    if ties:
        tie_(input, output, **ties)
    return count(input, output)


BILLION_ROWS = {
    "table 256": (lambda: table_in(256), transformer(), 532_788_736, 532.8),
    "characters": (lambda: characters_in(2), transformer(), 365_764_992, 365.8),
    "adaptive": (adaptive, transformer(), 458_388_480, 458.4),
    "adaptive, tables tied": (
        lambda: adaptive(tables=True),
        transformer(),
        330_817_024,
        330.8,
    ),
    "large": (
        lambda: adaptive(tables=True),
        transformer(1024, 6144, 20),
        465_128_960,
        465,
    ),
    "very large": (
        lambda: adaptive(1536, tables=True),
        transformer(1536, 8192, 24),
        1_026_194_688,
        1026,
    ),
}


@each("row", BILLION_ROWS)
def test_billion_word_transformers_have_their_published_size(row: str) -> None:
    build, body, expected, published = BILLION_ROWS[row]
    with torch.device("meta"):
        size = build() + body
    assert size == expected
    assert abs(size / 1e6 - published) <= (0.0501 if isinstance(published, float) else 0.5)


def test_a_mixture_has_the_parameters_of_its_formula() -> None:
    for size, model_dim, num_experts, dim in ((50, 7, 3, 4), (10, 5, 1, 5)):
        layer = MixtureOutput(size, model_dim, num_experts=num_experts, dim=dim)
        latents = num_experts * dim
        assert count(layer) == model_dim * num_experts + model_dim * latents + latents + size * dim + size
