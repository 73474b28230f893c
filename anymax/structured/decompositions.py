"""Splits of bit marginals into a few bit-vectors whose mean they are, in closed form.

Both let one uniform number u decide all bits. As u moves from 0 to 1 the bit-vector changes at no more points than
there are marginals strictly between 0 and 1, and each stretch between two such points is a bit-vector's probability.

Shapes: N examples, D bits, S bit-vectors.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from anymax.kernels.backend import widest


class Decomposition(NamedTuple):
    """Structures (N, S, D) and their probabilities (N, S), most probable first; beyond an example's own, zeros."""

    structures: Tensor
    probs: Tensor


def chain(marginals_ND: Tensor) -> Decomposition:
    """A bit is on while u is below its marginal: every bit-vector contains the one after it."""
    lower_NS, probs_NS = _stretches(marginals_ND)
    on_NSD = marginals_ND[:, None] > lower_NS[:, :, None]
    return Decomposition(_of_dtype(on_NSD, probs_NS), probs_NS)


def systematic(marginals_ND: Tensor) -> Decomposition:
    """The bits lie end to end on a line, each as long as its marginal, and those hit by u, u + 1, u + 2, ... are on.

    Every bit-vector has as many bits on as the marginals sum to, rounded up or down.
    """
    fractional_ND = (marginals_ND > 0) & (marginals_ND < 1)
    ends_ND = _ends(torch.where(fractional_ND, marginals_ND, 0))
    whole_ND = ends_ND.detach().floor()
    levels_ND = (ends_ND - whole_ND).to(marginals_ND.dtype)
    lower_NS, probs_NS = _stretches(levels_ND)
    # A bit is hit where u lies between the levels of its two ends, or not between them if an integer does.
    above_NSD = levels_ND[:, None] > lower_NS[:, :, None]
    before_NSD = functional.pad(above_NSD[:, :, :-1], (1, 0))
    crossed_ND = functional.pad(whole_ND, (1, 0)).diff(dim=1)
    is_sure_ND = (marginals_ND == 1) | (crossed_ND > 1)
    on_NSD = torch.where(crossed_ND[:, None] > 0, above_NSD | ~before_NSD, above_NSD & ~before_NSD)
    return Decomposition(_of_dtype(on_NSD | is_sure_ND[:, None], probs_NS), probs_NS)


def _ends(lengths_ND: Tensor) -> Tensor:
    """The running sum, where a total that is whole but for rounding is made whole: no bit too many is ever hit."""
    ends_ND = lengths_ND.cumsum(1, dtype=widest(lengths_ND))
    total_N1 = ends_ND[:, -1:].detach()
    whole_N1 = total_N1.round()
    # Each length is off by a quarter of eps at most.
    slack = max(torch.finfo(lengths_ND.dtype).eps / 2 * lengths_ND.shape[1], 1e-11)
    is_last_ND = ends_ND.detach() >= torch.minimum(total_N1, whole_N1)
    return torch.where(((total_N1 - whole_N1).abs() < slack) & is_last_ND, whole_N1, ends_ND)


def _stretches(levels_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The stretches of [0, 1] between levels: where each begins, (N, S), and its length; the longest first."""
    # Nothing moves for a bit that is surely on or off.
    levels_ND = torch.where((levels_ND > 0) & (levels_ND < 1), levels_ND, levels_ND.detach())
    sorted_ND = _move_together(levels_ND.sort(1).values)
    edges = torch.cat([torch.zeros_like(sorted_ND[:, :1]), sorted_ND, torch.ones_like(sorted_ND[:, :1])], 1)
    lengths = edges.diff(dim=1)
    most = int((lengths > 0).sum(1).max()) if len(lengths) else 1
    order_NS = lengths.detach().sort(dim=1, descending=True, stable=True).indices[:, :most]
    return edges.detach().gather(1, order_NS), lengths.gather(1, order_NS)


def _move_together(sorted_ND: Tensor) -> Tensor:
    """Give levels that are equal the mean of their gradients, so that the stretches left keep a sum of one."""
    if not sorted_ND.requires_grad:
        return sorted_ND
    group_ND = torch.cat([torch.zeros_like(sorted_ND[:, :1]), sorted_ND.detach().diff(dim=1) > 0], 1).long().cumsum(1)
    zeros_ND = torch.zeros_like(sorted_ND)
    sizes_ND = zeros_ND.scatter_add(1, group_ND, torch.ones_like(sorted_ND)).clamp(min=1)
    mean_ND = (zeros_ND.scatter_add(1, group_ND, sorted_ND) / sizes_ND).gather(1, group_ND)
    return sorted_ND.detach() + (mean_ND - mean_ND.detach())


def _of_dtype(on_NSD: Tensor, probs_NS: Tensor) -> Tensor:
    return (on_NSD & (probs_NS.detach() > 0)[:, :, None]).to(probs_NS.dtype)
