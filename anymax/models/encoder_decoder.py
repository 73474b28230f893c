"""EncoderDecoder: what all models offer to decoding that write while they attend to an encoder's output."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from anymax.models.transformer.decoder import Decoder, DecoderCache
from anymax.vocabulary import OutputLayer


class EncoderDecoder(nn.Module):
    """A `Generator` of a decoder, and of what a model does before it: reading its inputs, and vectors of words."""

    decoder: Decoder
    output: OutputLayer
    max_positions: int | None

    @abstractmethod
    def remember(self, inputs: Any) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the decoder attends to, (batch, memory positions, D), and where it may, (batch, memory positions).

        Those of two encoders, where there are two.

        Args:
            inputs: one row for each sentence.
        """

    @abstractmethod
    def embed_target(self, ids: Tensor, start: int = 0) -> Tensor:
        """What enters the decoder for words at the positions from `start` on, (batch, positions, D)."""

    @torch.no_grad()
    def start(self, inputs: Any, *, max_length: int) -> DecoderCache:
        """Encode sentences, once, to decode what follows from them word by word: what `next` continues from.

        Args:
            inputs: one row for each sentence.
            max_length: the number of words that there is room to read.
        """
        if self.max_positions is not None and max_length > self.max_positions:
            raise ValueError(
                f"max_length must be at most the model's max_positions, {self.max_positions}, got {max_length}"
            )
        return self.decoder.new_cache(*self.remember(inputs), max_length=max_length)

    @torch.no_grad()
    def next(self, ids: Tensor, state: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Read one word more of every row: the vectors that the next is predicted from, (batch, D).

        Args:
            ids: (batch,), at first the word that begins every target.
            state: of `start`; it is changed in place.
        """
        if ids.dim() != 1:
            raise ValueError(f"ids must be (batch,), one word for every row, got shape {tuple(ids.shape)}")
        hidden_B1D = self.decoder(self.embed_target(ids[:, None], state.length), cache=state)
        return hidden_B1D[:, 0], state

    @abstractmethod
    def in_order(self) -> list[nn.Module]:
        """The modules that are worth sharding one by one, in the order they run."""

    @abstractmethod
    def attention_layers(self) -> dict[str, list[nn.Module]]:
        """Layers in which heads attend, by the name that stands before their number in logs."""

    @abstractmethod
    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        """Methods besides forward that read parameters, of this and of the modules within, as FSDP2 must know them."""

    def reorder(self, state: DecoderCache, index: Tensor) -> DecoderCache:
        """Keep the rows that `index` names, in its order, which may be more or fewer; the state is changed in place."""
        state.reorder(index)
        return state
