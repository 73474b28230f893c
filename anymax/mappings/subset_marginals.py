"""Subset marginals: how likely each entry is to be among k chosen ones, sparse at both ends."""

import math

import torch
from torch import Tensor

from anymax.kernels.backend import widest
from anymax.mappings.arguments import check_number, check_per_row, check_values, prepare, row_shape


def subset_marginals(scores: Tensor, k: float | Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to marginals in [0, 1] that sum to k along `dim`.

        argmin over 0 <= p <= 1, sum p = k, of  |p - scores|^2

    Args:
        scores: floating point, any shape.
        k: between 0 and the number of entries, whole or not; a number, or a tensor that broadcasts against `scores`
            with size 1 along `dim`, which gets a gradient. 0 gives zeros and no gradient. A row with fewer than k
            entries left unmasked chooses all of them.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; the others get zero.

    The answer is clip(scores - tau, 0, 1). Let c be k rounded up: at tau equal to the c-th largest score the sum is
    below k, and at tau one lower it is at least k. So scores are measured from the c-th largest and clamped to [-1, 1],
    which keeps every digit that matters however large the scores are: entries beyond that are surely chosen or surely
    not. The sum is piecewise linear in tau with one corner per entry in that range, so tau is found by sorting them.

    Example:
        >>> anymax.subset_marginals(torch.tensor([2.0, 1.0, 0.7, -1.0]), k=2)
        tensor([1.0000, 0.6500, 0.3500, 0.0000])
    """
    prepared = prepare(scores, dim, mask)
    n = prepared.shape[dim]
    # An empty row gives an empty row for every k.
    most = n or math.inf
    if isinstance(k, Tensor):
        check_per_row("k", k, prepared, dim)
        check_values("k", f"between 0 and the {n} entries along dim {dim}", k, lambda k: (k >= 0) & (k <= most))
    else:
        check_number("k", k)
        if not 0 <= k <= most:
            raise ValueError(f"k must be between 0 and the {n} entries along dim {dim}, got {k}")
    moved = prepared.movedim(dim, -1)
    wide = moved.to(widest(moved))
    total = k.expand(*row_shape(prepared, dim)).movedim(dim, -1) if isinstance(k, Tensor) else wide.new_full((1,), k)
    marginals = _marginals(wide, total.to(wide.dtype)) if n else wide * total
    return marginals.movedim(-1, dim).to(scores.dtype)


def _marginals(scores: Tensor, total: Tensor) -> Tensor:
    available = scores > -torch.inf
    num_available = available.sum(-1, keepdim=True)
    total = torch.minimum(total, num_available.to(total.dtype))
    ranked = scores.detach().sort(-1, descending=True).values
    last = ranked.gather(-1, (total.detach().ceil().long() - 1).clamp(0, scores.shape[-1] - 1))
    # A constant added to all scores changes nothing.
    near = (scores - torch.where(last.isfinite(), last, 0)).clamp(-1, 1)
    with torch.no_grad():
        tau = _threshold(near, total)
        full = available & (near - tau >= 1)
        free = available & ~full & (near > tau)
        num_free = free.sum(-1, keepdim=True)
    # One exact step with the sets held fixed: the value tau has, and the gradient it should have.
    inner = torch.where(free, near, 0).sum(-1, keepdim=True) + full.sum(-1, keepdim=True) - total
    shifted = near - inner / num_free.clamp(min=1)
    marginals = torch.where(free, shifted.clamp(0, 1), full.to(scores.dtype))
    is_bad = (scores.isnan() | (scores == torch.inf)).any(-1, keepdim=True)
    return marginals.masked_fill(is_bad, torch.nan)


def _threshold(near: Tensor, total: Tensor) -> Tensor:
    """The tau in [-1, 0] at which clip(near - tau, 0, 1) sums to `total`: find the sum at each corner, interpolate."""
    # Walking tau down from 0, an entry above 0 grows until one below it, and another begins to grow at its score.
    grows = near > 0
    corners, order = torch.where(grows, near - 1, near).sort(-1, descending=True)
    turns = torch.where(grows, -1.0, 1.0).to(near.dtype).gather(-1, order)
    start = torch.zeros_like(corners[..., :1])
    corners = torch.cat([start, corners], -1)
    slope = torch.cat([grows.sum(-1, keepdim=True).to(near.dtype), turns], -1).cumsum(-1)
    steps = slope[..., :-1] * -corners.diff(dim=-1)
    reached = torch.cat([torch.where(grows, near, 0).sum(-1, keepdim=True), steps], -1).cumsum(-1)
    # The last corner whose sum is still below the total; tau lies just under it.
    index = ((reached < total).sum(-1, keepdim=True) - 1).clamp(min=0)
    at, rate, sum_there = (t.gather(-1, index) for t in (corners, slope, reached))
    return at - (total - sum_there) / rate.clamp(min=1)
