"""What post-editors are made of, as plain data that imports no torch: a BERT and its decoder, or two encoders."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

from anymax.attention.config import AttentionMappingConfig, SoftmaxConfig
from anymax.checks import check_counts, check_shares
from anymax.models.bert.config import BertConfig
from anymax.models.language_model.config import check_sink_changes
from anymax.models.post_editing.sharing import Sharing
from anymax.models.transformer.config import TransformerConfig

if TYPE_CHECKING:
    from anymax.models.post_editing.dual_source import DualSourceTransformer
    from anymax.models.post_editing.model import PostEditor


class Vocabulary(Protocol):
    """What a model must know of its word pieces."""

    def __len__(self) -> int: ...

    @property
    def pad(self) -> int:
        """The id of padding."""

    @property
    def first(self) -> int:
        """The id of what stands before a sentence that is generated."""


@dataclass(frozen=True)
class TransformerDecoderConfig:
    """The decoder of a Transformer, whose layers are not BERT's: it can share the table of words and nothing else.

    Its vectors of words are scaled and have sinusoids added. The defaults are those of the first row of the ablation,
    of OpenNMT's layers and BERT-base's sizes.

    Args:
        body: sizes, dropout rates and choices of its layers.
        mapping: what attention to its own words turns scores into probabilities with.
        max_positions: the most word pieces of a correction.

    Correia and Martins 2019.
    """

    body: TransformerConfig = field(default_factory=lambda: opennmt_body(768, 12, 12, 3072))
    _: KW_ONLY
    mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)
    max_positions: int = 512

    def __post_init__(self) -> None:
        check_counts(max_positions=self.max_positions)
        check_sink_changes(self.body, self.mapping)

    def toy(self) -> Self:
        """The same at a size for tests."""
        return replace(self, body=self.body.toy(), max_positions=min(self.max_positions, 64))


def opennmt_body(model_dim: int, num_layers: int, num_heads: int, ffn_dim: int) -> TransformerConfig:
    """OpenNMT's layers: norms before them and one at the end, one rate of dropout everywhere."""
    return TransformerConfig(
        model_dim,
        num_layers,
        num_heads,
        ffn_dim,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        final_norm=True,
        norm_eps=1e-6,
    )


@dataclass(frozen=True)
class PostEditorConfig:
    """A post-editor: a sentence and its translation in, the corrected translation out.

    Args:
        encoder: the BERT that reads both; the mapping of its heads is the encoder's.
        sharing: what the decoder takes from it.
        decoder: the sizes of the decoder, whose mapping is that of its self-attention; by default those of the encoder,
            with softmax. Layers that are not BERT's by TransformerDecoderConfig.
        cross_mapping: what the decoder's attention to the encoder's output turns scores into probabilities with.
        label_smoothing: the share of the target that is spread evenly over the other word pieces but padding.

    Example:
        >>> from anymax.models import BertConfig, PostEditorConfig, Sharing
        >>> config = PostEditorConfig(BertConfig(256, 4, 4, 1024), Sharing(feed_forward="tied"))
        >>> config.decoder_config.num_layers, config.max_positions
        (4, 512)
    """

    encoder: BertConfig = field(default_factory=BertConfig)
    sharing: Sharing = field(default_factory=Sharing)
    _: KW_ONLY
    decoder: BertConfig | TransformerDecoderConfig | None = None
    cross_mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        check_shares(label_smoothing=self.label_smoothing)
        if self.encoder.num_segments < 2:
            raise ValueError(
                f"encoder.num_segments must be at least 2, one for the sentence and one for its translation, got "
                f"{self.encoder.num_segments}"
            )
        decoder = self.decoder_config
        if isinstance(decoder, TransformerDecoderConfig):
            self.sharing.check_words_alone(self.encoder, decoder.body)
            return
        if decoder.num_segments < 2:
            raise ValueError(
                f"decoder.num_segments must be at least 2, as the decoder writes the second, got {decoder.num_segments}"
            )
        self.sharing.check(self.encoder, decoder)

    @property
    def decoder_config(self) -> BertConfig | TransformerDecoderConfig:
        """The sizes of the decoder."""
        return replace(self.encoder, mapping=SoftmaxConfig()) if self.decoder is None else self.decoder

    @property
    def max_positions(self) -> int:
        """The most pieces of a sentence on any side, source, translation or correction."""
        return min(self.encoder.max_positions, self.decoder_config.max_positions)

    def build(self, vocabulary: Vocabulary) -> PostEditor:
        """The post-editor, its encoder drawn at random; a trained BERT comes in by `PostEditor.begin_from`."""
        from anymax.models.post_editing.model import PostEditor

        return PostEditor(
            self.encoder,
            self.decoder_config,
            len(vocabulary),
            sharing=self.sharing,
            pad=vocabulary.pad,
            first=vocabulary.first,
            label_smoothing=self.label_smoothing,
            cross_mapping=partial(self.cross_mapping.build, self.decoder_config.body.num_heads),
        )

    def toy(self) -> Self:
        """The same at a size for tests."""
        decoder = None if self.decoder is None else self.decoder.toy()
        return replace(self, encoder=self.encoder.toy(), decoder=decoder)


@dataclass(frozen=True)
class DualSourceTransformerConfig:
    """A Transformer with an encoder for the sentence and another for its translation, which knows of no BERT.

    Args:
        body: the shape of both encoders and of the decoder; by default the base size of Vaswani et al. 2017.
        encoder_mapping: what both encoders' attention turns scores into probabilities with.
        decoder_mapping: the same of the decoder's attention to its own words.
        cross_mapping: the same of its attentions to the encoders' outputs.
        label_smoothing: the share of the target that is spread evenly over the other word pieces but padding.
        max_positions: the most word pieces of a sentence, of its translation, and of the correction.

    Junczys-Dowmunt and Grundkiewicz 2018.

    Example:
        >>> from anymax.models import DualSourceTransformerConfig
        >>> config = DualSourceTransformerConfig()
        >>> config.body.model_dim, config.body.num_layers, config.label_smoothing
        (512, 6, 0.1)
    """

    body: TransformerConfig = field(
        default_factory=lambda: TransformerConfig(512, 6, 8, 2048, dropout=0.1, attention_dropout=0.1, final_norm=True)
    )
    _: KW_ONLY
    encoder_mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)
    decoder_mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)
    cross_mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)
    label_smoothing: float = 0.1
    max_positions: int = 512

    def __post_init__(self) -> None:
        check_shares(label_smoothing=self.label_smoothing)
        check_counts(max_positions=self.max_positions)
        for mapping in (self.encoder_mapping, self.decoder_mapping, self.cross_mapping):
            check_sink_changes(self.body, mapping)

    def build(self, vocabulary: Vocabulary) -> DualSourceTransformer:
        """The model, its parameters drawn at random."""
        from anymax.models.post_editing.dual_source import DualSourceTransformer

        num_heads = self.body.num_heads
        return DualSourceTransformer(
            self.body,
            len(vocabulary),
            pad=vocabulary.pad,
            first=vocabulary.first,
            label_smoothing=self.label_smoothing,
            encoder_mapping=partial(self.encoder_mapping.build, num_heads),
            decoder_mapping=partial(self.decoder_mapping.build, num_heads),
            cross_mapping=partial(self.cross_mapping.build, num_heads),
            max_positions=self.max_positions,
        )

    def toy(self) -> Self:
        """The same at a size for tests."""
        return replace(self, body=self.body.toy(), max_positions=min(self.max_positions, 64))
