"""Matchings: each row is paired with one column."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from anymax.structured.polytope import FORBIDDEN, Polytope


@dataclass(frozen=True)
class Matching(Polytope):
    """The permutation matrices of scores (..., N, N); -inf forbids a pair. The best one is found by scipy.

    Summing over all matchings is intractable: `log_partition` and `marginals` raise NotImplementedError.

    Example:
        >>> from anymax.structured import Matching, sparsemap
        >>> scores = torch.tensor([[1.0, 0.8], [0.9, 1.0]])
        >>> sparsemap(scores, Matching()).marginals
        tensor([[0.5750, 0.4250],
                [0.4250, 0.5750]])
        >>> Matching().argmax(scores)
        tensor([[1., 0.],
                [0., 1.]])
    """

    event_dim: ClassVar[int] = 2

    def check(self, shape: torch.Size) -> None:
        if shape[-1] != shape[-2]:
            raise ValueError(f"scores of Matching must be square, got shape {tuple(shape)}; pad the shorter side")

    def is_spoiled(self, scores: Tensor) -> Tensor:
        spoiled = super().is_spoiled(scores)
        if not bool((scores == -torch.inf).any()):
            return spoiled
        clean = torch.where(spoiled[:, None, None], 0, scores.detach()).clamp(min=FORBIDDEN)
        # One forbidden pair outweighs everything else.
        return spoiled | ((self.best(clean) * clean).sum((1, 2)) < FORBIDDEN / 10)

    def best(self, scores: Tensor) -> Tensor:
        assign = _linear_sum_assignment()
        clean = scores.clamp(min=FORBIDDEN).cpu().numpy()
        columns = [torch.from_numpy(assign(matrix, maximize=True)[1]) for matrix in clean]
        pairs = torch.stack(columns) if columns else torch.zeros(scores.shape[:2], dtype=torch.long)
        return torch.zeros_like(scores).scatter(2, pairs.to(scores.device)[:, :, None], 1.0)


def _linear_sum_assignment() -> Callable[..., Any]:
    try:
        return importlib.import_module("scipy.optimize").linear_sum_assignment
    except ImportError as error:
        raise ImportError("Matching finds the best pairs with scipy: install it with `pip install scipy`") from error
