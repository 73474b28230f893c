"""AWDLSTM: an LSTM whose weights, words and vectors are dropped in training, with any input and output layer.

Shapes: B batch, N positions, D how wide the vectors of words are, H how wide a layer is.
"""

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor, nn

from anymax.models.language_model.model import LanguageModel, check_ids, check_output, check_vectors
from anymax.models.lstm.config import AWDLSTMConfig
from anymax.models.lstm.layer import LSTMLayer, RecurrentState
from anymax.regularizers import activation_penalty, temporal_penalty, variational_dropout, word_dropout
from anymax.vocabulary import FixedInput, OutputLayer
from anymax.vocabulary.output import TableOutput

# The published start of the tables of an AWD-LSTM.
TABLE_BOUND = 0.1


class AWDLSTM(LanguageModel):
    """Words in, the loss of the words that follow out, by layers that carry a state from word to word.

    In training every call drops words, entries of vectors and entries of the recurrent weights, each by one draw for
    all positions, and adds penalties on the outputs of the last layer. Given the state of the batch before it as
    `cache`, it continues from there.

    Args:
        input: a layer from ids to vectors of the config's input_dim, as in `anymax.vocabulary`.
        output: a layer from vectors of the config's output_dim to a loss. Tied to the input, it scores with the whole
            table, also where words are dropped.
        config: sizes, dropout rates and penalties.

    Merity et al. 2018.

    Example:
        >>> from anymax.models import AWDLSTM, AWDLSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> config = AWDLSTMConfig(input_dim=8, hidden_dim=12, num_layers=2, output_dim=8)
        >>> model = AWDLSTM(FixedInput(20, 8), FullOutput(20, 8), config)
        >>> ids = torch.randint(20, (2, 6))
        >>> state = model.new_cache()
        >>> loss = model(ids[:, :-1], ids[:, 1:], cache=state)
        >>> bool(loss > 0), bool(model.penalty > 0)
        (True, True)
    """

    carries_state = True

    def __init__(self, input: nn.Module, output: OutputLayer, config: AWDLSTMConfig) -> None:
        super().__init__()
        check_output(output, "output_dim", config.output_dim)
        self.config = config
        self.input = input
        self.lstms = nn.ModuleList(
            LSTMLayer(into, out, weight_dropout=config.weight_dropout)
            for into, out in pairwise((config.input_dim, *config.widths))
        )
        self.output = output

    def forward(
        self, ids: Tensor, target: Tensor, reduction: str = "mean", cache: RecurrentState | None = None
    ) -> Tensor:
        """The loss of predicting `target`, the words that follow `ids`, and in training the penalties.

        A penalty is a mean over the positions that count. It is added to the "mean", and times their number to the
        "sum"; to losses of single tokens, "none", it is not. `penalty` is what was added in all.

        Args:
            ids, target: (batch, positions).
            reduction: "mean", "sum" or "none", as the output layer has them.
            cache: the state before these positions; it becomes the state after them.
        """
        read = self._read(ids, cache)
        loss = self.output(read.dropped_BNH, target, reduction)
        counted_BN = target != self.output.ignore_index
        penalty = self._penalty(read, counted_BN) if self.training and reduction != "none" else None
        if penalty is not None and reduction == "sum":
            penalty = penalty * counted_BN.sum()
        self.penalty = None if penalty is None else penalty.detach()
        return loss if penalty is None else loss + penalty

    def hidden(self, ids: Tensor, cache: RecurrentState | None = None) -> Tensor:
        """The vectors that the output layer reads, (batch, positions, output_dim); in training with dropout.

        Args:
            ids: (batch, positions).
            cache: the state before these positions; it becomes the state after them.
        """
        return self._read(ids, cache).dropped_BNH

    def new_cache(self, max_length: int | None = None) -> RecurrentState:
        """A state that has read nothing; it takes the same room for any length."""
        return RecurrentState()

    def layers(self) -> list[nn.Module]:
        return list(self.lstms)

    def _read(self, ids: Tensor, cache: RecurrentState | None) -> "Read":
        check_ids(ids)
        hidden_NBH = self._drop(self._embed(ids).transpose(0, 1), self.config.input_dropout)
        starts = None if cache is None else cache.read(len(ids))
        ends = []
        for i, lstm in enumerate(self.lstms):
            if i > 0:
                hidden_NBH = self._drop(hidden_NBH, self.config.layer_dropout)
            hidden_NBH, end = lstm(hidden_NBH, None if starts is None else starts[i])
            ends.append(end)
        if cache is not None:
            cache.write(ends)
        dropped_NBH = self._drop(hidden_NBH, self.config.output_dropout)
        return Read(hidden_NBH.transpose(0, 1), dropped_NBH.transpose(0, 1))

    def _embed(self, ids: Tensor) -> Tensor:
        vectors_BND = self.input(ids)
        check_vectors(vectors_BND, "input_dim", self.config.input_dim)
        size = self.output.vocabulary_size
        return word_dropout(vectors_BND, ids, size, self.config.word_dropout, training=self.training)

    def _drop(self, vectors_NBH: Tensor, rate: float) -> Tensor:
        return variational_dropout(vectors_NBH, rate, dim=0, training=self.training)

    def _penalty(self, read: "Read", counted_BN: Tensor) -> Tensor | None:
        """What both penalties add to a mean; None where the config wants none."""
        config = self.config
        parts = []
        if config.activation:
            parts.append(config.activation * activation_penalty(read.dropped_BNH, counted_BN, kind=config.penalty))
        if config.temporal_activation:
            moved = temporal_penalty(read.raw_BNH, counted_BN, kind=config.penalty)
            parts.append(config.temporal_activation * moved)
        return sum(parts[1:], parts[0]) if parts else None


class Read(NamedTuple):
    """What left the last layer, before and after dropout."""

    raw_BNH: Tensor
    dropped_BNH: Tensor


def draw_as_published(input: nn.Module, output: OutputLayer) -> None:
    """Draw the tables of an AWD-LSTM, which start smaller than those of other models; layers without one stay."""
    if isinstance(input, FixedInput):
        nn.init.uniform_(input.table, -TABLE_BOUND, TABLE_BOUND)
    if isinstance(output, TableOutput) and not (isinstance(input, FixedInput) and output.table is input.table):
        nn.init.uniform_(output.table, -TABLE_BOUND, TABLE_BOUND)
