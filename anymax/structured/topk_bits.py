"""The k best bit-vectors: those whose bits that are on have the largest sum of scores.

Shapes: N examples, D bits, M bits that may be flipped, C candidates so far.
"""

import numbers
from typing import NamedTuple

import torch
from torch import Tensor

from anymax.kernels.backend import widest
from anymax.structured.bits import Bits
from anymax.structured.polytope import spoil


class TopBits(NamedTuple):
    """Bit-vectors, best first, (*batch, k, D), and their scores, (*batch, k).

    Example:
        >>> best = anymax.structured.topk_bits(torch.tensor([1.0, -0.3]), k=2)
        >>> best.bits
        tensor([[1., 0.],
                [1., 1.]])
        >>> best.scores
        tensor([1.0000, 0.7000])
    """

    bits: Tensor
    scores: Tensor


def topk_bits(scores: Tensor, k: int) -> TopBits:
    """Find the k distinct bit-vectors whose bits that are on have the largest sum of scores (..., D), in O(k D).

    The best one has every bit of positive score on. Each other flips some of its bits and pays their absolute scores.
    Only the k - 1 cheapest bits are ever flipped: with one beyond them, it costs no less than flipping nothing or any
    single one of them. A score of -inf keeps a bit off while other bit-vectors are left; a NaN or +inf makes the
    example's answer NaN. Gradients pass to the scores.

    Args:
        scores: (..., D), floating point.
        k: at least 1 and at most 2^D.

    Example:
        >>> bits, scores = anymax.structured.topk_bits(torch.tensor([2.0, -0.3, 0.5]), k=3)
        >>> bits
        tensor([[1., 0., 1.],
                [1., 1., 1.],
                [1., 0., 0.]])
        >>> scores
        tensor([2.5000, 2.2000, 2.0000])
    """
    rows = Bits().rows(scores)
    _check_k(k, scores.shape[-1])
    wide_ND = rows.scores.to(widest(rows.scores))
    costs_NM, flippable_NM = wide_ND.detach().abs().sort(dim=1, stable=True)
    num_flippable = min(k - 1, scores.shape[-1])
    flips_NkM = _cheapest_flips(costs_NM[:, :num_flippable], k)
    flips_NkD = torch.zeros(len(wide_ND), k, scores.shape[-1], dtype=torch.bool, device=scores.device)
    flips_NkD.scatter_(2, flippable_NM[:, None, :num_flippable].expand(-1, k, -1), flips_NkM)
    bits_NkD = (wide_ND > 0)[:, None] ^ flips_NkD
    totals_Nk = torch.where(bits_NkD, wide_ND[:, None], 0).sum(2)
    batch = scores.shape[:-1]
    return TopBits(
        spoil(bits_NkD.to(scores.dtype), rows.spoiled).reshape(*batch, k, scores.shape[-1]),
        spoil(totals_Nk, rows.spoiled).to(scores.dtype).reshape(*batch, k),
    )


def _cheapest_flips(costs_NM: Tensor, k: int) -> Tensor:
    """Which bits the k cheapest sets of flips contain, (N, k, M), cheapest first.

    Bit by bit, the cheapest sets so far are merged with the same sets and this bit; only the order is kept, and read
    backwards at the end.
    """
    totals_NC, orders = costs_NM.new_zeros(len(costs_NM), 1), []
    for cost_N in costs_NM.unbind(1):
        merged = torch.cat([totals_NC, totals_NC + cost_N[:, None]], 1).sort(dim=1, stable=True)
        orders.append((merged.indices[:, :k], totals_NC.shape[1]))
        totals_NC = merged.values[:, :k]
    place_Nk = torch.arange(k, device=costs_NM.device).expand(len(costs_NM), k)
    flips_NkM = torch.zeros(*place_Nk.shape, len(orders), dtype=torch.bool, device=costs_NM.device)
    for bit, (order_NC, num_before) in reversed(list(enumerate(orders))):
        origin_Nk = order_NC.gather(1, place_Nk)
        flips_NkM[:, :, bit] = origin_Nk >= num_before
        place_Nk = origin_Nk % num_before
    return flips_NkM


def _check_k(k: int, num_bits: int) -> None:
    if isinstance(k, bool) or not isinstance(k, numbers.Integral):
        raise TypeError(f"k must be an integer, got {type(k).__name__}")
    if not 1 <= k <= 2**num_bits:
        raise ValueError(f"k must be between 1 and the {2**num_bits} vectors of {num_bits} bits, got {k}")
