"""LSTMLM: a plain LSTM that predicts the next word, with any input and output layer.

Shapes: B batch, N positions, L layers, D how wide the vectors of words are, H how wide the layers are.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.models.language_model.model import LanguageModel, check_ids, check_output, check_vectors
from anymax.models.lstm.config import LSTMConfig
from anymax.models.lstm.layer import LSTMStack, RecurrentState
from anymax.vocabulary import OutputLayer


class LSTMLM(LanguageModel):
    """Words in, the loss of the words that follow out, by layers that carry a state from word to word.

    Given the state of the batch before it as `cache`, it continues from there.

    Args:
        input: a layer from ids to vectors of the config's input_dim, as in `anymax.vocabulary`.
        output: a layer from vectors of the config's hidden_dim to a loss.
        config: sizes and dropout.

    Grave et al. 2017.

    Example:
        >>> from anymax.models import LSTMLM, LSTMConfig
        >>> from anymax.vocabulary import FixedInput, FullOutput
        >>> model = LSTMLM(FixedInput(20, 8), FullOutput(20, 16), LSTMConfig(input_dim=8, hidden_dim=16))
        >>> ids = torch.randint(20, (2, 6))
        >>> model(ids[:, :-1], ids[:, 1:], "none").shape
        torch.Size([2, 5])
    """

    carries_state = True

    def __init__(self, input: nn.Module, output: OutputLayer, config: LSTMConfig) -> None:
        super().__init__()
        check_output(output, "hidden_dim", config.hidden_dim)
        self.config = config
        self.input = input
        self.lstm = LSTMStack(
            config.input_dim,
            config.hidden_dim,
            config.num_layers,
            # Torch drops between layers, and warns where there is nothing between.
            dropout=config.dropout if config.num_layers > 1 else 0.0,
        )
        self.output = output

    def hidden(self, ids: Tensor, cache: RecurrentState | None = None) -> Tensor:
        """The vectors that the output layer reads, (batch, positions, hidden_dim).

        Args:
            ids: (batch, positions).
            cache: the state before these positions; it becomes the state after them.
        """
        check_ids(ids)
        vectors_BND = self.input(ids)
        check_vectors(vectors_BND, "input_dim", self.config.input_dim)
        layers = None if cache is None else cache.read(len(ids))
        start = None if layers is None else tuple(torch.stack(held) for held in zip(*layers, strict=True))
        # Torch computes position by position, and its batch_first is a view that FSDP2 warns of.
        hidden_NBH, (last_LBH, cell_LBH) = self.lstm(self._drop(vectors_BND).transpose(0, 1), start)
        if cache is not None:
            cache.write(zip(last_LBH, cell_LBH, strict=True))
        return self._drop(hidden_NBH.transpose(0, 1))

    def new_cache(self, max_length: int | None = None) -> RecurrentState:
        """A state that has read nothing; it takes the same room for any length."""
        return RecurrentState()

    def layers(self) -> list[nn.Module]:
        return [self.lstm]

    def _drop(self, vectors: Tensor) -> Tensor:
        return F.dropout(vectors, self.config.dropout, self.training)
