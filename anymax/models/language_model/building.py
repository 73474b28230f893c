"""From the config of a language model to the model, for the words of a lexicon."""

from functools import partial
from typing import assert_never

from torch import nn

from anymax.models.language_model.config import LanguageModelConfig
from anymax.models.lstm.awd_lstm import AWDLSTM
from anymax.models.lstm.config import AWDLSTMConfig, LSTMConfig
from anymax.models.lstm.model import LSTMLM
from anymax.models.transformer.config import TransformerConfig
from anymax.models.transformer.model import TransformerLM
from anymax.transforms.config import MonotonicNetworkConfig, PLIFConfig, SigConfig
from anymax.vocabulary import FixedInput, FullOutput, MixtureOutput, OutputLayer, tie_
from anymax.vocabulary.config import (
    AdaptiveOutputConfig,
    FullOutputConfig,
    MixtureOutputConfig,
    OutputConfig,
    SparseOutputConfig,
    Words,
)
from anymax.vocabulary.output import TableOutput

# The published start of the tables of an AWD-LSTM.
TABLE_BOUND = 0.1


def build_language_model(config: LanguageModelConfig, lexicon: Words) -> TransformerLM | LSTMLM | AWDLSTM:
    """The model of a config, its parameters drawn at random, for the words of a lexicon."""
    input = config.input.build(lexicon, config.body.input_dim)
    output = config.output.build(len(lexicon), config.body.output_dim)
    if config.tie is not None:
        tie_(input, output, tables=config.tie.tables, projections=config.tie.projections, head=config.tie.head)
    match config.body:
        case TransformerConfig() as body:
            return TransformerLM(input, output, body, mapping=partial(config.mapping.build, body.num_heads))
        case LSTMConfig() as body:
            return LSTMLM(input, output, body)
        case AWDLSTMConfig() as body:
            _draw_as_published(input, output)
            return AWDLSTM(input, output, body)
        case body:
            assert_never(body)


def output_rates(output: OutputConfig, layer: OutputLayer) -> dict[nn.Parameter, float]:
    """Parameters of an output layer that learn at another rate than the optimizer's, as a share of it.

    Args:
        output: the config that the layer was built from.
    """
    match output:
        case FullOutputConfig(transform=transform) | MixtureOutputConfig(transform=transform):
            assert isinstance(layer, FullOutput | MixtureOutput)
        case AdaptiveOutputConfig() | SparseOutputConfig():
            return {}
        case _:
            assert_never(output)
    match transform:
        case None | SigConfig():
            return {}
        case PLIFConfig(rate=rate) | MonotonicNetworkConfig(rate=rate):
            assert layer.transform is not None
            return {} if rate == 1 else dict.fromkeys(layer.transform.parameters(), rate)
        case _:
            assert_never(transform)


def _draw_as_published(input: nn.Module, output: OutputLayer) -> None:
    """The tables of an AWD-LSTM start smaller than those of other models; layers without one start as they do."""
    if isinstance(input, FixedInput):
        nn.init.uniform_(input.table, -TABLE_BOUND, TABLE_BOUND)
    if isinstance(output, TableOutput) and not (isinstance(input, FixedInput) and output.table is input.table):
        nn.init.uniform_(output.table, -TABLE_BOUND, TABLE_BOUND)
