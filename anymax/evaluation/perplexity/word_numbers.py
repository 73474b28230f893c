"""Which word of a text each piece of it belongs to, looked up anywhere in a stream of pieces."""

import torch
from torch import Tensor

# Words are counted once up to the start of every chunk, and within a chunk when it is looked into.
CHUNK = 1 << 16


class WordNumbers:
    """Pieces to words: a word is all the pieces up to one that ends it.

    Args:
        tokens: the stream of pieces; may be mapped from a file.
        ends_word: true for every id that completes a word.
    """

    def __init__(self, tokens: Tensor, ends_word: Tensor) -> None:
        self.tokens = tokens
        self.ends_word = ends_word.cpu()
        in_chunks = [0, *(int(self.ends_word[chunk.long()].sum()) for chunk in tokens.split(CHUNK))]
        self._before = torch.tensor(in_chunks).cumsum(0)

    def __len__(self) -> int:
        """How many words end in the stream."""
        return int(self._before[-1])

    def of(self, start: int, end: int) -> Tensor:
        """The number, from 0, of the word that each piece from `start` to `end` belongs to, int64."""
        chunk = start // CHUNK
        pieces = self.tokens[chunk * CHUNK : end].long()
        ended = self.ends_word[pieces].cumsum(0)
        # A piece that ends a word still belongs to it.
        before = torch.cat([ended.new_zeros(1), ended[:-1]])
        return (before + self._before[chunk])[start - chunk * CHUNK :]
