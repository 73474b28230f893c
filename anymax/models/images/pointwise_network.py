"""A learned function of one number: a sum of sigmoids, for many numbers at once.

Many numbers lie close together, and a sum of sigmoids is smooth. So it is computed where it has to be, at nodes of an
even grid, and between them the polynomial through the eight nearest nodes is read: with nodes as close as here it is
off by less than rounding. The gradients go the same way back, from the numbers to the nodes and from there to the
weights.

Shapes: N numbers, U sigmoids, G nodes of the grid, C cells between nodes, W = 8 nodes around a cell.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from anymax.kernels.backend import is_plain
from anymax.mappings.arguments import computed_in

NUM_AROUND = 8
# Entries of a table of nodes and sigmoids that are worked on at once, so that they stay in the processor's cache.
AT_ONCE = 1 << 16
# The grid must have that many times fewer nodes than there are numbers to pay.
SAVING = 2


def sum_of_sigmoids(numbers: Tensor, spread: Tensor, gather: Tensor) -> Tensor:
    """Apply sum over units of gather * sigmoid(spread * number) to every number.

    Args:
        spread: what each unit multiplies the number with, (units,).
        gather: what each unit's sigmoid is multiplied with, (units,).
    """
    flat_N = numbers.reshape(-1).to(computed_in(numbers.dtype))
    spread_U, gather_U = spread.to(flat_N.dtype), gather.to(flat_N.dtype)
    grid = _Grid.around(flat_N, spread_U) if all(map(is_plain, (flat_N, spread_U, gather_U))) else None
    with torch.autocast(numbers.device.type, enabled=False):
        if grid is None:
            values_N = torch.sigmoid(flat_N.unsqueeze(-1) * spread_U) @ gather_U
        else:
            values_N = _SumOfSigmoids.apply(flat_N, spread_U, gather_U, grid)
    return values_N.to(numbers.dtype).reshape(numbers.shape)


@dataclass(frozen=True)
class _Grid:
    """Cells of one width from `low` on, with the nodes around them."""

    low: float
    width: float
    num_cells: int

    @staticmethod
    def around(numbers_N: Tensor, spread_U: Tensor) -> "_Grid | None":
        """A grid fine enough for what is spread most; None where it would not pay, or a number is not finite."""
        if numbers_N.numel() == 0 or spread_U.numel() == 0:
            return None
        low, high = (bound.item() for bound in torch.aminmax(numbers_N.detach()))
        steepness = spread_U.detach().abs().max().item()
        # The error of the polynomials falls with the eighth power of a cell's width.
        wanted = (high - low) * steepness / (1.5 * torch.finfo(numbers_N.dtype).eps ** (1 / NUM_AROUND))
        if not wanted < len(numbers_N) / SAVING - NUM_AROUND:
            return None
        num_cells = math.floor(wanted) + 1
        return _Grid(low, (high - low) / num_cells or 1.0, num_cells)

    def locate(self, numbers_N: Tensor) -> tuple[Tensor, Tensor]:
        """The cell that each number lies in, and how far from its middle, in widths."""
        place_N = (numbers_N.double() - self.low) / self.width
        cell_N = place_N.long().clamp_(0, self.num_cells - 1)
        return cell_N, (place_N - cell_N - 0.5).to(numbers_N.dtype)

    def chunks(self, spread_U: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Some nodes after others: which, where they lie (G,), and the sigmoids there (G, U)."""
        nodes_G = self.low + self.width * torch.arange(1 - NUM_AROUND // 2, self.num_cells + NUM_AROUND // 2).double()
        size = max(1, AT_ONCE // len(spread_U))
        for start in range(0, len(nodes_G), size):
            chunk_G = nodes_G[start : start + size].to(spread_U.dtype)
            yield slice(start, start + len(chunk_G)), chunk_G, torch.outer(chunk_G, spread_U).sigmoid_()


class _SumOfSigmoids(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers_N: Tensor, spread_U: Tensor, gather_U: Tensor, grid: _Grid) -> Tensor:
        cell_N, offset_N = grid.locate(numbers_N)
        values_G = torch.cat([sigmoids_GU @ gather_U for _, _, sigmoids_GU in grid.chunks(spread_U)])
        ctx.grid = grid
        ctx.save_for_backward(cell_N, offset_N, spread_U, gather_U)
        return _read(values_G, cell_N, offset_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        cell_N, offset_N, spread_U, gather_U = ctx.saved_tensors
        grad_G = _collect(grad_N, cell_N, offset_N, ctx.grid.num_cells)
        weight_U, slopes = spread_U * gather_U, []
        grad_spread_U, grad_gather_U = torch.zeros_like(spread_U), torch.zeros_like(gather_U)
        for chunk, nodes_G, sigmoids_GU in ctx.grid.chunks(spread_U):
            grad_gather_U += grad_G[chunk] @ sigmoids_GU
            rising_GU = sigmoids_GU.addcmul_(sigmoids_GU, sigmoids_GU, value=-1)
            grad_spread_U += (grad_G[chunk] * nodes_G) @ rising_GU
            slopes.append(rising_GU @ weight_U)
        return grad_N * _read(torch.cat(slopes), cell_N, offset_N), grad_spread_U * gather_U, grad_gather_U, None


def _read(values_G: Tensor, cell_N: Tensor, offset_N: Tensor) -> Tensor:
    """The value of each cell's polynomial at an offset from its middle."""
    terms_CW = (values_G.double().unfold(0, NUM_AROUND, 1) @ _terms_of_values().mT).to(offset_N.dtype)
    *others, value_N = F.embedding(cell_N, terms_CW).unbind(1)
    for term_N in reversed(others):
        value_N = torch.addcmul(term_N, value_N, offset_N)
    return value_N


def _collect(grad_N: Tensor, cell_N: Tensor, offset_N: Tensor, num_cells: int) -> Tensor:
    """The gradient of what `_read` reads, for the values at the nodes."""
    powers, power_N = [], grad_N.double()
    for _ in range(NUM_AROUND):
        powers.append(torch.bincount(cell_N, power_N, num_cells))
        power_N = power_N * offset_N
    grad_CW = torch.stack(powers, 1) @ _terms_of_values()
    # Node g is the w-th around cell g - w.
    nodes_CW = torch.arange(num_cells).unsqueeze(1) + torch.arange(NUM_AROUND)
    return torch.bincount(nodes_CW.flatten(), grad_CW.flatten()).to(grad_N.dtype)


@cache
def _terms_of_values() -> Tensor:
    """What makes the terms of a polynomial in the offset out of its values at the nodes around a cell, (W, W)."""
    offsets_W1 = torch.arange(NUM_AROUND).double().unsqueeze(1) - (NUM_AROUND - 1) / 2
    return torch.linalg.inv(offsets_W1 ** torch.arange(NUM_AROUND))
