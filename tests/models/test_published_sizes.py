"""Published sizes of AWD-LSTMs that no recipe has, to the last parameter, built on the meta device."""

import torch

from anymax.models import AWDLSTMConfig, LanguageModelConfig, Tie, build_language_model
from anymax.vocabulary import FixedInputConfig, FullOutputConfig, MixtureOutputConfig
from tests.each import each
from tests.lexicons import Made

PENN, WIKITEXT_2 = 10_000, 33_278


def awd(
    output: FullOutputConfig | MixtureOutputConfig, input_dim: int, hidden_dim: int, output_dim: int
) -> LanguageModelConfig:
    return LanguageModelConfig(
        FixedInputConfig(), output, AWDLSTMConfig(input_dim, hidden_dim, 3, output_dim), tie=Tie()
    )


def softmax(dim: int, hidden_dim: int) -> LanguageModelConfig:
    return awd(FullOutputConfig(bias=True), dim, hidden_dim, dim)


def mixture_of(num_experts: int, *sizes: int) -> LanguageModelConfig:
    return awd(MixtureOutputConfig(num_experts, dim=sizes[0]), *sizes)


PENN_MIXTURE, WIKITEXT_2_MIXTURE = (280, 960, 620), (300, 1150, 650)
PUBLISHED = {
    "softmax 280": (PENN, softmax(280, 960), 16_350_800),
    "softmax 340": (PENN, softmax(340, 960), 17_560_880),
    "mixture of 1": (PENN, mixture_of(1, *PENN_MIXTURE), 19_057_620),
    "mixture of 3": (PENN, mixture_of(3, *PENN_MIXTURE), 19_406_620),
    "mixture of 5": (PENN, mixture_of(5, *PENN_MIXTURE), 19_755_620),
    "mixture of 10": (PENN, mixture_of(10, *PENN_MIXTURE), 20_628_120),
    "mixture of 20": (PENN, mixture_of(20, *PENN_MIXTURE), 22_373_120),
    "mixture of 15, 280 last": (PENN, mixture_of(15, 280, 960, 280), 17_535_200),
    "WikiText-2 mixture of 10": (WIKITEXT_2, mixture_of(10, *WIKITEXT_2_MIXTURE), 33_929_778),
    "WikiText-2 mixture of 20": (WIKITEXT_2, mixture_of(20, *WIKITEXT_2_MIXTURE), 35_889_278),
}


@each("row", PUBLISHED)
def test_an_awd_lstm_has_its_published_size(row: str) -> None:
    vocabulary_size, asked, expected = PUBLISHED[row]
    with torch.device("meta"):
        model = build_language_model(asked, Made(vocabulary_size))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
