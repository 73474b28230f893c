"""Published sizes of AWD-LSTMs, to the last parameter, built on the meta device."""

import pytest
import torch

from anymax.models import AWDLSTMConfig, LanguageModelConfig, Tie, build_language_model
from anymax.transforms import PLIFConfig
from anymax.vocabulary import FixedInputConfig, FullOutputConfig, MixtureOutputConfig
from tests.lexicons import Made

PENN, WIKITEXT_2 = 10_000, 33_278


def awd(
    output: FullOutputConfig | MixtureOutputConfig, input_dim: int = 400, hidden_dim: int = 1150, output_dim: int = 400
) -> LanguageModelConfig:
    return LanguageModelConfig(
        FixedInputConfig(), output, AWDLSTMConfig(input_dim, hidden_dim, 3, output_dim), tie=Tie()
    )


def softmax(dim: int = 400, hidden_dim: int = 1150, **options: object) -> LanguageModelConfig:
    return awd(FullOutputConfig(bias=True, **options), dim, hidden_dim, dim)


def mixture_of(num_experts: int, *sizes: int, **options: object) -> LanguageModelConfig:
    return awd(MixtureOutputConfig(num_experts, dim=sizes[0], **options), *sizes)


PENN_MIXTURE, WIKITEXT_2_MIXTURE, WIDE = (280, 960, 620), (300, 1150, 650), (400, 1150, 400)
PUBLISHED = {
    "softmax": (PENN, softmax(), 24_221_600),
    "softmax 280": (PENN, softmax(280, 960), 16_350_800),
    "softmax 340": (PENN, softmax(340, 960), 17_560_880),
    "PLIF": (PENN, softmax(transform=PLIFConfig(100_000)), 24_321_600),
    "WikiText-2 softmax": (WIKITEXT_2, softmax(), 33_556_078),
    "WikiText-2 PLIF": (WIKITEXT_2, softmax(transform=PLIFConfig(100_000)), 33_656_078),
    "mixture of 1": (PENN, mixture_of(1, *PENN_MIXTURE), 19_057_620),
    "mixture of 3": (PENN, mixture_of(3, *PENN_MIXTURE), 19_406_620),
    "mixture of 5": (PENN, mixture_of(5, *PENN_MIXTURE), 19_755_620),
    "mixture of 10": (PENN, mixture_of(10, *PENN_MIXTURE), 20_628_120),
    "mixture of 15": (PENN, mixture_of(15, *PENN_MIXTURE), 21_500_620),
    "mixture of 20": (PENN, mixture_of(20, *PENN_MIXTURE), 22_373_120),
    "mixture of 15, 280 last": (PENN, mixture_of(15, 280, 960, 280), 17_535_200),
    "mixture of 15, 400 wide": (PENN, mixture_of(15, *WIDE), 26_633_600),
    "mixture and PLIF": (PENN, mixture_of(15, *WIDE, transform=PLIFConfig(1_000_000)), 27_633_600),
    "WikiText-2 mixture of 10": (WIKITEXT_2, mixture_of(10, *WIKITEXT_2_MIXTURE), 33_929_778),
    "WikiText-2 mixture of 15": (WIKITEXT_2, mixture_of(15, *WIKITEXT_2_MIXTURE), 34_909_528),
    "WikiText-2 mixture of 20": (WIKITEXT_2, mixture_of(20, *WIKITEXT_2_MIXTURE), 35_889_278),
}


@pytest.mark.parametrize("row", PUBLISHED)
def test_an_awd_lstm_has_its_published_size(row: str) -> None:
    vocabulary_size, asked, expected = PUBLISHED[row]
    with torch.device("meta"):
        model = build_language_model(asked, Made(vocabulary_size))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
