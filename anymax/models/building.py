"""From the config of a language model to the model, for the words of a lexicon."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import nn

from anymax.attention.multi_head import Mapping
from anymax.mappings import Entmax, LearnedEntmax
from anymax.models.awd_lstm import AWDLSTM
from anymax.models.awd_lstm_config import AWDLSTMConfig
from anymax.models.language_model_config import (
    AttentionMapping,
    EntmaxAttention,
    LanguageModelConfig,
    SoftmaxAttention,
)
from anymax.models.layer_config import Adaptive, AdaptiveSoftmax, Characters, Full, Input, Mixture, Output
from anymax.models.lstm_config import LSTMConfig
from anymax.models.lstm_lm import LSTMLM
from anymax.models.transformer_lm import TransformerLM
from anymax.regularizers import VariationalDropout
from anymax.transforms.config import SigConfig
from anymax.vocabulary import (
    AdaptiveInput,
    AdaptiveOutput,
    Bands,
    CharacterInput,
    FixedInput,
    FullOutput,
    MixtureOutput,
    OutputLayer,
    SparseOutput,
    tie_,
)
from anymax.vocabulary.table_output import TableOutput

# The published start of the tables of an AWD-LSTM.
TABLE_BOUND = 0.1


class Words(Protocol):
    """What a model must know of its words, sorted by falling count; a `Lexicon` is one."""

    @property
    def words(self) -> Sequence[str]: ...

    @property
    def eos(self) -> int: ...

    @property
    def unk(self) -> int: ...

    def __len__(self) -> int: ...


def build_language_model(config: LanguageModelConfig, lexicon: Words) -> TransformerLM | LSTMLM | AWDLSTM:
    """The model of a config, its parameters drawn at random, for the words of a lexicon."""
    input = _input(config.input, config.body.input_dim, lexicon)
    output = build_output(config.output, config.body.output_dim, len(lexicon))
    if config.tie is not None:
        tie_(input, output, tables=config.tie.tables, projections=config.tie.projections, head=config.tie.head)
    if isinstance(config.body, LSTMConfig):
        return LSTMLM(input, output, config.body)
    if isinstance(config.body, AWDLSTMConfig):
        _draw_as_published(input, output)
        return AWDLSTM(input, output, config.body)
    return TransformerLM(input, output, config.body, mapping=_mapping(config.mapping, config.body.num_heads))


def _input(input: Input, model_dim: int, lexicon: Words) -> nn.Module:
    if isinstance(input, Adaptive):
        return AdaptiveInput(_bands(input, model_dim, len(lexicon)), model_dim)
    if isinstance(input, Characters):
        return CharacterInput(
            lexicon.words,
            model_dim,
            end_index=lexicon.eos,
            unknown_index=lexicon.unk,
            char_dim=input.char_dim,
            filters=input.filters,
            num_highways=input.num_highways,
            max_bytes=input.max_bytes,
            windows=input.windows,
        )
    return FixedInput(len(lexicon), model_dim, dim=input.dim)


def build_output(output: Output, model_dim: int, size: int) -> OutputLayer:
    """The output layer of a config, for vectors of `model_dim` numbers and so many words."""
    if isinstance(output, AdaptiveSoftmax):
        return AdaptiveOutput(
            _bands(output, model_dim, size),
            model_dim,
            tail_dropout=output.tail_dropout,
            softmax_input_dropout=output.softmax_input_dropout,
            head_projection=output.head_projection,
        )
    if isinstance(output, Mixture):
        return MixtureOutput(
            size,
            model_dim,
            num_experts=output.num_experts,
            dim=output.dim,
            bias=output.bias,
            latent_dropout=_latent_dropout(output),
            transform=None if output.transform is None else output.transform.build(),
        )
    if isinstance(output, Full):
        return FullOutput(
            size,
            model_dim,
            dim=output.dim,
            bias=output.bias,
            transform=None if output.transform is None else output.transform.build(),
            label_smoothing=output.label_smoothing,
        )
    return SparseOutput(
        size,
        model_dim,
        alpha=output.alpha,
        learn_alpha=output.learn_alpha,
        dim=output.dim,
        bias=output.bias,
        label_smoothing=output.label_smoothing,
    )


def output_rates(output: Output, layer: OutputLayer) -> dict[nn.Parameter, float]:
    """Parameters of an output layer that learn at another rate than the optimizer's, as a share of it.

    Args:
        output: the config that the layer was built from.
    """
    if not isinstance(output, Full | Mixture) or not isinstance(layer, FullOutput | MixtureOutput):
        return {}
    transform = output.transform
    if transform is None or layer.transform is None or isinstance(transform, SigConfig) or transform.rate == 1:
        return {}
    return dict.fromkeys(layer.transform.parameters(), transform.rate)


def _latent_dropout(output: Mixture) -> float | nn.Module:
    return VariationalDropout(output.latent_dropout, dim=-2) if output.variational else output.latent_dropout


def _draw_as_published(input: nn.Module, output: OutputLayer) -> None:
    """The tables of an AWD-LSTM start smaller than those of other models; layers without one start as they do."""
    if isinstance(input, FixedInput):
        nn.init.uniform_(input.table, -TABLE_BOUND, TABLE_BOUND)
    if isinstance(output, TableOutput) and not (isinstance(input, FixedInput) and output.table is input.table):
        nn.init.uniform_(output.table, -TABLE_BOUND, TABLE_BOUND)


def _mapping(mapping: AttentionMapping, num_heads: int) -> Callable[[], Mapping] | None:
    if isinstance(mapping, SoftmaxAttention):
        return None
    if isinstance(mapping, EntmaxAttention):
        alpha = mapping.alpha
        return lambda: Entmax(alpha)
    initial = mapping.initial
    return lambda: LearnedEntmax(shape=(num_heads, 1, 1), initial=initial)


def _bands(layer: Adaptive | AdaptiveSoftmax, model_dim: int, size: int) -> Bands:
    # A share of a few words may be none of them, and every band has one at least.
    cutoffs = layer.cutoffs or tuple(max(i, round(share * size)) for i, share in enumerate(layer.shares, start=1))
    dim = model_dim if layer.dim is None else layer.dim
    return Bands.from_cutoffs(cutoffs, size, dim=dim, factor=layer.factor)
