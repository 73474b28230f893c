"""The shape of a BERT, as plain data that imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from anymax.attention.config import AttentionMappingConfig, SoftmaxConfig
from anymax.checks import check_counts, check_positive, check_shares
from anymax.models.transformer.config import TransformerConfig

if TYPE_CHECKING:
    from anymax.models.bert.model import Bert

# Our fields by their names in config.json.
NAMES = {
    "hidden_size": "model_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "ffn_dim",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_segments",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_act": "activation",
    "layer_norm_eps": "norm_eps",
    "initializer_range": "initial_std",
}
# What a config.json may leave out, as the defaults of transformers.
OPTIONAL = {"hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "initializer_range", "hidden_act"}
# What else must hold of an encoder that this model is equal to.
REQUIRED = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
SUPPORTED = "anymax.models.bert reads encoders whose model_type is 'bert', as bert-base-multilingual-cased"


@dataclass(frozen=True)
class BertConfig:
    """Sizes, dropout rates and choices of a BERT; the defaults are those of the base size of Devlin et al. 2019.

    Args:
        model_dim: how wide the vectors between blocks are.
        num_layers: number of blocks.
        num_heads: heads of attention in every block.
        ffn_dim: how wide the feed-forward layers are inside.
        max_positions: the most tokens of a sequence.
        num_segments: how many kinds of sequence a token can belong to.
        dropout: the rate for the vectors that enter the first block, and for what every layer adds to them.
        attention_dropout: the rate for probabilities of attention.
        activation: "gelu" or "relu", in feed-forward layers and in the head.
        norm_eps: the number that norms add to the variance.
        initial_std: of the normal distribution that weights are drawn from.
        mapping: what the heads turn scores into probabilities with.

    Example:
        >>> from anymax.attention import EntmaxConfig
        >>> from anymax.models import BertConfig
        >>> config = BertConfig(16, 2, 4, 32, mapping=EntmaxConfig(1.5))
        >>> model = config.build(vocabulary_size=30)
        >>> len(model.encoder.blocks)
        2
    """

    model_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    ffn_dim: int = 3072
    _: KW_ONLY
    max_positions: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: Literal["gelu", "relu"] = "gelu"
    norm_eps: float = 1e-12
    initial_std: float = 0.02
    mapping: AttentionMappingConfig = field(default_factory=SoftmaxConfig)

    def __post_init__(self) -> None:
        check_counts(
            model_dim=self.model_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            ffn_dim=self.ffn_dim,
            max_positions=self.max_positions,
            num_segments=self.num_segments,
        )
        check_shares(dropout=self.dropout, attention_dropout=self.attention_dropout)
        check_positive(initial_std=self.initial_std)
        if self.activation not in ("gelu", "relu"):
            raise ValueError(f"activation must be 'gelu' or 'relu', got {self.activation!r}")
        # Which checks the rest.
        _ = self.body

    @property
    def body(self) -> TransformerConfig:
        """The stack of blocks."""
        return TransformerConfig(
            self.model_dim,
            self.num_layers,
            self.num_heads,
            self.ffn_dim,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            positions="none",
            activation=self.activation,
            norm_first=False,
            norm_eps=self.norm_eps,
        )

    @classmethod
    def of_hugging_face(cls, values: Mapping[str, Any], *, name: str = "config.json") -> Self:
        """The config that transformers' config.json describes; one of another architecture is refused.

        Args:
            values: the object in config.json.
            name: the file, for messages.
        """
        kind = values.get("model_type")
        if kind != "bert":
            raise ValueError(f"{name} must have model_type 'bert', got {kind!r}; {SUPPORTED}")
        for key, wanted in REQUIRED.items():
            if values.get(key, wanted) != wanted:
                raise ValueError(f"{name} must have {key} {wanted!r}, got {values[key]!r}; {SUPPORTED}")
        if values.get("hidden_act", "gelu") not in ("gelu", "relu"):
            raise ValueError(
                f"{name} must have hidden_act 'gelu' or 'relu', got {values['hidden_act']!r}; its approximations give "
                "other numbers"
            )
        missing = [key for key in NAMES if key not in values and key not in OPTIONAL]
        if missing:
            raise ValueError(f"{name} must have {', '.join(missing)}, got none; it is no config of a whole model")
        given = {ours: values[theirs] for theirs, ours in NAMES.items() if theirs in values}
        try:
            return cls(**given)
        except (TypeError, ValueError) as error:
            theirs = ", ".join(f"{key} is {ours}" for key, ours in NAMES.items() if ours in str(error))
            raise ValueError(f"{name} describes no model: {error} ({theirs or 'as its fields say'})") from None

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json that transformers reads, but for the mapping and the vocabulary."""
        return {"model_type": "bert", **{theirs: getattr(self, ours) for theirs, ours in NAMES.items()}, **REQUIRED}

    def build(self, vocabulary_size: int, *, pooler: bool = False, head: bool = True) -> Bert:
        """The model, its parameters drawn at random; arguments as those of `Bert`."""
        from anymax.models.bert.model import Bert

        return Bert(self, vocabulary_size, pooler=pooler, head=head)

    def toy(self) -> Self:
        """The same model at a size for tests."""
        return replace(
            self,
            model_dim=16,
            num_layers=min(self.num_layers, 2),
            num_heads=2,
            ffn_dim=32,
            max_positions=min(self.max_positions, 64),
        )
