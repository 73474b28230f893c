"""What a language model is made of, as plain data that imports no torch: input, output, body, tying, mapping."""

from dataclasses import dataclass, field, replace
from typing import Self

from anymax.attention.config import AttentionMappingConfig, RectifiedConfig, SigmoidConfig, SoftmaxConfig
from anymax.models.lstm.config import AWDLSTMConfig, LSTMConfig
from anymax.models.transformer.config import TransformerConfig
from anymax.vocabulary.config import (
    AdaptiveInputConfig,
    AdaptiveOutputConfig,
    CharacterInputConfig,
    FixedInputConfig,
    FullOutputConfig,
    InputConfig,
    MixtureOutputConfig,
    OutputConfig,
    SparseOutputConfig,
)


@dataclass(frozen=True)
class Tie:
    """What the output shares with the input.

    Args:
        tables: the vectors of words.
        projections: the projections between tables and model; of adaptive layers, those of the tails.
        head: the projection of an adaptive head, which the output must have.

    Example:
        >>> from anymax.models import LanguageModelConfig, LSTMConfig, Tie
        >>> from anymax.vocabulary import FixedInputConfig, FullOutputConfig
        >>> LanguageModelConfig(FixedInputConfig(), FullOutputConfig(), LSTMConfig(64, 64), tie=Tie()).tie.tables
        True
    """

    tables: bool = True
    projections: bool = False
    head: bool = False

    def __post_init__(self) -> None:
        if not (self.tables or self.projections or self.head):
            raise ValueError("tie must share something, got tables, projections and head all False; use no tie instead")


Body = TransformerConfig | LSTMConfig | AWDLSTMConfig


@dataclass(frozen=True)
class LanguageModelConfig:
    """A language model: words in, the next word out.

    Args:
        input: from words to vectors.
        output: from vectors to a choice among words.
        body: what stands between.
        tie: what input and output share; None for nothing.
        mapping: what attention turns scores into probabilities with.

    Example:
        >>> from anymax.attention import LearnedEntmaxConfig
        >>> from anymax.data import Lexicon
        >>> from anymax.models import LanguageModelConfig, Tie, TransformerConfig, build_language_model
        >>> from anymax.vocabulary import FixedInputConfig, FullOutputConfig
        >>> body = TransformerConfig(model_dim=16, num_layers=2, num_heads=4, ffn_dim=32)
        >>> config = LanguageModelConfig(FixedInputConfig(), FullOutputConfig(), body, Tie(), LearnedEntmaxConfig())
        >>> model = build_language_model(config, Lexicon.from_counts({"the": 5, "cat": 2}))
        >>> model.input.table is model.output.table
        True
    """

    input: InputConfig
    output: OutputConfig
    body: Body
    tie: Tie | None = None
    mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)

    def __post_init__(self) -> None:
        if not isinstance(self.body, TransformerConfig) and not isinstance(self.mapping, SoftmaxConfig):
            raise ValueError(
                f"mapping must stay SoftmaxConfig() for an LSTM, which has no attention, got {self.mapping}; "
                "leave it out or take a Transformer"
            )
        if isinstance(self.body, TransformerConfig):
            check_sink_changes(self.body, self.mapping)
        if self.tie is not None:
            check_tie(self.input, self.output, self.body, self.tie)
        if self.spells_unknown and isinstance(self.body, AWDLSTMConfig) and self.body.word_dropout:
            raise ValueError(
                f"body.word_dropout must be 0 with spell_unknown, got {self.body.word_dropout}; words outside the "
                "vocabulary have no share in what it drops"
            )

    @property
    def carries_state(self) -> bool:
        """Whether the model continues in a batch from where the batch before ended."""
        return self.body.carries_state

    @property
    def spells_unknown(self) -> bool:
        """Whether words outside the vocabulary are read by their spelling."""
        return isinstance(self.input, CharacterInputConfig) and self.input.spell_unknown

    def toy(self) -> Self:
        """The same model at a size for tests: its layers, bands and ties, tiny, for any number of words."""
        return replace(
            self,
            input=self.input.toy(self.body.input_dim),
            output=self.output.toy(self.body.output_dim),
            body=self.body.toy(),
        )


