"""The sets of structures that an active set works on, one per example, with the best probabilities on each.

For affinely independent structures the best probabilities p solve K [tau, p] = [1, s] with K = [[0, 1'], [1, G]]: G
holds the structures' overlaps, s their linear scores, and tau is what every one of them gains, s - <structure, mean>.
The inverse of K is kept, since both changes of a set add a matrix of rank one to it. Sets stand in slots; a slot that
is free is a row of zeros.

Shapes: N examples, C slots, K = 1 + C with tau in front, E entries of a structure.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# A structure nearer than this to a set's affine hull, squared and in units of its own size, is spanned by the set.
SPANNED = 1e-9
# A probability that falls slower than this does not fall.
LEVEL = 1e-12
FIRST_SLOTS = 8


class Entrants(NamedTuple):
    """One structure for each set, with its overlaps, its number of ones, its linear score and its gain beyond tau."""

    vertex_NE: Tensor
    overlaps_NC: Tensor
    size_N: Tensor
    linear_N: Tensor
    gain_N: Tensor
    is_known_N: Tensor


class _Growth(NamedTuple):
    """How far an entrant's probability grows, what moves with it per unit, and what stops it, if anything does."""

    change_NK: Tensor
    sigma_N: Tensor
    step_N: Tensor
    is_blocked_N: Tensor
    slot_N: Tensor


