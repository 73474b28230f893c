"""Subset marginals: how likely each entry is to be among k chosen ones, sparse at both ends."""

import torch
from torch import Tensor

from anymax.kernels.backend import widest
from anymax.mappings.arguments import check_number, check_per_row, check_values, prepare


def subset_marginals(scores: Tensor, k: float | Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to marginals in [0, 1] that sum to k along `dim`.

        argmin over 0 <= p <= 1, sum p = k, of  |p - scores|^2

    Args:
        k: between 1 and the number of entries, whole or not; a number, or a tensor that broadcasts against `scores`
            with size 1 along `dim`, which gets a gradient. A row with fewer than k entries left unmasked chooses all of
            them.

    The answer is clip(scores - tau, 0, 1). Its sum falls piecewise linearly in tau with corners at scores and scores -
    1, so tau is found by sorting the corners.
    """
    prepared = prepare(scores, dim, mask)
    n = prepared.shape[dim]
    if isinstance(k, Tensor):
        check_per_row("k", k, prepared, dim)
        check_values("k", f"between 1 and the {n} entries along dim {dim}", k, lambda k: (k >= 1) & (k <= n))
    else:
        check_number("k", k)
        if not 1 <= k <= n:
            raise ValueError(f"k must lie between 1 and the {n} entries along dim {dim}, got {k}")
    moved = prepared.movedim(dim, -1)
    total = k.expand(*_row_shape(prepared, dim)).movedim(dim, -1) if isinstance(k, Tensor) else moved.new_full((1,), k)
    return _marginals(moved, total.to(moved.dtype)).movedim(-1, dim).to(scores.dtype)


def _row_shape(scores: Tensor, dim: int) -> list[int]:
    shape = list(scores.shape)
    shape[dim] = 1
    return shape


def _marginals(scores: Tensor, total: Tensor) -> Tensor:
    available = scores > -torch.inf
    num_available = available.sum(-1, keepdim=True)
    total = torch.minimum(total, num_available.to(total.dtype))
    # A constant added to all scores changes nothing; off it goes before sums would round it.
    top = scores.detach().amax(-1, keepdim=True)
    scores = scores - torch.where(top.isfinite(), top, 0)
    with torch.no_grad():
        tau = _threshold(scores.detach(), available, total.detach())
        full = available & (scores - tau >= 1)
        free = available & ~full & (scores > tau)
        num_free = free.sum(-1, keepdim=True)
    # One exact step with the sets held fixed: the value tau has, and the gradient it should have.
    wide_sum = torch.where(free, scores, 0).sum(-1, keepdim=True, dtype=widest(scores))
    inner = wide_sum + full.sum(-1, keepdim=True) - total
    shifted = scores - (inner / num_free.clamp(min=1)).to(scores.dtype)
    bad = top.isnan() | (top == torch.inf)
    marginals = torch.where(free, shifted.clamp(0, 1), full.to(scores.dtype))
    return marginals.masked_fill(bad, torch.nan)


def _threshold(scores: Tensor, available: Tensor, total: Tensor) -> Tensor:
    """Where the clipped scores sum to `total`: sort the corners, find the sum at each, interpolate between two."""
    wide = scores.to(widest(scores))
    lowest = torch.where(available, wide, 0).amin(-1, keepdim=True)
    # Entries that may not be chosen stand below every corner that matters.
    z = torch.where(available, wide, lowest - 2)
    corners, order = torch.cat([z, z - 1], -1).sort(-1, descending=True)
    n = scores.shape[-1]
    # Walking tau down, an entry starts to grow at its score and stops one below.
    turn = torch.where(order < n, 1.0, -1.0).to(corners.dtype)
    slope = turn.cumsum(-1)
    grown = torch.cat([torch.zeros_like(corners[..., :1]), slope[..., :-1] * -corners.diff(dim=-1)], -1).cumsum(-1)
    # The last corner whose sum is still below the total; tau lies just under it.
    index = ((grown < total).sum(-1, keepdim=True) - 1).clamp(min=0)
    at, rate, reached = (t.gather(-1, index) for t in (corners, slope, grown))
    return (at - (total - reached) / rate.clamp(min=1)).to(scores.dtype)
