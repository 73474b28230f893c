"""The same language models from torch's own modules, as one would write them without anymax, to be measured against.

Shapes: B batch, N positions, D the model's dimension.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from anymax.attention import MultiHeadAttention
from anymax.bench.training.twin_layers import BandedInput, BandedOutput, SoftmaxOutput, TorchAdaptiveOutput
from anymax.models import LanguageModel, TransformerBlock, TransformerConfig, TransformerLM
from anymax.vocabulary import AdaptiveInput, AdaptiveOutput, FixedInput, FullOutput, OutputLayer

MAX_LENGTH = 4096


class TwinLM(LanguageModel):
    """Words in, the loss of the words that follow out, by `nn.TransformerEncoderLayer` with a causal mask.

    Args:
        input: from ids to vectors of model_dim.
        output: from vectors and targets to a loss.
        config: with sinusoidal positions, LayerNorm and ReLU or GELU.
    """

    carries_state = False
    output: nn.Module  # type: ignore[assignment]
    positions: Tensor

    def __init__(self, input: nn.Module, output: nn.Module, config: TransformerConfig) -> None:
        super().__init__()
        self.input = input
        self.scale = math.sqrt(config.model_dim)
        self.register_buffer("positions", positions(MAX_LENGTH, config.model_dim), persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(encoder_layer(config) for _ in range(config.num_layers))
        self.final_norm = norm(config) if config.final_norm else nn.Identity()
        self.output = output

    def hidden(self, ids: Tensor, cache: None = None) -> Tensor:
        """The vectors that the output reads, (batch, positions, model_dim).

        Args:
            ids: (batch, positions), of at most MAX_LENGTH positions.
            cache: must be None.
        """
        length = ids.shape[1]
        if cache is not None:
            self.new_cache(length)
        if length > MAX_LENGTH:
            raise ValueError(f"ids must have at most {MAX_LENGTH} positions, got {length}; cut them into blocks")
        hidden_BND = self.dropout(self.scale * self.input(ids) + self.positions[:length])
        mask_NN = nn.Transformer.generate_square_subsequent_mask(length, ids.device, hidden_BND.dtype)
        for block in self.blocks:
            hidden_BND = block(hidden_BND, src_mask=mask_NN, is_causal=True)
        return self.final_norm(hidden_BND)

    def new_cache(self, max_length: int) -> None:
        raise ValueError(
            "cache must be None for a TwinLM, as torch's layers keep no keys and values; use TransformerLM"
        )

    def layers(self) -> list[nn.Module]:
        return list(self.blocks)


def twin_of(model: TransformerLM, *, chunk: int | None = None) -> TwinLM:
    """A model of torch's modules with a copy of the weights of `model`, which computes the same.

    Args:
        model: with a FixedInput and a FullOutput, or with an AdaptiveInput and an AdaptiveOutput. Where these are tied,
            so are the twin's; where not, the twin's output is `nn.AdaptiveLogSoftmaxWithLoss`, which cannot be tied.
        chunk: how many tokens have their scores at once, by `F.linear_cross_entropy`; by default all, by
            `F.cross_entropy`. Torch's adaptive softmax has no such choice.
    """
    check_config(model.config)
    input = _input(model)
    twin = TwinLM(input, _output(model, input, chunk), model.config).to(next(model.parameters()))
    twin.load_state_dict({name: weight.detach() for name, weight in _weights(model, twin)})
    return twin.train(model.training)


def encoder_layer(config: TransformerConfig) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        config.model_dim,
        config.num_heads,
        config.ffn_dim,
        config.dropout,
        config.activation,
        layer_norm_eps=norm(config).eps,
        batch_first=True,
        norm_first=config.norm_first,
    )
    # Torch's layer is given one rate for all places.
    layer.self_attn.dropout = config.attention_dropout
    layer.dropout.p = config.activation_dropout
    return layer


def norm(config: TransformerConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.model_dim, 1e-5 if config.norm_eps is None else config.norm_eps)


def positions(length: int, dim: int) -> Tensor:
    """Sines, then cosines, of frequencies that fall from 1 to 1/10,000."""
    frequencies = torch.exp(torch.linspace(0, -math.log(10_000), dim // 2))
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)


def check_config(config: TransformerConfig) -> None:
    """That torch's layers can compute what such blocks do."""
    chosen = (config.positions, config.norm, config.activation)
    if chosen not in (("sinusoidal", "layer", "relu"), ("sinusoidal", "layer", "gelu")):
        raise ValueError(
            f"model must have sinusoidal positions, norm 'layer' and ReLU or GELU to have a twin, got {chosen}"
        )


def attention_weights(attention: MultiHeadAttention) -> Iterator[tuple[str, Tensor]]:
    """Those of a layer that attends by softmax, by the names they have in `nn.MultiheadAttention`."""
    if attention.mapping is not None:
        raise ValueError("model must attend by softmax to have a twin, got another mapping; leave it out")
    of_input = (attention.query, attention.key, attention.value)
    yield "in_proj_weight", torch.cat([layer.weight for layer in of_input])
    yield "in_proj_bias", torch.cat([layer.bias for layer in of_input])
    yield from named("out_proj.", attention.output.state_dict().items())


def _input(model: TransformerLM) -> nn.Module:
    ours, model_dim = model.input, model.config.model_dim
    if isinstance(ours, AdaptiveInput) and ours.padding_index is None:
        return BandedInput(ours.bands, model_dim)
    if isinstance(ours, FixedInput) and ours.padding_index is None:
        num_words, dim = ours.table.shape
        projection = [] if ours.projection is None else [nn.Linear(dim, model_dim, bias=False)]
        return nn.Sequential(nn.Embedding(num_words, dim), *projection)
    raise ValueError(f"model must have a FixedInput or AdaptiveInput without padding to have a twin, got {ours}")