def check_sink_changes(body: TransformerConfig, mapping: AttentionMappingConfig) -> None:
    """Refuse a sink beside a mapping whose weights would be the same without."""
    competes = not isinstance(mapping, SigmoidConfig | RectifiedConfig)
    if body.attention_sink is not None and not competes:
        raise ValueError(
            f"body.attention_sink must be None for {mapping}, got {body.attention_sink!r}; "
            "its weights do not depend on each other, so a sink would change nothing"
        )


def check_tie(input: InputConfig, output: OutputConfig, body: Body, tie: Tie) -> None:
    """Refuse to tie layers that have nothing of one shape in common."""
    if isinstance(input, AdaptiveInputConfig) and isinstance(output, AdaptiveOutputConfig):
        _check_same_bands(input, output)
        _check_head(output, body, tie)
    elif isinstance(input, FixedInputConfig) and not isinstance(output, AdaptiveOutputConfig):
        _check_projections(input, output, body, tie)
    else:
        raise ValueError(
            "tie must join AdaptiveInputConfig with AdaptiveOutputConfig, or FixedInputConfig with another output, got "
            f"{type(input).__name__} with {type(output).__name__}; leave tie out"
        )
    _check_widths(input, output, body, tie)


def _check_same_bands(input: AdaptiveInputConfig, output: AdaptiveOutputConfig) -> None:
    for name in ("cutoffs", "shares", "factor"):
        ours, theirs = getattr(input, name), getattr(output, name)
        if ours != theirs:
            raise ValueError(
                f"input and output must have the same {name} to be tied, got {ours} and {theirs}; "
                "give both the same, or leave tie out"
            )


def _check_head(output: AdaptiveOutputConfig, body: Body, tie: Tie) -> None:
    if tie.head and output.head_projection is False:
        raise ValueError("tie.head must be False for an output with head_projection=False, got True")
    if tie.head and output.head_projection is None and output.dim in (None, body.output_dim):
        raise ValueError(
            f"tie.head must be False for an output whose head is as wide as the model, {body.output_dim}, got True; "
            "give the output head_projection=True, or leave tie.head out"
        )


def _check_projections(
    input: FixedInputConfig, output: FullOutputConfig | MixtureOutputConfig | SparseOutputConfig, body: Body, tie: Tie
) -> None:
    if tie.head:
        raise ValueError(f"tie.head must be False for {type(output).__name__}, which has no head, got True")
    if not tie.projections:
        return
    without = [
        type(layer).__name__
        for layer, width in ((input, body.input_dim), (output, body.output_dim))
        if layer.dim in (None, width) or isinstance(layer, MixtureOutputConfig)
    ]
    if without:
        raise ValueError(
            f"tie.projections must be False where a layer has no projection, got True and {' and '.join(without)} "
            "without; fixed inputs, full and sparse outputs have one if their dim differs from the width of the model"
        )


def _check_widths(input: FixedInputConfig | AdaptiveInputConfig, output: OutputConfig, body: Body, tie: Tie) -> None:
    """What is one parameter must have one shape: as wide as the tables, and a projection as long as the model."""
    ours = body.input_dim if input.dim is None else input.dim
    theirs = body.output_dim if output.dim is None else output.dim
    if ours != theirs:
        raise ValueError(
            f"tie must join tables of one width, got {ours} in {type(input).__name__} and {theirs} in "
            f"{type(output).__name__}; set the output's dim to {ours}, or leave tie out"
        )
    if (tie.projections or tie.head) and body.input_dim != body.output_dim:
        raise ValueError(
            "tie.projections and tie.head must be False where the body reads and gives vectors of different widths, "
            f"got {body.input_dim} and {body.output_dim}; share the tables alone"
        )
