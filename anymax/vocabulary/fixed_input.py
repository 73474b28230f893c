"""FixedInput: one table of vectors for all words, projected where it is narrower than the model.

Also the checks of ids that every input layer makes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.checks import check_counts
from anymax.mappings.arguments import check_values


class FixedInput(nn.Module):
    """Vectors of words from one table.

    Args:
        vocabulary_size: number of words.
        model_dim: the dimension of the vectors that come out.
        dim: the dimension of the table, by default that of the model. Where they differ, a projection without bias
            leads from one to the other.
        padding_index: a word whose vector is zero and whose row gets no gradient from here.

    Example:
        >>> layer = anymax.vocabulary.FixedInput(1000, 16, padding_index=0)
        >>> vectors = layer(torch.tensor([[5, 7, 0]]))
        >>> vectors.shape, vectors[0, 2].abs().sum().item()
        (torch.Size([1, 3, 16]), 0.0)
    """

    projection: nn.Parameter | None

    def __init__(
        self, vocabulary_size: int, model_dim: int, *, dim: int | None = None, padding_index: int | None = None
    ) -> None:
        super().__init__()
        dim = model_dim if dim is None else dim
        check_counts(vocabulary_size=vocabulary_size, model_dim=model_dim, dim=dim)
        check_index("padding_index", padding_index, vocabulary_size)
        self.padding_index = padding_index
        self.table = nn.Parameter(torch.empty(vocabulary_size, dim))
        self.projection = None if dim == model_dim else nn.Parameter(torch.empty(model_dim, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.table.shape[1] ** -0.5)
        if self.projection is not None:
            nn.init.xavier_uniform_(self.projection)
        if self.padding_index is not None:
            nn.init.zeros_(self.table[self.padding_index])

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`, of any shape, in one more dimension."""
        check_ids(ids, self.table.shape[0])
        vectors = F.embedding(ids, self.table)
        if self.padding_index is not None:
            # By mask and not by the row: a tied output trains the row.
            vectors = vectors.masked_fill((ids == self.padding_index)[..., None], 0)
        return vectors if self.projection is None else F.linear(vectors, self.projection)

    def extra_repr(self) -> str:
        size, dim = self.table.shape
        model_dim = dim if self.projection is None else self.projection.shape[0]
        return f"vocabulary_size={size}, model_dim={model_dim}, dim={dim}, padding_index={self.padding_index}"


def check_ids(ids: Tensor, vocabulary_size: int) -> None:
    """Ids are integers of the vocabulary; their values are checked where they can be read without waiting."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"ids must be an int64 or int32 tensor, got {got}; convert with .long() or torch.tensor")
    rule = f"from 0 to {vocabulary_size - 1}, as the vocabulary has {vocabulary_size} words"
    check_values("ids", rule, ids, lambda i: (i >= 0) & (i < vocabulary_size))


def check_index(name: str, index: int | None, vocabulary_size: int) -> None:
    """The id of a special word is one of the vocabulary, or None where there is no such word."""
    if index is not None and not 0 <= index < vocabulary_size:
        raise ValueError(
            f"{name} must be a word of the vocabulary, from 0 to {vocabulary_size - 1}, got {index}; "
            "negative numbers do not count from the end"
        )