def _output(model: TransformerLM, input: nn.Module, chunk: int | None) -> nn.Module:
    """The twin's output layer, with the parameters of its input where ours are tied."""
    ours = model.output
    if isinstance(ours, FullOutput) and isinstance(model.input, FixedInput) and isinstance(input, nn.Sequential):
        return _softmax_output(ours, model.input, input, chunk)
    if isinstance(ours, AdaptiveOutput) and isinstance(model.input, AdaptiveInput) and isinstance(input, BandedInput):
        return _adaptive_output(ours, model.input, input, chunk)
    raise ValueError(
        "model must have a FixedInput and a FullOutput, or an AdaptiveInput and an AdaptiveOutput, to have a twin, got "
        f"{type(model.input).__name__} and {type(ours).__name__}"
    )


def _softmax_output(ours: FullOutput, of_input: FixedInput, input: nn.Sequential, chunk: int | None) -> SoftmaxOutput:
    is_plain = ours.bias is None and ours.transform is None and ours.label_smoothing == 0
    if not is_plain or (of_input.projection is not None and of_input.projection is ours.projection):
        raise ValueError(
            "output must have no bias, transform, label smoothing or tied projection to have a twin, got one of them"
        )
    words = nn.Linear(ours.dim, ours.vocabulary_size, bias=False)
    if of_input.table is ours.table:
        words.weight = _weight_of(input[0])
    projection = None if ours.projection is None else nn.Linear(ours.model_dim, ours.dim, bias=False)
    return SoftmaxOutput(words, projection, chunk=chunk)


def _adaptive_output(
    ours: AdaptiveOutput, of_input: AdaptiveInput, input: BandedInput, chunk: int | None
) -> BandedOutput | TorchAdaptiveOutput:
    if ours.head_projection is not None or ours.clusters is None or ours.softmax_input_dropout:
        raise ValueError(
            "output must have tails, a head as wide as the model and no softmax_input_dropout to have a twin, "
            f"got {ours}"
        )
    if of_input.tables[0] is not ours.tables[0]:
        if any(ours.tail_dropout):
            raise ValueError(
                f"tail_dropout must be 0 for torch's adaptive softmax, got {ours.tail_dropout}; tie tables"
            )
        return TorchAdaptiveOutput(ours.bands, ours.model_dim)
    projections = [_weight_of(projection) for projection in list(input.projections)[1:]]
    if of_input.projections[1] is not ours.tail_projections[0]:
        projections = [nn.Parameter(torch.empty_like(projection)) for projection in projections]
    tables = [_weight_of(embedding) for embedding in input.embeddings]
    clusters = nn.Parameter(torch.empty_like(ours.clusters))
    return BandedOutput(tables, projections, clusters, tail_dropout=ours.tail_dropout, chunk=chunk)


def _weight_of(layer: nn.Module) -> nn.Parameter:
    assert isinstance(layer.weight, nn.Parameter)
    return layer.weight


def _weights(model: TransformerLM, twin: TwinLM) -> Iterator[tuple[str, Tensor]]:
    """Our weights by the names they have in the twin; one that is tied comes under each of them."""
    yield from named("input.", _input_weights(model.input))
    for i, block in enumerate(model.blocks):
        assert isinstance(block, TransformerBlock)
        yield from named(f"blocks.{i}.", _block_weights(block))
    if model.final_norm is not None:
        yield from named("final_norm.", model.final_norm.state_dict().items())
    yield from named("output.", _output_weights(model.output, twin.output))


def named(prefix: str, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    return ((prefix + name, weight) for name, weight in weights)


def _input_weights(ours: nn.Module) -> Iterator[tuple[str, Tensor]]:
    if isinstance(ours, AdaptiveInput):
        for i, (table, projection) in enumerate(zip(ours.tables, ours.projections, strict=True)):
            yield f"embeddings.{i}.weight", table
            yield f"projections.{i}.weight", projection
    elif isinstance(ours, FixedInput):
        yield "0.weight", ours.table
        if ours.projection is not None:
            yield "1.weight", ours.projection


def _block_weights(block: TransformerBlock) -> Iterator[tuple[str, Tensor]]:
    yield from named("self_attn.", attention_weights(block.attention))
    same = {
        "norm1": block.attention_norm,
        "norm2": block.feed_forward_norm,
        "linear1": block.feed_forward.inner,
        "linear2": block.feed_forward.outer,
    }
    for name, layer in same.items():
        yield from named(f"{name}.", layer.state_dict().items())


def _output_weights(ours: OutputLayer, twin: nn.Module) -> Iterator[tuple[str, Tensor]]:
    if isinstance(ours, FullOutput):
        yield "words.weight", ours.table
        if ours.projection is not None:
            yield "projection.weight", ours.projection.T
        return
    assert isinstance(ours, AdaptiveOutput) and ours.clusters is not None
    head, *tails = ours.tables
    if isinstance(twin, TorchAdaptiveOutput):
        yield "softmax.head.weight", torch.cat([head, ours.clusters])
        for i, (table, projection) in enumerate(zip(tails, ours.tail_projections, strict=True)):
            yield f"softmax.tail.{i}.0.weight", projection.T
            yield f"softmax.tail.{i}.1.weight", table
        return
    yield "clusters", ours.clusters
    yield from named("tables.", ((str(i), table) for i, table in enumerate(ours.tables)))
    yield from named("projections.", ((str(i), projection) for i, projection in enumerate(ours.tail_projections)))
