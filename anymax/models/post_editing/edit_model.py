"""EditModel: what all models offer that read a sentence and its translation, and write that corrected.

Shapes: B batch, S positions of sentence and translation, T of the correction, D the decoder's dimension.
"""

from abc import abstractmethod

from torch import Tensor

from anymax.models.encoder_decoder import EncoderDecoder

# Source, its mask, segments and positions, as in `EditModel.forward`.
Inputs = tuple[Tensor, Tensor | None, Tensor, Tensor]


class EditModel(EncoderDecoder):
    """A sentence and its translation in, the loss of the words of the corrected translation out."""

    max_positions: int
    # The id of what stands before every sentence that is written.
    first: int

    @abstractmethod
    def hidden(
        self,
        ids: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        second_memory: Tensor | None = None,
        second_mask: Tensor | None = None,
    ) -> Tensor:
        """The vectors that the output layer reads, (batch, target positions, D).

        Args:
            ids: (batch, target positions), the pieces before those that are predicted.
            memory, memory_mask, second_memory, second_mask: what `remember` gave.
        """

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor | None,
        segments: Tensor,
        positions: Tensor,
        ids: Tensor,
        target: Tensor,
        reduction: str = "mean",
    ) -> Tensor:
        """The loss of predicting `target`, the pieces that follow `ids`, both (batch, target positions).

        Args:
            source: (batch, source positions), the pieces of the sentence, then those of its translation.
            source_mask: (batch, source positions), true where a piece stands: false for padding. None for everywhere.
            segments: (batch, source positions), 0 for the sentence and 1 for its translation.
            positions: (batch, source positions), the place of a piece in its segment.
            reduction: "mean", "sum" or "none", as the output layer has them.
        """
        remembered = self.remember((source, source_mask, segments, positions))
        return self.output(self.hidden(ids, *remembered), target, reduction)

    def first_words(self, inputs: Inputs, eos: int) -> Tensor:
        """What stands before each sentence that is written, (batch,)."""
        return inputs[0].new_full(inputs[0].shape[:1], self.first)
