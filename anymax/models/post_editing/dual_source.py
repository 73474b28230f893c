"""DualSourceTransformer: a Transformer with an encoder for the sentence and another for its translation.

Shapes: B batch, S positions of the sentence, M of its translation, D the model's dimension.
"""

import torch
from torch import Tensor, nn

from anymax.models.post_editing.edit_model import EditModel, Inputs
from anymax.models.transformer.block import MakeMapping
from anymax.models.transformer.config import TransformerConfig
from anymax.models.transformer.decoder import Decoder
from anymax.models.transformer.embedding import embed
from anymax.models.transformer.encoder import Encoder
from anymax.vocabulary import FixedInput, FullOutput, tie_


class DualSourceTransformer(EditModel):
    """Two encoders, and a decoder whose blocks attend to the sentence and then to its translation.

    One table of words serves both encoders, the decoder and the output.

    Args:
        config: sizes, dropout rates and choices of all three stacks.
        vocabulary_size: number of word pieces.
        pad: the id of padding.
        first: the id of what stands before every sentence that is written.
        label_smoothing: the share of the target that is spread evenly over the other word pieces but padding.
        encoder_mapping: called once for every block of both encoders, makes the mapping of its attention. By default,
            or where it gives None, softmax.
        decoder_mapping: the same for the decoder's attention to its own words.
        cross_mapping: the same for both of its attentions to the encoders' outputs.
        max_positions: the most word pieces of a sentence, of its translation, and of what is written.

    Junczys-Dowmunt and Grundkiewicz 2018.

    Example:
        >>> from anymax.models import DualSourceTransformer, TransformerConfig
        >>> model = DualSourceTransformer(TransformerConfig(16, 1, 2, 32), vocabulary_size=20, pad=0, first=1)
        >>> source = torch.tensor([[5, 6, 2, 7, 8, 2]])  # a sentence, "[SEP]", its translation, "[SEP]"
        >>> segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
        >>> positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
        >>> ids, target = torch.tensor([[1, 7, 9]]), torch.tensor([[7, 9, 3]])
        >>> model(source, None, segments, positions, ids, target, "none").shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocabulary_size: int,
        *,
        pad: int,
        first: int,
        label_smoothing: float = 0.0,
        encoder_mapping: MakeMapping | None = None,
        decoder_mapping: MakeMapping | None = None,
        cross_mapping: MakeMapping | None = None,
        max_positions: int = 512,
    ) -> None:
        super().__init__()
        self.config = config
        self.first = first
        self.pad = pad
        self.max_positions = max_positions
        self.input = FixedInput(vocabulary_size, config.model_dim)
        self.source_encoder = Encoder(config, mapping=encoder_mapping)
        self.translation_encoder = Encoder(config, mapping=encoder_mapping)
        self.decoder = Decoder(
            config,
            memory_dim=config.model_dim,
            mapping=decoder_mapping,
            cross_mapping=cross_mapping,
            second_memory_dim=config.model_dim,
        )
        self.output: FullOutput = FullOutput(
            vocabulary_size, config.model_dim, bias=True, label_smoothing=label_smoothing, unsmoothed=pad
        )
        tie_(self.input, self.output)

    def remember(self, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The outputs of both encoders, each with where it stands for a piece.

        Args:
            inputs: source, source_mask, segments and positions, as in `forward`; the positions follow from the others.
        """
        source, mask, segments, _ = inputs
        stands = torch.ones_like(source, dtype=torch.bool) if mask is None else mask
        of_sentence, of_translation = stands & (segments == 0), stands & (segments == 1)
        sentence_BS, sentence_mask_BS = self._part(source, of_sentence)
        translation_BM, translation_mask_BM = self._part(source, of_translation)
        return (
            self.source_encoder(self._embed(sentence_BS), sentence_mask_BS),
            sentence_mask_BS,
            self.translation_encoder(self._embed(translation_BM), translation_mask_BM),
            translation_mask_BM,
        )

    def hidden(
        self,
        ids: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        second_memory: Tensor | None = None,
        second_mask: Tensor | None = None,
    ) -> Tensor:
        self._check_length("ids", ids.shape[1])
        return self.decoder(self.embed_target(ids), memory, memory_mask, second_memory, second_mask)

    def embed_target(self, ids: Tensor, start: int = 0) -> Tensor:
        """What enters the decoder for pieces at the positions from `start` on."""
        return self._embed(ids, start)

    def in_order(self) -> list[nn.Module]:
        """The modules that are worth sharding one by one, in the order they run."""
        encoders = [*self.source_encoder.blocks, *self.translation_encoder.blocks]
        return [self.input, *encoders, *self.decoder.blocks, self.output]

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        """Methods besides forward that read parameters, of this and of the modules within, as FSDP2 must know them."""
        own: list[tuple[nn.Module, str]] = [(self, name) for name in ("remember", "hidden", "start", "next")]
        of_blocks = [(block, name) for block in self.decoder.blocks for name in ("precompute", "precompute_second")]
        return [*own, *of_blocks, *((self.output, name) for name in self.output.forward_methods)]

    def attention_layers(self) -> dict[str, list[nn.Module]]:
        """Layers in which heads attend, by the name that stands before their number in logs."""
        return {
            "encoder/source_layer": list(self.source_encoder.attentions()),
            "encoder/translation_layer": list(self.translation_encoder.attentions()),
            "decoder/layer": list(self.decoder.attentions()),
            "cross/source_layer": list(self.decoder.cross_attentions()),
            "cross/translation_layer": list(self.decoder.second_attentions()),
        }

    def extra_repr(self) -> str:
        return f"max_positions={self.max_positions}"

    def _embed(self, ids: Tensor, start: int = 0) -> Tensor:
        return embed(self.input, ids, self.config, dtype=self.decoder.dtype, start=start, training=self.training)

    def _part(self, source: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen pieces of each row, which stand side by side, moved to its front; and where they stand."""
        lengths = chosen.sum(1, keepdim=True)
        width = max(1, int(lengths.max()))
        self._check_length("source", width)
        place = torch.arange(width, device=source.device).expand(source.shape[0], -1)
        found = source.gather(1, (chosen.int().argmax(1, keepdim=True) + place).clamp(max=source.shape[1] - 1))
        stands = place < lengths
        return found.masked_fill(~stands, self.pad), stands

    def _check_length(self, name: str, length: int) -> None:
        if length > self.max_positions:
            raise ValueError(
                f"{name} must have at most the model's max_positions, {self.max_positions}, got a sentence of "
                f"{length}; leave longer ones out, or build the model with a larger max_positions"
            )
