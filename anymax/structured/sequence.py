"""Sequences: one tag per position, with a score for every step from one tag to the next.

Shapes: N examples, S structures, L positions, T tags.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from anymax.mappings.arguments import check_device
from anymax.structured.polytope import FORBIDDEN, Polytope


@dataclass(frozen=True, eq=False)
class Sequence(Polytope):
    """One tag at each position of scores (..., L, T), as one-hot rows.

    SparseMAP squares the tags' marginals alone; transitions enter linearly. A score of -inf, of a tag or of a
    transition, forbids it; an example that is left with no sequence gets NaN.

    Args:
        transitions: scores [from, to] of shape (T, T), the same at every step, or (*batch, L - 1, T, T); they may
            require a gradient.
        lengths: how many of the L positions each example has, of the batch's shape; what lies beyond is ignored and
            stays zero. By default all of them.

    Example:
        >>> from anymax.structured import Sequence, sparsemap
        >>> polytope = Sequence(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))  # tags tend to stay
        >>> scores = torch.tensor([[1.0, 0.0], [0.0, 0.2], [1.0, 0.0]])
        >>> polytope.argmax(scores).argmax(-1)
        tensor([0, 0, 0])
        >>> sparsemap(scores, polytope).marginals
        tensor([[0.8000, 0.2000],
                [0.8000, 0.2000],
                [0.8000, 0.2000]])
    """

    transitions: Tensor
    lengths: Tensor | None = None
    event_dim: ClassVar[int] = 2

    def __post_init__(self) -> None:
        for name, value in (("transitions", self.transitions), ("lengths", self.lengths)):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        shape = tuple(self.transitions.shape)
        if not self.transitions.is_floating_point():
            raise TypeError(f"transitions must be floating point, got {self.transitions.dtype}; convert with .float()")
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ValueError(f"transitions must have shape (T, T) or (*batch, L - 1, T, T), got {shape}")
        if self.lengths is not None and (self.lengths.is_floating_point() or self.lengths.dtype == torch.bool):
            raise TypeError(f"lengths must be integers, got {self.lengths.dtype}")

    def check(self, shape: torch.Size) -> None:
        *batch, num_positions, num_tags = shape
        wanted = {(num_tags, num_tags), (*batch, num_positions - 1, num_tags, num_tags)}
        if tuple(self.transitions.shape) not in wanted:
            raise ValueError(
                f"transitions must have shape {' or '.join(map(str, sorted(wanted, key=len)))} "
                f"for scores of shape {tuple(shape)}, got {tuple(self.transitions.shape)}"
            )
        if self.lengths is None:
            return
        if list(self.lengths.shape) != batch:
            raise ValueError(
                f"lengths must have the batch shape of the scores {tuple(batch)}, got {tuple(self.lengths.shape)}"
            )
        wrong = (self.lengths < 1) | (self.lengths > num_positions)
        if bool(wrong.any()):
            raise ValueError(
                f"lengths must be between 1 and the {num_positions} positions, got {self.lengths[wrong][0].item()}"
            )

    def fit(self, scores: Tensor) -> Self:
        check_device("transitions", self.transitions, scores)
        transitions = self.transitions.to(scores.dtype).clamp(min=FORBIDDEN)
        lengths = None if self.lengths is None else self.lengths.reshape(-1).to(scores.device)
        if transitions.dim() > 2:
            transitions = transitions.reshape(scores.shape[:-2].numel(), *transitions.shape[-3:])
            if lengths is not None:
                arrivals = torch.arange(1, scores.shape[-2], device=scores.device)
                transitions = torch.where((arrivals < lengths[:, None])[:, :, None, None], transitions, 0)
        return replace(self, transitions=transitions, lengths=lengths)

    def select(self, index: Tensor) -> Self:
        transitions = self.transitions if self.transitions.dim() == 2 else self.transitions[index]
        return replace(self, transitions=transitions, lengths=None if self.lengths is None else self.lengths[index])

    def inside(self, values: Tensor) -> Tensor:
        if self.lengths is None:
            return values
        positions = torch.arange(values.shape[1], device=values.device)
        return torch.where((positions < self.lengths[:, None])[:, :, None], values, 0)

    @property
    def requires_grad(self) -> bool:
        return self.transitions.requires_grad

    def is_spoiled(self, scores: Tensor) -> Tensor:
        is_wrong = self.transitions.isnan() | (self.transitions == torch.inf)
        spoiled = super().is_spoiled(scores) | (is_wrong.any() if is_wrong.dim() == 2 else is_wrong.flatten(1).any(1))
        if not bool((self.transitions == FORBIDDEN).any() | (scores == -torch.inf).any()):
            return spoiled
        scores = scores.detach().clamp(min=FORBIDDEN)
        best = self.best(scores)
        # One forbidden tag or step outweighs everything else.
        return spoiled | ((best * scores).sum((1, 2)) + self.extra(best[:, None])[:, 0] < FORBIDDEN / 10)

    def extra(self, structures: Tensor) -> Tensor:
        """The transitions' part of the score."""
        after = structures[:, :, 1:]
        if self.transitions.dim() == 2:
            # The last position comes along: without it this were many small products instead of one.
            return ((structures @ self.transitions)[:, :, :-1] * after).sum((2, 3))
        return ((structures[:, :, :-1, None] @ self.transitions[:, None])[:, :, :, 0] * after).sum((2, 3))

    def best(self, scores: Tensor) -> Tensor:
        """Viterbi's algorithm."""
        reached, *others = scores.unbind(1)
        origins = []
        for position, score in enumerate(others, start=1):
            arrived, origin = (reached[:, :, None] + self._step(position)).max(1)
            here = arrived + score
            if self.lengths is not None:
                # Beyond its length an example stays where it is.
                stay = torch.arange(scores.shape[2], device=scores.device)
                here = torch.where(self._reaches(position), here, reached)
                origin = torch.where(self._reaches(position), origin, stay)
            origins.append(origin)
            reached = here
        tags = [reached.argmax(1, keepdim=True)]
        for origin in reversed(origins):
            tags.append(origin.gather(1, tags[-1]))
        path = torch.cat(tags[::-1], 1)
        return self.inside(torch.zeros_like(scores).scatter(2, path[:, :, None], 1.0))

    def log_total(self, scores: Tensor) -> Tensor:
        """The forward algorithm."""
        reached, *others = scores.clamp(min=FORBIDDEN).unbind(1)
        for position, score in enumerate(others, start=1):
            arrived = (reached[:, :, None] + self._step(position)).logsumexp(1) + score
            reached = arrived if self.lengths is None else torch.where(self._reaches(position), arrived, reached)
        return reached.logsumexp(1)

    def _reaches(self, position: int) -> Tensor:
        """Whether each example has that position: (N, 1)."""
        assert self.lengths is not None
        return (self.lengths > position)[:, None]

    def _step(self, position: int) -> Tensor:
        """The transitions into a position, that broadcast against (N, T, T)."""
        return self.transitions if self.transitions.dim() == 2 else self.transitions[:, position - 1]


def transition_marginals(structures: Tensor, probs: Tensor) -> Tensor:
    """How probable each step from tag to tag is: (..., L - 1, T, T).

    Args:
        structures: (..., S, L, T), sequences of tags, as `sparsemap` gives them for a `Sequence`.
        probs: (..., S), their probabilities.

    Example:
        >>> from anymax.structured import Sequence, sparsemap, transition_marginals
        >>> found = sparsemap(torch.tensor([[0.5, 0.0], [0.0, 0.5]]), Sequence(torch.zeros(2, 2)))
        >>> transition_marginals(found.structures, found.probs).sum()
        tensor(1.)
    """
    weighted = structures[..., :-1, :] * probs[..., None, None]
    return torch.einsum("...slf,...slt->...lft", weighted, structures[..., 1:, :])
