"""What the output layers with one table for all words share: the table, its projection and its bias."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anymax.mappings.arguments import check_positive
from anymax.vocabulary.output import OutputLayer, widened


class TableOutput(OutputLayer):
    """An output layer that scores every word by one vector of a table.

    Args:
        dim: how wide the table is; by default as wide as the model.
        bias: whether every word has a number added to its score.
        projected: whether a projection stands between the model and a table of another width.
    """

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        *,
        dim: int | None,
        bias: bool,
        projected: bool = True,
        ignore_index: int,
        memory_budget: int | None,
    ) -> None:
        super().__init__(vocabulary_size, model_dim, ignore_index=ignore_index, memory_budget=memory_budget)
        dim = model_dim if dim is None else dim
        check_positive(dim=dim)
        self.dim = dim
        self.table = nn.Parameter(torch.empty(vocabulary_size, dim))
        needs_projection = projected and dim != model_dim
        self.projection = nn.Parameter(torch.empty(model_dim, dim)) if needs_projection else None
        self.bias = nn.Parameter(torch.empty(vocabulary_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.dim**-0.5)
        if self.projection is not None:
            nn.init.xavier_uniform_(self.projection)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.vocabulary_size}, {self.model_dim}, dim={self.dim}, bias={self.bias is not None}"

    def _prepare(self, hidden: Tensor) -> Tensor:
        """Hidden vectors, checked, in the type of the parameters."""
        self._check_hidden(hidden)
        return hidden.to(self.table.dtype)

    def _project(self, hidden: Tensor) -> Tensor:
        """Hidden vectors, checked, as wide as the table."""
        hidden = self._prepare(hidden)
        return hidden if self.projection is None else hidden @ self.projection

    def _scores(self, vectors: Tensor, transform: nn.Module | None = None) -> Tensor:
        """The score of every word, from vectors as wide as the table."""
        scores = widened(F.linear(vectors, self.table, self.bias))
        return scores if transform is None else transform(scores)
