"""Configs of recurrent language models, as plain data that imports no torch."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

from anymax.models.sizes import check_sizes

if TYPE_CHECKING:
    from torch import nn

    from anymax.attention.config import AttentionMappingConfig
    from anymax.models.lstm.awd_lstm import AWDLSTM
    from anymax.models.lstm.model import LSTMLM
    from anymax.vocabulary import OutputLayer


@dataclass(frozen=True)
class LSTMConfig:
    """Sizes and dropout of an LSTM; the defaults are those of Grave et al. 2017.

    Args:
        input_dim: how wide the vectors of words are that the first layer reads.
        hidden_dim: how wide every layer is, and what the output layer reads.
        num_layers: number of layers.
        dropout: the rate for the inputs of every layer and the outputs of the last.

    Example:
        >>> from anymax.models import LSTMConfig
        >>> LSTMConfig(hidden_dim=512, num_layers=2, dropout=0.1).output_dim
        512
    """

    carries_state: ClassVar[bool] = True

    input_dim: int = 256
    hidden_dim: int = 512
    num_layers: int = 1
    _: KW_ONLY
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self.num_layers, input_dim=self.input_dim, hidden_dim=self.hidden_dim)
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout must be between 0 and 1, got {self.dropout}")

    @property
    def output_dim(self) -> int:
        """How wide the vectors are that the output layer reads."""
        return self.hidden_dim

    @property
    def widths(self) -> tuple[int, ...]:
        """How wide each layer is."""
        return (self.hidden_dim,) * self.num_layers

    def build(self, input: nn.Module, output: OutputLayer, mapping: AttentionMappingConfig) -> LSTMLM:
        """The language model between an input and an output layer; there is no attention to map."""
        from anymax.models.lstm.model import LSTMLM

        return LSTMLM(input, output, self)

    def toy(self) -> Self:
        """The same model at a size for tests."""
        input_dim = 16 if self.input_dim == self.hidden_dim else 8
        return replace(self, input_dim=input_dim, hidden_dim=16, num_layers=min(self.num_layers, 2))


Penalty = Literal["mean_square", "norm"]
DROPOUTS = ("word_dropout", "input_dropout", "layer_dropout", "output_dropout", "weight_dropout")


@dataclass(frozen=True)
class AWDLSTMConfig:
    """Sizes, dropout rates and penalties of an AWD-LSTM; the defaults are those of Merity et al. 2018's code.

    Args:
        input_dim: how wide the vectors of words are that the first layer reads.
        hidden_dim: how wide every layer but the last is.
        num_layers: number of layers.
        output_dim: how wide the last layer is, which the output layer reads.
        word_dropout: the rate for words of the vocabulary, whose vectors are zero all through a batch.
        input_dropout: the rate for entries of the vectors of words, the same ones at all positions of a row; so are
            those of the next two.
        layer_dropout: the rate between layers.
        output_dropout: the rate for the outputs of the last layer.
        weight_dropout: the rate for the hidden-to-hidden weights of every layer.
        activation: the weight in the loss of activation regularization, the size of the last layer's outputs after
            dropout.
        temporal_activation: the weight of their change from position to position, before dropout.
        penalty: whether both are a "mean_square", as in the authors' code, or a "norm", as the paper prints them.

    Example:
        >>> from anymax.models import AWDLSTMConfig
        >>> AWDLSTMConfig().widths
        (1150, 1150, 400)
        >>> AWDLSTMConfig(weight_dropout=0.2, penalty="norm").penalty
        'norm'
    """

    carries_state: ClassVar[bool] = True

    input_dim: int = 400
    hidden_dim: int = 1150
    num_layers: int = 3
    output_dim: int = 400
    _: KW_ONLY
    word_dropout: float = 0.1
    input_dropout: float = 0.65
    layer_dropout: float = 0.3
    output_dropout: float = 0.4
    weight_dropout: float = 0.5
    activation: float = 2.0
    temporal_activation: float = 1.0
    penalty: Penalty = "mean_square"

    def __post_init__(self) -> None:
        check_sizes(self.num_layers, input_dim=self.input_dim, hidden_dim=self.hidden_dim, output_dim=self.output_dim)
        for name in DROPOUTS:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name in ("activation", "temporal_activation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")
        if self.penalty not in get_args(Penalty):
            raise ValueError(f"penalty must be one of {get_args(Penalty)}, got {self.penalty!r}")

    @property
    def widths(self) -> tuple[int, ...]:
        """How wide each layer is; a single one is the last."""
        return (*(self.hidden_dim,) * (self.num_layers - 1), self.output_dim)

    def build(self, input: nn.Module, output: OutputLayer, mapping: AttentionMappingConfig) -> AWDLSTM:
        """The language model between an input and an output layer, whose tables it draws anew as published."""
        from anymax.models.lstm.awd_lstm import AWDLSTM, draw_as_published

        draw_as_published(input, output)
        return AWDLSTM(input, output, self)

    def toy(self) -> Self:
        """The same model at a size for tests."""
        input_dim = 16 if self.input_dim == self.output_dim else 8
        hidden_dim = 16 if self.hidden_dim == self.output_dim else 24
        return replace(
            self, input_dim=input_dim, hidden_dim=hidden_dim, num_layers=min(self.num_layers, 2), output_dim=16
        )
