"""What a polytope is: structures as 0/1 tensors, the best of them, the sum over all, and what SparseMAP needs.

Shapes: N examples, S structures, * the dimensions of one structure.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from anymax.mappings.arguments import computed_in

# Stands for -inf where 0 * -inf and -inf - -inf would spoil sums and gradients.
FORBIDDEN = -1e30


class Rows(NamedTuple):
    """Scores laid out as (N, *), with the polytope that fits them, and which rows hold a NaN and were set to zero."""

    scores: Tensor
    polytope: "Polytope"
    spoiled: Tensor


class Polytope(ABC):
    """The convex hull of structures, each a 0/1 tensor over the last dimensions of the scores.

    It answers three questions about scores of any batch shape: `argmax`, `log_partition` and `marginals`. A new
    polytope gives `check` and `best`, `log_total` if there is an efficient one, and `extra` if a structure has a score
    beside the sum of its entries' scores; `sparsemap` then works on it by the active set.

    Example:
        >>> from anymax.structured import Polytope, sparsemap
        >>> class OneOf(Polytope):
        ...     event_dim = 1
        ...     def check(self, shape):
        ...         pass
        ...     def best(self, scores):
        ...         return torch.eye(scores.shape[-1])[scores.argmax(-1)].to(scores)
        >>> sparsemap(torch.tensor([2.0, 1.5, 0.5]), OneOf()).marginals  # sparsemax
        tensor([0.7500, 0.2500, 0.0000])
    """

    event_dim: ClassVar[int]
    """How many of the scores' last dimensions make one structure."""
    decompositions: ClassVar[tuple[str, ...]] = ("active set",)
    """Ways to split the marginals into structures, the default first."""

    def decomposition(self, name: str | None) -> str:
        """The name of one of its decompositions, where none is given of the first; others are refused."""
        if name is not None and name not in self.decompositions:
            offered = ", ".join(map(repr, self.decompositions))
            raise ValueError(f"decomposition of {type(self).__name__} must be one of {offered}, got {name!r}")
        return name or self.decompositions[0]

    @abstractmethod
    def check(self, shape: torch.Size) -> None:
        """Refuse scores of a shape that does not fit."""

    @abstractmethod
    def best(self, scores: Tensor) -> Tensor:
        """The structure of largest score, for rows (N, *)."""

    def log_total(self, scores: Tensor) -> Tensor:
        """The log of the sum of exp(score) over all structures, for rows (N, *)."""
        raise NotImplementedError(f"{type(self).__name__} has no efficient sum-product; use argmax or sparsemap")

    def extra(self, structures: Tensor) -> Tensor:
        """What structures (N, S, *) score beside the sum of their entries' scores: (N, S)."""
        return structures.new_zeros(structures.shape[:2])

    def plain(self, scores: Tensor) -> Tensor:
        """Scores for which maximizing <scores, mu> - |mu|^2 / 2 gives this polytope's SparseMAP."""
        return scores

    def bounded(self, plain_scores: Tensor) -> Tensor:
        """Finite scores with the same SparseMAP as rows (N, *) of plain ones, no larger than it needs."""
        return plain_scores.clamp(min=FORBIDDEN)

    @property
    def requires_grad(self) -> bool:
        """Whether the polytope has tensors of its own that want a gradient."""
        return False

    def fit(self, scores: Tensor) -> Self:
        """This polytope with its own tensors laid out for scores (*batch, *): one row per example, the same dtype."""
        return self

    def select(self, index: Tensor) -> Self:
        """This polytope for some of its rows."""
        return self

    def inside(self, values: Tensor) -> Tensor:
        """Rows (N, *) with zeros where an example has no entry."""
        return values

    def is_spoiled(self, scores: Tensor) -> Tensor:
        """Which rows (N, *) have no answer: they hold a NaN or +inf, or every structure is forbidden."""
        return (scores.isnan() | (scores == torch.inf)).flatten(1).any(1)

    def rows(self, scores: Tensor, dtype: torch.dtype | None = None) -> Rows:
        """Check scores of any batch shape and lay them out as rows."""
        if not isinstance(scores, Tensor):
            raise TypeError(f"scores must be a tensor, got {type(scores).__name__}; wrap it with torch.as_tensor")
        if not scores.is_floating_point():
            raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with .float()")
        if scores.dim() < self.event_dim or 0 in self._event(scores):
            raise ValueError(
                f"scores of {type(self).__name__} must end in {self.event_dim} dimension(s) with at least one entry, "
                f"got shape {tuple(scores.shape)}"
            )
        self.check(scores.shape)
        scores = scores.to(dtype or computed_in(scores.dtype))
        fitted = self.fit(scores)
        flat = fitted.inside(scores.reshape(self._batch(scores).numel(), *self._event(scores)))
        spoiled = fitted.is_spoiled(flat)
        return Rows(torch.where(spoiled.view(-1, *[1] * self.event_dim), 0, flat), fitted, spoiled)

    def argmax(self, scores: Tensor) -> Tensor:
        """The structure of largest score; the same one of several that tie, every time."""
        rows = self.rows(scores)
        structures = rows.polytope.best(rows.scores.detach())
        return spoil(structures, rows.spoiled).to(scores.dtype).reshape(scores.shape)

    def log_partition(self, scores: Tensor) -> Tensor:
        """The log of the sum, over all structures, of exp(score)."""
        rows = self.rows(scores)
        total = rows.polytope.log_total(rows.scores)
        return spoil(total, rows.spoiled).to(scores.dtype).reshape(self._batch(scores))

    def marginals(self, scores: Tensor) -> Tensor:
        """How probable each entry is when a structure's probability is proportional to exp(score)."""
        rows = self.rows(scores)
        is_recorded = torch.is_grad_enabled() and (rows.scores.requires_grad or rows.polytope.requires_grad)
        with torch.enable_grad():
            point = rows.scores if rows.scores.requires_grad else rows.scores.detach().requires_grad_()
            total = rows.polytope.log_total(point).sum()
            (marginals,) = torch.autograd.grad(total, point, create_graph=is_recorded)
        return spoil(marginals, rows.spoiled).to(scores.dtype).reshape(scores.shape)

    def _batch(self, scores: Tensor) -> torch.Size:
        return scores.shape[: scores.dim() - self.event_dim]

    def _event(self, scores: Tensor) -> torch.Size:
        return scores.shape[scores.dim() - self.event_dim :]


def spoil(values: Tensor, spoiled: Tensor) -> Tensor:
    """Values (N, ...) with NaN in the spoiled rows."""
    return values.masked_fill(spoiled.view(-1, *[1] * (values.dim() - 1)), torch.nan)