class VertexSets:
    """Sets that start with one structure (N, E) of linear score (N,) each."""

    def __init__(self, vertex_NE: Tensor, linear_N: Tensor) -> None:
        n, size_N = len(vertex_NE), vertex_NE.sum(1)
        self.is_used_NC = torch.zeros(n, FIRST_SLOTS, dtype=torch.bool, device=vertex_NE.device)
        self.vertices_NCE = vertex_NE.new_zeros(n, FIRST_SLOTS, vertex_NE.shape[1])
        self.sizes_NC, self.linear_NC = vertex_NE.new_zeros(2, n, FIRST_SLOTS)
        self.inverse_NKK = vertex_NE.new_zeros(n, 1 + FIRST_SLOTS, 1 + FIRST_SLOTS)
        self.solution_NK = vertex_NE.new_zeros(n, 1 + FIRST_SLOTS)
        self._occupy(torch.zeros_like(linear_N, dtype=torch.long), vertex_NE, size_N, linear_N)
        self.inverse_NKK[:, 0, 0] = -size_N
        self.inverse_NKK[:, 0, 1] = self.inverse_NKK[:, 1, 0] = 1
        self.solution_NK[:, 0], self.solution_NK[:, 1] = linear_N - size_N, 1

    def mean(self) -> Tensor:
        """The mean structure of every set."""
        return torch.bmm(self.solution_NK[:, None, 1:], self.vertices_NCE)[:, 0]

    def select(self, index: Tensor) -> None:
        """Keep the sets of some examples."""
        for name, value in vars(self).items():
            setattr(self, name, value.index_select(0, index))

    def consider(self, vertex_NE: Tensor, linear_N: Tensor, mean_NE: Tensor) -> Entrants:
        """What a structure would bring to each set."""
        # Rows times matrices, here and below, as in `linear_scores`.
        with_entrant_NC, with_mean_NC = torch.bmm(torch.stack([vertex_NE, mean_NE], 1), self.vertices_NCE.mT).unbind(1)
        self._refine(with_mean_NC)
        size_N = vertex_NE.sum(1)
        gain_N = linear_N - (vertex_NE * mean_NE).sum(1) - self.solution_NK[:, 0]
        is_equal_NC = (with_entrant_NC == size_N[:, None]) & (self.sizes_NC == size_N[:, None]) & self.is_used_NC
        return Entrants(vertex_NE, with_entrant_NC, size_N, linear_N, gain_N, is_equal_NC.any(1))

    def enter(self, entrants: Entrants) -> None:
        """Let a new structure that gains enter each set: its probability w grows until it gains no more than tau.

        The others follow, [tau, p] - w c with c = K^-1 [1, overlaps], and the gain falls by sigma per unit of w, the
        squared distance from the set's affine hull. The first to reach zero leaves; growth continues. Where sigma
        is zero something must leave, so that sets stay independent.
        """
        gain_N, grown_N = entrants.gain_N, torch.zeros_like(entrants.gain_N)
        border_NK = functional.pad(entrants.overlaps_NC, (1, 0), value=1.0)
        while True:
            growth = self._growth(border_NK, entrants.size_N, gain_N)
            self.solution_NK -= growth.step_N[:, None] * growth.change_NK
            grown_N = grown_N + growth.step_N
            gain_N = torch.where(growth.is_blocked_N, gain_N - growth.step_N * growth.sigma_N, 0)
            # The last of a set can leave only once the entrant is in.
            is_alone_N = self.is_used_NC.sum(1) == 1
            leaving = (growth.is_blocked_N & ~is_alone_N).nonzero()[:, 0]
            if len(leaving) == 0:
                break
            self._remove(leaving, growth.slot_N[leaving])
            border_NK[leaving, 1 + growth.slot_N[leaving]] = 0
        self._insert(entrants, grown_N, growth)
        # Where the entrant replaced the whole set, tau is what it gains itself.
        self.solution_NK[:, 0] += gain_N
        replaced = (growth.is_blocked_N & is_alone_N).nonzero()[:, 0]
        if len(replaced):
            self._remove(replaced, growth.slot_N[replaced])

    def _growth(self, border_NK: Tensor, size_N: Tensor, gain_N: Tensor) -> _Growth:
        """How far an entrant can grow: until its gain is used up, or the first of the others reaches zero."""
        change_NK = torch.bmm(border_NK[:, None], self.inverse_NKK)[:, 0]
        sigma_N = size_N - (border_NK * change_NK).sum(1)
        wanted_N = torch.where(sigma_N > SPANNED * size_N.clamp(min=1), gain_N / sigma_N, torch.inf)
        falls_NC = self.is_used_NC & (change_NK[:, 1:] > LEVEL)
        limit_N, slot_N = torch.where(falls_NC, self.solution_NK[:, 1:] / change_NK[:, 1:], torch.inf).min(1)
        limit_N = limit_N.clamp(min=0)
        return _Growth(change_NK, sigma_N, torch.minimum(wanted_N, limit_N), limit_N < wanted_N, slot_N)

    def _refine(self, with_mean_NC: Tensor) -> None:
        """Take the rounding that steps have left out of the solution."""
        missing_N1 = 1 - self.solution_NK[:, 1:].sum(1, keepdim=True)
        unequal_NC = (self.linear_NC - with_mean_NC - self.solution_NK[:, :1]) * self.is_used_NC
        residual_NK = torch.cat([missing_N1, unequal_NC], 1)
        self.solution_NK += torch.bmm(residual_NK[:, None], self.inverse_NKK)[:, 0]

    def _insert(self, entrants: Entrants, grown_N: Tensor, growth: _Growth) -> None:
        change_NK = growth.change_NK
        if bool(self.is_used_NC.all(1).any()):
            change_NK = functional.pad(change_NK, (0, self._add_slots()))
        slot_N = self.is_used_NC.to(torch.uint8).argmin(1)
        direction_NK = (-change_NK).scatter_(1, 1 + slot_N[:, None], 1.0)
        # By broadcasting: torch's batched product of columns and rows is several times slower.
        self.inverse_NKK.addcmul_(direction_NK[:, :, None], (direction_NK / growth.sigma_N[:, None])[:, None])
        self.solution_NK.scatter_(1, 1 + slot_N[:, None], grown_N[:, None])
        self._occupy(slot_N, entrants.vertex_NE, entrants.size_N, entrants.linear_N)

    def _occupy(self, slot_N: Tensor, vertex_NE: Tensor, size_N: Tensor, linear_N: Tensor) -> None:
        every = torch.arange(len(slot_N), device=slot_N.device)
        self.is_used_NC[every, slot_N], self.vertices_NCE[every, slot_N] = True, vertex_NE
        self.sizes_NC[every, slot_N], self.linear_NC[every, slot_N] = size_N, linear_N

    def _remove(self, examples: Tensor, slots: Tensor) -> None:
        inverse, every = self.inverse_NKK[examples], torch.arange(len(examples), device=examples.device)
        column = inverse[every, 1 + slots]
        inverse.addcmul_(column[:, :, None], (column / -column[every, 1 + slots, None])[:, None])
        inverse[every, 1 + slots] = inverse[every, :, 1 + slots] = 0
        self.inverse_NKK[examples] = inverse
        self.solution_NK[examples, 1 + slots] = 0
        self.is_used_NC[examples, slots] = False
        self.vertices_NCE[examples, slots] = 0

    def _add_slots(self) -> int:
        """Add half as many slots again; how many."""
        more = self.is_used_NC.shape[1] // 2
        for name in ("is_used_NC", "sizes_NC", "linear_NC", "solution_NK"):
            setattr(self, name, functional.pad(getattr(self, name), (0, more)))
        self.vertices_NCE = functional.pad(self.vertices_NCE, (0, 0, 0, more))
        self.inverse_NKK = functional.pad(self.inverse_NKK, (0, more, 0, more))
        return more
