"""The mixture of softmaxes of Yang et al. 2018 on the AWD-LSTM, with the settings that were published with its code."""

from anymax.models import AWDLSTMConfig
from anymax.recipes.merity import awd_lstm
from anymax.training.config import RunConfig
from anymax.transforms import TransformConfig
from anymax.vocabulary import MixtureOutputConfig

TAKES = "about 22M and 35M parameters; for a GPU"


def mixture(num_experts: int, dim: int, transform: TransformConfig | None = None) -> MixtureOutputConfig:
    """Experts as wide as the table of words, the same numbers of which are dropped at all positions of a row."""
    return MixtureOutputConfig(num_experts, dim=dim, latent_dropout=0.29, variational=True, transform=transform)


def ptb() -> RunConfig:
    """A mixture of 15 softmaxes on the Penn Treebank: 21.5M parameters, 58.08 valid and 55.97 test published."""
    body = AWDLSTMConfig(280, 960, output_dim=620, input_dropout=0.4, layer_dropout=0.225)
    return awd_lstm("ptb", body, mixture(15, 280), batch_size=12, epochs=1000, lr=20.0, longest=110)


def wikitext2() -> RunConfig:
    """A mixture of 15 softmaxes on WikiText-2: 34.9M parameters, 66.01 valid and 63.33 test published."""
    body = AWDLSTMConfig(300, 1150, output_dim=650, input_dropout=0.55, layer_dropout=0.2)
    return awd_lstm("wikitext-2", body, mixture(15, 300), batch_size=15, epochs=1000, lr=15.0, longest=90)
