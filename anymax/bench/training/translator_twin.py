"""The same translators from torch's own modules, as one would write them without anymax, to be measured against.

Shapes: B batch, S positions of the source, T of the target, D the model's dimension.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from anymax.bench.training.twin import attention_weights, check_config, encoder_layer, named, norm, positions
from anymax.bench.training.twin_layers import SoftmaxOutput
from anymax.models import TransformerBlock, TransformerConfig
from anymax.models.translation.model import Translator
from anymax.vocabulary import FixedInput, FullOutput

MAX_LENGTH = 512


class TwinTranslator(nn.Module):
    """A sentence in, the loss of its translation out, by `nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer`.

    One table serves both inputs and the output, whose scores are all there at once: torch has no loss in chunks with
    label smoothing.

    Args:
        config: with sinusoidal positions, LayerNorm and ReLU or GELU.
    """

    positions: Tensor

    def __init__(
        self,
        num_words: int,
        config: TransformerConfig,
        *,
        decoder_layers: int,
        label_smoothing: float,
    ) -> None:
        super().__init__()
        words = nn.Linear(config.model_dim, num_words, bias=False)
        self.input = nn.Embedding(num_words, config.model_dim)
        self.input.weight = words.weight
        self.output = SoftmaxOutput(words, None, chunk=None, label_smoothing=label_smoothing)
        self.scale = math.sqrt(config.model_dim)
        self.register_buffer("positions", positions(MAX_LENGTH, config.model_dim), persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(encoder_layer(config) for _ in range(config.num_layers))
        self.encoder_norm = norm(config) if config.final_norm else nn.Identity()
        self.decoder = nn.ModuleList(_decoder_layer(config) for _ in range(decoder_layers))
        self.decoder_norm = norm(config) if config.final_norm else nn.Identity()

    def forward(
        self, source: Tensor, source_mask: Tensor, ids: Tensor, target: Tensor, reduction: str = "mean"
    ) -> Tensor:
        """Arguments as a `Translator` takes them."""
        is_padding = ~source_mask
        memory_BSD = self._embed(source)
        for layer in self.encoder:
            memory_BSD = layer(memory_BSD, src_key_padding_mask=is_padding)
        memory_BSD = self.encoder_norm(memory_BSD)
        hidden_BTD = self._embed(ids)
        causal_TT = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device, hidden_BTD.dtype)
        # Masks of one call must have one type.
        added_BS = torch.zeros_like(is_padding, dtype=hidden_BTD.dtype).masked_fill_(is_padding, -math.inf)
        for layer in self.decoder:
            hidden_BTD = layer(
                hidden_BTD, memory_BSD, tgt_mask=causal_TT, memory_key_padding_mask=added_BS, tgt_is_causal=True
            )
        loss: Tensor = self.output(self.decoder_norm(hidden_BTD), target, reduction)
        return loss

    def _embed(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.dropout(self.scale * self.input(ids) + self.positions[: ids.shape[1]])
        return vectors


def twin_of_translator(model: Translator) -> TwinTranslator:
    """A model of torch's modules with a copy of the weights of `model`, which computes the same.

    Args:
        model: its heads by softmax, all its words in one table.
    """
    check_config(model.config)
    input, output = model.target_input, model.output
    if not (
        isinstance(input, FixedInput)
        and isinstance(output, FullOutput)
        and model.source_input is input
        and output.table is input.table
        and input.projection is None
        and input.padding_index is None
        and output.bias is None
        and output.transform is None
    ):
        raise ValueError(
            "model must have one table for both inputs and the output, without bias, projection or transform, to have "
            f"a twin, got {model.source_input}, {input} and {output}"
        )
    twin = TwinTranslator(
        output.vocabulary_size,
        model.config,
        decoder_layers=len(model.decoder.blocks),
        label_smoothing=output.label_smoothing,
    ).to(input.table)
    twin.load_state_dict({name: weight.detach() for name, weight in _weights(model, input)})
    return twin.train(model.training)


def _decoder_layer(config: TransformerConfig) -> nn.TransformerDecoderLayer:
    layer = nn.TransformerDecoderLayer(
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
    layer.self_attn.dropout = layer.multihead_attn.dropout = config.attention_dropout
    layer.dropout.p = config.activation_dropout
    return layer


def _weights(model: Translator, input: FixedInput) -> Iterator[tuple[str, Tensor]]:
    """Our weights by the names they have in the twin."""
    yield "input.weight", input.table
    yield "output.words.weight", input.table
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack.final_norm is not None:
            yield from named(f"{name}_norm.", stack.final_norm.state_dict().items())
        for i, block in enumerate(stack.blocks):
            assert isinstance(block, TransformerBlock)
            yield from named(f"{name}.{i}.", _block_weights(block))


def _block_weights(block: TransformerBlock) -> Iterator[tuple[str, Tensor]]:
    norms: list[nn.Module] = [block.attention_norm]
    yield from named("self_attn.", attention_weights(block.attention))
    if block.cross_attention is not None and block.cross_attention_norm is not None:
        norms.append(block.cross_attention_norm)
        yield from named("multihead_attn.", attention_weights(block.cross_attention))
    norms.append(block.feed_forward_norm)
    layers = {f"norm{i}": layer for i, layer in enumerate(norms, 1)}
    layers |= {"linear1": block.feed_forward.inner, "linear2": block.feed_forward.outer}
    for name, layer in layers.items():
        yield from named(f"{name}.", layer.state_dict().items())
