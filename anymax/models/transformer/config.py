"""The shape of a Transformer, as plain data that imports no torch."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

from anymax.checks import check_counts
from anymax.models.sizes import check_sizes
from anymax.transforms.config import AttentionTransformConfig

if TYPE_CHECKING:
    from torch import nn

    from anymax.attention.config import AttentionMappingConfig
    from anymax.models.transformer.model import TransformerLM
    from anymax.vocabulary import OutputLayer

Positions = Literal["sinusoidal", "rotary", "none"]
Norm = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "swiglu"]
Gate = Literal["element", "head"]


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes, dropout rates and choices of a stack of blocks; the defaults are those of Baevski and Auli 2019.

    Args:
        model_dim: how wide the vectors between blocks are.
        num_layers: number of blocks.
        num_heads: heads of attention in every block.
        ffn_dim: how wide the feed-forward layers are inside.
        dropout: the rate for the vectors that enter the first block, and for what every layer adds to them.
        attention_dropout: the rate for probabilities of attention.
        activation_dropout: the rate inside feed-forward layers.
        final_norm: whether a norm stands after the last block.
        positions: "sinusoidal" vectors added to the input, "rotary" queries and keys, or "none".
        norm: "layer", with weight and bias, or "rms", with a weight.
        activation: "relu", "gelu", or "swiglu", whose gate is a third matrix of ffn_dim x model_dim.
        norm_first: whether norms stand before the layers (pre-norm), or after every residual sum (post-norm).
        norm_eps: the number that norms add to the mean square or variance; by default torch's, 1e-5 for "layer" and the
            dtype's own epsilon for "rms". BERT has 1e-12.
        num_kv_heads: heads of keys and values, each for num_heads / num_kv_heads heads of queries; by default as many.
        attention_gate: multiply what heads gathered with sigmoid(linear), "element" by element or by "head"; by default
            neither.
        attention_sink: the score of one more key without a value: a number, or "learned" per head; by default none.
        attention_transform: what scores of attention go through first; by default nothing.

    Example:
        >>> from anymax.models import TransformerConfig
        >>> config = TransformerConfig(512, 6, 8, 2048, positions="rotary", norm="rms", num_kv_heads=2)
        >>> config.num_heads // config.num_kv_heads
        4
    """

    carries_state: ClassVar[bool] = False

    model_dim: int
    num_layers: int
    num_heads: int
    ffn_dim: int
    _: KW_ONLY
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    final_norm: bool = False
    positions: Positions = "sinusoidal"
    norm: Norm = "layer"
    activation: Activation = "relu"
    norm_first: bool = True
    norm_eps: float | None = None
    num_kv_heads: int | None = None
    attention_gate: Gate | None = None
    attention_sink: float | Literal["learned"] | None = None
    attention_transform: AttentionTransformConfig | None = None

    def __post_init__(self) -> None:
        check_sizes(self.num_layers, model_dim=self.model_dim, num_heads=self.num_heads, ffn_dim=self.ffn_dim)
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name, choices in (("positions", Positions), ("norm", Norm), ("activation", Activation)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} must be one of {get_args(choices)}, got {getattr(self, name)!r}")
        if self.norm_eps is not None and not 0 < self.norm_eps < 1:
            raise ValueError(
                f"norm_eps must lie strictly between 0 and 1, got {self.norm_eps}; leave it out for torch's default"
            )
        self._check_attention()
        self._check_widths()

    @property
    def input_dim(self) -> int:
        """How wide the vectors are that the input layer gives."""
        return self.model_dim

    @property
    def output_dim(self) -> int:
        """How wide the vectors are that the output layer reads."""
        return self.model_dim

    def build(self, input: nn.Module, output: OutputLayer, mapping: AttentionMappingConfig) -> TransformerLM:
        """The language model between an input and an output layer."""
        from anymax.models.transformer.model import TransformerLM

        return TransformerLM(input, output, self, mapping=partial(mapping.build, self.num_heads))

    def toy(self) -> Self:
        """The same model at a size for tests."""
        num_kv_heads = None if self.num_kv_heads in (None, self.num_heads) else 1
        num_layers = min(self.num_layers, 2)
        return replace(self, model_dim=16, num_layers=num_layers, num_heads=2, ffn_dim=32, num_kv_heads=num_kv_heads)

    def _check_attention(self) -> None:
        if self.num_kv_heads is not None:
            check_counts(num_kv_heads=self.num_kv_heads)
            if self.num_heads % self.num_kv_heads:
                raise ValueError(
                    f"num_kv_heads must divide num_heads, got {self.num_kv_heads} for {self.num_heads}; "
                    "each serves an equal number of heads"
                )
        if self.attention_gate not in (None, *get_args(Gate)):
            raise ValueError(f"attention_gate must be one of {get_args(Gate)} or None, got {self.attention_gate!r}")
        sink = self.attention_sink
        if isinstance(sink, str) and sink != "learned":
            raise ValueError(f"attention_sink must be a number, 'learned' or None, got {sink!r}")
        if isinstance(sink, float | int) and not math.isfinite(sink):
            raise ValueError(f"attention_sink must be finite, got {sink}; None is no sink")

    def _check_widths(self) -> None:
        if self.model_dim % self.num_heads:
            raise ValueError(
                f"model_dim must be a multiple of num_heads, got {self.model_dim} and {self.num_heads}; "
                "every head gets an equal part"
            )
        if self.positions == "rotary" and self.model_dim // self.num_heads % 2:
            raise ValueError(
                f"model_dim / num_heads must be even for rotary positions, got {self.model_dim} / {self.num_heads}; "
                "change num_heads"
            )
        if self.positions == "sinusoidal" and (self.model_dim % 2 or self.model_dim < 4):
            raise ValueError(
                f"model_dim must be even and at least 4 for sinusoidal positions, got {self.model_dim}; "
                "change it, or take rotary positions"
            )
