"""Translator: an encoder and a decoder with any input layers, output layer and mapping of each attention.

Shapes: B batch, S positions of the source, T of the target, D the model's dimension.
"""

from dataclasses import replace

from torch import Tensor, nn

from anymax.checks import check_counts, given
from anymax.mappings.arguments import check_boolean
from anymax.models.encoder_decoder import EncoderDecoder
from anymax.models.language_model.model import check_output
from anymax.models.transformer.block import MakeMapping, check_makers
from anymax.models.transformer.config import TransformerConfig
from anymax.models.transformer.decoder import Decoder
from anymax.models.transformer.embedding import embed
from anymax.models.transformer.encoder import Encoder
from anymax.vocabulary import OutputLayer


class Translator(EncoderDecoder):
    """A sentence in, the loss of the words of its translation out.

    The encoder reads the source at once; the decoder reads the words of the target so far and attends to the encoder's
    output. Vectors of both inputs are scaled by the root of their dimension and get their positions.

    Args:
        source_input: a layer from ids of the source to vectors of model_dim, as in `anymax.vocabulary`.
        target_input: the same for the target; it may be the same layer.
        output: a layer from vectors of model_dim to a loss.
        config: sizes, dropout rates and choices of both stacks.
        decoder_layers: blocks of the decoder; by default the config's num_layers.
        encoder_mapping: called once for every block of the encoder, makes the mapping of its attention:
            `lambda: anymax.LearnedEntmax(shape=(num_heads, 1, 1))` learns an alpha for every head of every block. By
            default, or where it gives None, softmax.
        decoder_mapping: the same for the decoder's attention to its own words.
        cross_mapping: the same for the decoder's attention to the encoder's output.
        max_positions: the most positions of a sentence, source or target; by default there is no limit.

    Vaswani et al. 2017; with learned alphas: Correia et al. 2019.

    Example:
        >>> from anymax.models import TransformerConfig, Translator
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> config = TransformerConfig(model_dim=16, num_layers=2, num_heads=4, ffn_dim=32)
        >>> model = Translator(FixedInput(30, 16), FixedInput(20, 16), FullOutput(20, 16), config)
        >>> source, target = torch.randint(30, (2, 7)), torch.randint(20, (2, 6))
        >>> model(source, None, target[:, :-1], target[:, 1:], "none").shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        source_input: nn.Module,
        target_input: nn.Module,
        output: OutputLayer,
        config: TransformerConfig,
        *,
        decoder_layers: int | None = None,
        encoder_mapping: MakeMapping | None = None,
        decoder_mapping: MakeMapping | None = None,
        cross_mapping: MakeMapping | None = None,
        max_positions: int | None = None,
    ) -> None:
        super().__init__()
        check_output(output, "model_dim", config.model_dim)
        check_makers(encoder_mapping=encoder_mapping, decoder_mapping=decoder_mapping, cross_mapping=cross_mapping)
        check_counts(**given(max_positions=max_positions))
        self.config = config
        self.max_positions = max_positions
        self.source_input = source_input
        self.target_input = target_input
        of_decoder = config if decoder_layers is None else replace(config, num_layers=decoder_layers)
        self.encoder = Encoder(config, mapping=encoder_mapping)
        self.decoder = Decoder(of_decoder, mapping=decoder_mapping, cross_mapping=cross_mapping)
        self.output = output

    def forward(
        self, source: Tensor, source_mask: Tensor | None, ids: Tensor, target: Tensor, reduction: str = "mean"
    ) -> Tensor:
        """The loss of predicting `target`, the words that follow `ids`, both (batch, target positions).

        Args:
            source: (batch, source positions).
            source_mask: (batch, source positions), true where a word stands: false for padding. None for everywhere.
            reduction: "mean", "sum" or "none", as the output layer has them.
        """
        return self.output(self.hidden(ids, self.encode(source, source_mask), source_mask), target, reduction)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The encoder's output, (batch, source positions, model_dim); arguments as in `forward`.

        What it has at the positions of padding means nothing, and the mask keeps it from the decoder.
        """
        self._check_sentences("source", source)
        if source_mask is not None:
            check_boolean(source_mask, "a word of the source stands")
            if source_mask.shape != source.shape:
                raise ValueError(
                    f"source_mask must have the shape of source, {tuple(source.shape)}, got {tuple(source_mask.shape)}"
                )
        vectors_BSD = embed(self.source_input, source, self.config, dtype=self.encoder.dtype, training=self.training)
        return self.encoder(vectors_BSD, source_mask)

    def hidden(self, ids: Tensor, memory: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The vectors that the output layer reads, (batch, target positions, model_dim).

        Args:
            ids: (batch, target positions), the words before those that are predicted.
            memory: what `encode` gave.
            source_mask: as in `forward`.
        """
        self._check_sentences("ids", ids)
        return self.decoder(self.embed_target(ids), memory, source_mask)

    def first_words(self, inputs: tuple[Tensor, Tensor | None], eos: int) -> Tensor:
        """<eos> for each sentence, (batch,), which the first call of `next` reads."""
        return inputs[0].new_full(inputs[0].shape[:1], eos)

    def remember(self, inputs: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """The encoder's output and its mask, for decoding.

        Args:
            inputs: source and source_mask, as in `forward`.
        """
        return self.encode(*inputs), inputs[1]

    def in_order(self) -> list[nn.Module]:
        """The modules that are worth sharding one by one, in the order they run."""
        encoder, decoder = list(self.encoder.blocks), list(self.decoder.blocks)
        return [self.source_input, *encoder, self.target_input, *decoder, self.output]

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        """Methods besides forward that read parameters, of this and of the modules within, as FSDP2 must know them."""
        own = [(self, name) for name in ("encode", "hidden", "start", "next")]
        of_blocks = [(block, "precompute") for block in self.decoder.blocks]
        return [*own, *of_blocks, *((self.output, name) for name in self.output.forward_methods)]

    def attention_layers(self) -> dict[str, list[nn.Module]]:
        """Layers in which heads attend, by the name that stands before their number in logs."""
        return {
            "encoder/layer": list(self.encoder.attentions()),
            "decoder/layer": list(self.decoder.attentions()),
            "cross/layer": list(self.decoder.cross_attentions()),
        }

    def extra_repr(self) -> str:
        return "" if self.max_positions is None else f"max_positions={self.max_positions}"

    def embed_target(self, ids: Tensor, start: int = 0) -> Tensor:
        """What enters the decoder for words at the positions from `start` on."""
        return embed(self.target_input, ids, self.config, dtype=self.decoder.dtype, start=start, training=self.training)

    def _check_sentences(self, name: str, ids: Tensor) -> None:
        if ids.dim() != 2 or ids.shape[1] == 0:
            raise ValueError(f"{name} must be (batch, positions) with at least one position, got {tuple(ids.shape)}")
        if self.max_positions is not None and ids.shape[1] > self.max_positions:
            raise ValueError(
                f"{name} must have at most the model's max_positions, {self.max_positions}, got a sentence of "
                f"{ids.shape[1]}; leave longer ones out, or build the model with a larger max_positions"
            )
