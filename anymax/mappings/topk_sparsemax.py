"""Top-k sparsemax: at most k entries are chosen, by looking at the k largest scores only."""

import numbers

import torch
from torch import Tensor

from anymax.mappings.arguments import check_dim, check_scores
from anymax.mappings.sparsemax import sparsemax


def topk_sparsemax(scores: Tensor, k: int, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to the nearest distribution along `dim` with at most k entries above zero.

    Where fewer than k entries end above zero it equals sparsemax; `topk_sparsemax_is_exact` checks this.

    Args:
        scores: floating point, any shape.
        k: at least 1 and at most the number of entries along `dim`.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; a row with none gets zeros.

    Example:
        >>> scores = torch.tensor([2.0, 1.5, 1.4, -1.0])
        >>> anymax.sparsemax(scores)
        tensor([0.7000, 0.2000, 0.1000, 0.0000])
        >>> anymax.topk_sparsemax(scores, k=2)
        tensor([0.7500, 0.2500, 0.0000, 0.0000])
    """
    check_scores(scores, dim, mask)
    _check_k(k, scores, dim)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    top = scores.topk(min(int(k), scores.shape[dim]), dim=dim, sorted=False)
    probs = torch.zeros_like(scores).scatter(dim, top.indices, sparsemax(top.values, dim=dim))
    # A NaN spoils its whole row, as it does elsewhere.
    return probs.masked_fill(probs.isnan().any(dim, keepdim=True), torch.nan)


def topk_sparsemax_is_exact(probs: Tensor, k: int, *, dim: int = -1) -> Tensor:
    """For each row of a top-k sparsemax, true where it is certain to equal sparsemax; `dim` is gone from the shape.

    A support smaller than k proves it: no score that was left out could have entered. A support of k proves nothing,
    unless nothing was left out.

    Args:
        probs: what `topk_sparsemax` returned.
        k: as it was given to `topk_sparsemax`.
        dim: as it was given to `topk_sparsemax`.

    Example:
        >>> probs = anymax.topk_sparsemax(torch.tensor([2.0, 1.5, 0.5, -1.0]), k=3)
        >>> probs
        tensor([0.7500, 0.2500, 0.0000, 0.0000])
        >>> anymax.topk_sparsemax_is_exact(probs, k=3)
        tensor(True)
    """
    check_dim(probs, dim)
    _check_k(k, probs, dim)
    return ((probs > 0).sum(dim) < k) | (k == probs.shape[dim])


def _check_k(k: int, scores: Tensor, dim: int) -> None:
    n = scores.shape[dim]
    if isinstance(k, bool) or not isinstance(k, numbers.Integral):
        raise TypeError(f"k must be an integer, got {type(k).__name__}")
    # An empty row gives an empty row for every k.
    if not 1 <= k <= (n or k):
        raise ValueError(f"k must be between 1 and the {n} entries along dim {dim}, got {k}")
