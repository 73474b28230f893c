"""What a translator is made of, as plain data that imports no torch: inputs, output, stacks, tying, mappings."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from anymax.attention.config import AttentionMappingConfig, SoftmaxConfig
from anymax.checks import check_counts, given
from anymax.models.language_model.config import Tie, check_sink_changes, check_tie
from anymax.models.sizes import check_sizes
from anymax.models.transformer.config import TransformerConfig
from anymax.vocabulary.config import CharacterInputConfig, InputConfig, OutputConfig, Words

if TYPE_CHECKING:
    from anymax.models.translation.model import Translator


@dataclass(frozen=True)
class TranslatorConfig:
    """A translator: a sentence in, the words of its translation out.

    Embeddings are tied two ways by `tie=Tie()`, the decoder's input with the output, and three ways by
    `share_input=True` beside it, for which both languages need one lexicon.

    Args:
        input: from words to vectors, in the decoder and, where nothing else is said, in the encoder.
        output: from vectors to a choice among words.
        body: the shape of encoder and decoder. With final_norm a norm stands after each.
        source_input: the encoder's input, if it is another.
        share_input: whether encoder and decoder read words by one layer, and not by two of the same config.
        tie: what the output shares with the decoder's input; None for nothing.
        decoder_layers: blocks of the decoder; by default as many as of the encoder, the body's num_layers.
        encoder_mapping: what the encoder's attention turns scores into probabilities with.
        decoder_mapping: the same of the decoder's attention to its own words.
        cross_mapping: the same of the decoder's attention to the encoder's output.
        max_positions: the most positions of a sentence, source or target; by default there is no limit.

    Example:
        >>> from anymax.attention import LearnedEntmaxConfig
        >>> from anymax.data import Lexicon
        >>> from anymax.models import TransformerConfig, TranslatorConfig, learned_alphas
        >>> from anymax.vocabulary import FixedInputConfig, FullOutputConfig
        >>> body = TransformerConfig(model_dim=16, num_layers=1, num_heads=2, ffn_dim=32)
        >>> config = TranslatorConfig(FixedInputConfig(), FullOutputConfig(), body, cross_mapping=LearnedEntmaxConfig())
        >>> words = Lexicon.from_counts({"the": 5, "cat": 2})
        >>> list(learned_alphas(config.build(words, words)))
        ['alpha/cross/layer_0/head_0', 'alpha/cross/layer_0/head_1']
    """

    input: InputConfig
    output: OutputConfig
    body: TransformerConfig
    _: KW_ONLY
    source_input: InputConfig | None = None
    share_input: bool = False
    tie: Tie | None = None
    decoder_layers: int | None = None
    encoder_mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)
    decoder_mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)
    cross_mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)
    max_positions: int | None = None

    def __post_init__(self) -> None:
        check_counts(**given(decoder_layers=self.decoder_layers, max_positions=self.max_positions))
        if self.decoder_layers is not None:
            check_sizes(self.decoder_layers)
        if self.share_input and self.source_input is not None:
            raise ValueError(
                f"source_input must be left out with share_input, got {self.source_input}; one layer reads both"
            )
        for name, input in (("input", self.input), ("source_input", self.source_input)):
            if isinstance(input, CharacterInputConfig) and input.spell_unknown:
                raise ValueError(
                    f"{name}.spell_unknown must be False in a translator, got True; words outside the vocabulary are "
                    "read as one unknown word, or as subwords"
                )
        for mapping in (self.encoder_mapping, self.decoder_mapping, self.cross_mapping):
            check_sink_changes(self.body, mapping)
        if self.tie is not None:
            check_tie(self.input, self.output, self.body, self.tie)

    def build(self, source: Words, target: Words) -> Translator:
        """The translator, its parameters drawn at random, from the words of one lexicon to those of another."""
        from anymax.models.translation.model import Translator
        from anymax.vocabulary import tie_

        if self.share_input and source is not target and list(source.words) != list(target.words):
            raise ValueError(
                f"source and target must have one lexicon with share_input, got two, of {len(source)} and "
                f"{len(target)} words; learn the units of both languages jointly, or leave share_input out"
            )
        width, num_heads = self.body.input_dim, self.body.num_heads
        target_input = self.input.build(target, width)
        source_input = target_input if self.share_input else (self.source_input or self.input).build(source, width)
        output = self.output.build(len(target), self.body.output_dim)
        if self.tie is not None:
            tie_(target_input, output, tables=self.tie.tables, projections=self.tie.projections, head=self.tie.head)
        return Translator(
            source_input,
            target_input,
            output,
            self.body,
            decoder_layers=self.decoder_layers,
            encoder_mapping=partial(self.encoder_mapping.build, num_heads),
            decoder_mapping=partial(self.decoder_mapping.build, num_heads),
            cross_mapping=partial(self.cross_mapping.build, num_heads),
            max_positions=self.max_positions,
        )

    def toy(self) -> Self:
        """The same translator at a size for tests: its layers, bands and ties, tiny, for any number of words."""
        width = self.body.input_dim
        return replace(
            self,
            input=self.input.toy(width),
            source_input=None if self.source_input is None else self.source_input.toy(width),
            output=self.output.toy(self.body.output_dim),
            body=self.body.toy(),
            decoder_layers=None if self.decoder_layers is None else min(self.decoder_layers, 2),
        )
