"""From the config of a language model to the model, for the words of a lexicon."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import nn

from anymax.attention.multi_head import Mapping
from anymax.mappings import Entmax, LearnedEntmax
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


class Words(Protocol):
    """What a model must know of its words, sorted by falling count; a `Lexicon` is one."""

    @property
    def words(self) -> Sequence[str]: ...

    @property
    def eos(self) -> int: ...

    @property
    def unk(self) -> int: ...

    def __len__(self) -> int: ...


def build_language_model(config: LanguageModelConfig, lexicon: Words) -> TransformerLM | LSTMLM:
    """The model of a config, its parameters drawn at random, for the words of a lexicon."""
    input = _input(config.input, config.body.input_dim, lexicon)
    output = _output(config.output, config.body.output_dim, len(lexicon))
    if config.tie is not None:
        tie_(input, output, tables=config.tie.tables, projections=config.tie.projections, head=config.tie.head)
    if isinstance(config.body, LSTMConfig):
        return LSTMLM(input, output, config.body)
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
        )
    return FixedInput(len(lexicon), model_dim, dim=input.dim)


def _output(output: Output, model_dim: int, size: int) -> OutputLayer:
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
            latent_dropout=output.latent_dropout,
        )
    if isinstance(output, Full):
        return FullOutput(size, model_dim, dim=output.dim, bias=output.bias, label_smoothing=output.label_smoothing)
    return SparseOutput(
        size,
        model_dim,
        alpha=output.alpha,
        learn_alpha=output.learn_alpha,
        dim=output.dim,
        bias=output.bias,
        label_smoothing=output.label_smoothing,
    )


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
