"""PostEditor: a BERT that reads a sentence and its translation, and a decoder of BERT's layers that corrects it.

Shapes: B batch, S positions of sentence and translation, T of the correction, D the decoder's dimension.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from anymax.models.bert.config import BertConfig
from anymax.models.bert.model import Bert, embed_tokens
from anymax.models.post_editing.config import TransformerDecoderConfig
from anymax.models.post_editing.edit_model import EditModel, Inputs
from anymax.models.post_editing.sharing import Sharing
from anymax.models.transformer.block import MakeMapping, TransformerBlock
from anymax.models.transformer.decoder import Decoder
from anymax.models.transformer.embedding import embed
from anymax.vocabulary import FixedInput, FullOutput, tie_

# What an encoder and the BERT that it begins from must have in common.
EQUAL = (
    *("model_dim", "num_layers", "num_heads", "ffn_dim", "max_positions", "num_segments"),
    *("activation", "norm_eps"),
)
# Which segment the sentence is, and which its translation and the correction.
SOURCE, TRANSLATION = 0, 1


class PostEditor(EditModel):
    """A sentence and its translation in, the loss of the words of the corrected translation out.

    The encoder is a `Bert` that reads the sentence as its first segment and the translation as its second, each from
    position 0. The decoder's layers are BERT's, causal and post-norm, with attention to the encoder's output between
    self-attention and feed-forward; what it writes is of the second segment. With softmax it computes what an
    `EncoderDecoderModel` of transformers does. Or the decoder is that of a Transformer, pre-norm and with sinusoids.

    Args:
        encoder: the config of the encoder.
        decoder: that of the decoder; its mapping is that of the attention to its own words.
        vocabulary_size: number of word pieces.
        sharing: what the decoder takes from the encoder. What is copied is copied here, and again by `begin_from`.
        pad: the id of padding.
        first: the id of what stands before every sentence that is written.
        label_smoothing: the share of the target that is spread evenly over the other word pieces but padding.
        cross_mapping: called once for every block of the decoder, makes the mapping of its attention to the encoder's
            output. By default, or where it gives None, softmax.

    Correia and Martins 2019.

    Example:
        >>> from anymax.models import BertConfig, PostEditor, Sharing
        >>> config = BertConfig(16, 1, 2, 32, max_positions=10)
        >>> model = PostEditor(config, config, vocabulary_size=20, sharing=Sharing(), pad=0, first=1)
        >>> source = torch.tensor([[5, 6, 2, 7, 8, 2]])  # a sentence, "[SEP]", its translation, "[SEP]"
        >>> segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
        >>> positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
        >>> ids, target = torch.tensor([[1, 7, 9]]), torch.tensor([[7, 9, 3]])
        >>> model(source, None, segments, positions, ids, target, "none").shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        encoder: BertConfig,
        decoder: BertConfig | TransformerDecoderConfig,
        vocabulary_size: int,
        *,
        sharing: Sharing,
        pad: int,
        first: int,
        label_smoothing: float = 0.0,
        cross_mapping: MakeMapping | None = None,
    ) -> None:
        super().__init__()
        self.sharing = sharing
        self.first = first
        self.max_positions = min(encoder.max_positions, decoder.max_positions)
        self.encoder = Bert(encoder, vocabulary_size, head=False)
        self.target_input: TargetInput | SinusoidalInput
        if isinstance(decoder, BertConfig):
            sharing.check(encoder, decoder)
            self.target_input = TargetInput(decoder, vocabulary_size)
        else:
            sharing.check_words_alone(encoder, decoder.body)
            self.target_input = SinusoidalInput(decoder, vocabulary_size)
        self.decoder = Decoder(
            decoder.body,
            memory_dim=encoder.model_dim,
            mapping=partial(decoder.mapping.build, decoder.body.num_heads),
            cross_mapping=cross_mapping,
        )
        self.output: FullOutput = FullOutput(
            vocabulary_size, decoder.body.model_dim, bias=True, label_smoothing=label_smoothing, unsmoothed=pad
        )
        self.reset_parameters()
        self._share()
        tie_(self.target_input.words, self.output)

    def reset_parameters(self) -> None:
        """Draw the weights of BERT's layers in the decoder as BERT does, the output's bias as that of a linear layer.

        What is shared with the encoder afterwards is lost. The layers of a Transformer stay as they are.
        """
        if isinstance(self.target_input, TargetInput):
            std = self.target_input.config.initial_std
            for module in (*self.target_input.modules(), *self.decoder.modules()):
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=std)
                    nn.init.zeros_(module.bias)
                elif isinstance(module, nn.Embedding):
                    nn.init.normal_(module.weight, std=std)
            nn.init.normal_(self.target_input.words.table, std=std)
        assert self.output.bias is not None
        bound = self.output.model_dim**-0.5
        nn.init.uniform_(self.output.bias, -bound, bound)

    @torch.no_grad()
    def begin_from(self, bert: Bert) -> None:
        """Take the weights of a trained BERT for the encoder, and for what the decoder copies of it.

        A model of another shape is refused, and nothing is changed; its pooler and head are left.
        """
        check_same_sizes(self.encoder.config, bert.config)
        ours = dict(self.encoder.named_parameters())
        theirs = {name: each for name, each in bert.named_parameters() if not name.startswith(("pooler.", "head."))}
        _check_same_shapes(ours, theirs)
        for name, parameter in ours.items():
            if name in theirs:
                parameter.copy_(theirs[name])
        self._share()

    def encode(self, source: Tensor, source_mask: Tensor | None, segments: Tensor, positions: Tensor) -> Tensor:
        """The encoder's output, (batch, source positions, its model_dim).

        Args:
            source: (batch, source positions), the pieces of the sentence, then those of its translation.
            source_mask: (batch, source positions), true where a piece stands: false for padding. None for everywhere.
            segments: (batch, source positions), 0 for the sentence and 1 for its translation.
            positions: (batch, source positions), the place of a piece in its segment.
        """
        return self.encoder.encode(source, source_mask, segments, positions)

    def hidden(
        self,
        ids: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        second_memory: Tensor | None = None,
        second_mask: Tensor | None = None,
    ) -> Tensor:
        return self.decoder(self.embed_target(ids), memory, memory_mask, second_memory, second_mask)

    def remember(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """The encoder's output and where it stands for a piece, for decoding.

        Args:
            inputs: source, source_mask, segments and positions, as in `encode`.
        """
        return self.encode(*inputs), inputs[1]

    def embed_target(self, ids: Tensor, start: int = 0) -> Tensor:
        """What enters the decoder for pieces at the positions from `start` on."""
        return self.target_input(ids, start, dtype=self.decoder.dtype)

    def in_order(self) -> list[nn.Module]:
        """The modules that are worth sharding one by one, in the order they run."""
        encoder = self.encoder
        tables: list[nn.Module] = [encoder.words, encoder.positions, encoder.segments]
        return [*tables, *encoder.encoder.blocks, self.target_input, *self.decoder.blocks, self.output]

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        """Methods besides forward that read parameters, of this and of the modules within, as FSDP2 must know them."""
        own: list[tuple[nn.Module, str]] = [(self, name) for name in ("encode", "hidden", "start", "next")]
        of_blocks = [(block, "precompute") for block in self.decoder.blocks]
        return [*own, *of_blocks, *((self.output, name) for name in self.output.forward_methods)]

    def attention_layers(self) -> dict[str, list[nn.Module]]:
        """Layers in which heads attend, by the name that stands before their number in logs."""
        return {
            "encoder/layer": list(self.encoder.encoder.attentions()),
            "decoder/layer": list(self.decoder.attentions()),
            "cross/layer": list(self.decoder.cross_attentions()),
        }

    @torch.no_grad()
    def _share(self) -> None:
        """Tie what is tied, and copy what is copied."""
        for way, source, target in self._shared():
            for name, parameter in source.named_parameters(recurse=False):
                if way == "tied":
                    setattr(target, name, parameter)
                elif way == "copied":
                    target.get_parameter(name).copy_(parameter)

    def _shared(self) -> Iterator[tuple[str, nn.Module, nn.Module]]:
        """How each layer of the decoder is shared, with which layer, in an order in which no source changes later."""
        sharing, encoder, ours = self.sharing, self.encoder, self.target_input
        if isinstance(ours, SinusoidalInput):
            yield sharing.embeddings, encoder.words, ours.words
            return
        for name in ("words", "positions", "segments"):
            yield sharing.embeddings, getattr(encoder, name), getattr(ours, name)
        yield sharing.norms, encoder.embedding_norm, ours.embedding_norm
        for of_encoder, of_decoder in zip(encoder.encoder.blocks, self.decoder.blocks, strict=False):
            assert isinstance(of_encoder, TransformerBlock) and isinstance(of_decoder, TransformerBlock)
            for name in ("query", "key", "value", "output"):
                theirs, own = getattr(of_encoder.attention, name), getattr(of_decoder.attention, name)
                yield sharing.self_attention, theirs, own
                crossed = own if sharing.cross_attention_of == "decoder" else theirs
                yield sharing.cross_attention, crossed, getattr(of_decoder.cross_attention, name)
            for name in ("inner", "outer"):
                yield sharing.feed_forward, *(getattr(each.feed_forward, name) for each in (of_encoder, of_decoder))
            assert of_decoder.cross_attention_norm is not None
            yield sharing.norms, of_encoder.attention_norm, of_decoder.attention_norm
            yield sharing.norms, of_encoder.attention_norm, of_decoder.cross_attention_norm
            yield sharing.norms, of_encoder.feed_forward_norm, of_decoder.feed_forward_norm

    def extra_repr(self) -> str:
        return f"{self.sharing}"


class TargetInput(nn.Module):
    """Vectors of what a decoder has written, as BERT makes those of what it reads, all of the second segment."""

    def __init__(self, config: BertConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.words = FixedInput(vocabulary_size, config.model_dim)
        self.positions = nn.Embedding(config.max_positions, config.model_dim)
        self.segments = nn.Embedding(config.num_segments, config.model_dim)
        self.embedding_norm = nn.LayerNorm(config.model_dim, eps=config.norm_eps)

    def forward(self, ids: Tensor, start: int = 0, *, dtype: torch.dtype) -> Tensor:
        """The vectors of pieces at the positions from `start` on, (batch, positions, D)."""
        _check_length(ids, start, self.config.max_positions)
        positions = torch.arange(start, start + ids.shape[-1], device=ids.device).expand_as(ids)
        return embed_tokens(self, ids, torch.full_like(ids, TRANSLATION), positions, dtype=dtype)


class SinusoidalInput(nn.Module):
    """Vectors of what a decoder has written as a Transformer makes them: those of words, scaled, and sinusoids."""

    def __init__(self, config: TransformerDecoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.words = FixedInput(vocabulary_size, config.body.model_dim)

    def forward(self, ids: Tensor, start: int = 0, *, dtype: torch.dtype) -> Tensor:
        """The vectors of pieces at the positions from `start` on, (batch, positions, D)."""
        _check_length(ids, start, self.config.max_positions)
        return embed(self.words, ids, self.config.body, dtype=dtype, start=start, training=self.training)


def _check_length(ids: Tensor, start: int, most: int) -> None:
    if ids.dim() == 2 and start + ids.shape[1] > most:
        raise ValueError(
            f"ids must have at most the model's max_positions, {most}, got a sentence of {start + ids.shape[1]}; "
            "leave longer ones out"
        )


def check_same_sizes(encoder: BertConfig, bert: BertConfig) -> None:
    """Refuse to begin from a BERT that is not the encoder's equal but for its mapping and how it is trained."""
    found = {name: (getattr(bert, name), getattr(encoder, name)) for name in EQUAL}
    other = [f"its {name} is {theirs} and should be {ours}" for name, (theirs, ours) in found.items() if theirs != ours]
    if other:
        raise ValueError(
            f"bert must have the sizes of the encoder, but {', '.join(other)}; give the encoder those of the BERT "
            "(--model.encoder)"
        )


def _check_same_shapes(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Both have the same parameters in the same shapes, but that a BERT may lack what mappings learn."""
    unknown = [name for name in theirs if name not in ours]
    if unknown:
        raise ValueError(
            f"bert must have the layers of the encoder, but has {unknown[0]}, which that lacks; give the encoder the "
            "mapping of its heads"
        )
    for name, tensor in theirs.items():
        if tensor.shape != ours[name].shape:
            raise ValueError(
                f"bert must have the shapes of the encoder, but its {name} is {tuple(tensor.shape)} and should be "
                f"{tuple(ours[name].shape)}; give both the same vocabulary"
            )
