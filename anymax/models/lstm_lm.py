"""LSTMLM: a plain LSTM that predicts the next word, with any input and output layer.

Shapes: B batch, N positions, L layers, D how wide the vectors of words are, H how wide the layers are.
"""

from collections.abc import Mapping
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from anymax.models.language_model import LanguageModel, check_ids, check_output, check_vectors
from anymax.models.lstm_config import LSTMConfig
from anymax.vocabulary import OutputLayer

SAVED = ("hidden", "cell")


class RecurrentState:
    """Where an LSTM stands: nothing at first, then what every layer holds after the last position it read.

    It holds no gradients, so what reads it next is trained up to here and no further back.
    """

    def __init__(self) -> None:
        self._held: tuple[Tensor, Tensor] | None = None

    def read(self, batch: int) -> tuple[Tensor, Tensor] | None:
        """Hidden vectors and cells, both (layers, batch, hidden_dim); None at the start."""
        if self._held is not None and self._held[0].shape[1] != batch:
            raise ValueError(
                f"ids must have as many rows as the state before them, {self._held[0].shape[1]}, got {batch}; "
                "begin with a new state for another batch"
            )
        return self._held

    def write(self, hidden_LBH: Tensor, cell_LBH: Tensor) -> None:
        self._held = (hidden_LBH.detach(), cell_LBH.detach())

    def tensors(self) -> dict[str, Tensor]:
        """What to save, hidden vectors and cells, both (layers, batch, hidden_dim); empty at the start."""
        return {} if self._held is None else dict(zip(SAVED, self._held, strict=True))

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The state whose `tensors` were saved."""
        state = cls()
        if tensors:
            _check_saved(tensors)
            state.write(*(tensors[name] for name in SAVED))
        return state


class LSTMLM(LanguageModel):
    """Words in, the loss of the words that follow out, by layers that carry a state from word to word.

    Given the state of the batch before it as `cache`, it goes on from there.

    Args:
        input: a layer from ids to vectors of the config's input_dim, as in `anymax.vocabulary`.
        output: a layer from vectors of the config's hidden_dim to a loss.
        config: sizes and dropout.

    Grave et al. 2017.
    """

    carries_state = True

    def __init__(self, input: nn.Module, output: OutputLayer, config: LSTMConfig) -> None:
        super().__init__()
        check_output(output, "hidden_dim", config.hidden_dim)
        self.config = config
        self.input = input
        self.lstm = nn.LSTM(
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
        start = None if cache is None else cache.read(len(ids))
        # Torch computes position by position, and its batch_first is a view that FSDP2 warns of.
        hidden_NBH, (last_LBH, cell_LBH) = self.lstm(self._drop(vectors_BND).transpose(0, 1), start)
        if cache is not None:
            cache.write(last_LBH, cell_LBH)
        return self._drop(hidden_NBH.transpose(0, 1))

    def new_cache(self, max_length: int | None = None) -> RecurrentState:
        """A state that has read nothing; it takes the same room for any length."""
        return RecurrentState()

    def layers(self) -> list[nn.Module]:
        return [self.lstm]

    def _drop(self, vectors: Tensor) -> Tensor:
        return F.dropout(vectors, self.config.dropout, self.training)


def _check_saved(tensors: Mapping[str, Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if set(shapes) != set(SAVED) or shapes["hidden"] != shapes["cell"] or len(shapes["cell"]) != 3:
        raise ValueError(
            f"tensors must be hidden and cell, both (layers, batch, hidden_dim), or nothing, got {shapes}; "
            "give what RecurrentState.tensors gave"
        )
