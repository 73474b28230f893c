"""Normmax: the regularizer is a norm instead of an entropy."""

import math

import torch
from torch import Tensor

from anymax.kernels.backend import widest
from anymax.mappings.arguments import check_number, check_per_row, check_values, largest, prepare
from anymax.mappings.entmax import entmax


def normmax(scores: Tensor, alpha: float | Tensor = 2.0, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to a distribution along `dim` that spreads evenly over the few entries it chooses.

        argmax over p in the simplex of  <p, scores> - |p|_alpha

    Args:
        scores: floating point, any shape.
        alpha: greater than 1; a number, or a tensor that broadcasts against `scores` with size 1 along `dim`, which
            gets a gradient. The closer to 1, the sparser.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; a row with none gets zeros.

    The optimality conditions give p proportional to [scores - tau]_+ ^ (1/(alpha-1)) with the alpha/(alpha-1) powers of
    [scores - tau]_+ summing to one. Those powers are an entmax, so normmax is entmax of scaled scores, raised to
    1/alpha.

    Blondel et al. 2020.

    Example:
        >>> scores = torch.tensor([2.0, 1.5, 0.5, -1.0])
        >>> anymax.normmax(scores, 10.0)
        tensor([0.5285, 0.4715, 0.0000, 0.0000])
        >>> anymax.sparsemax(scores)
        tensor([0.7500, 0.2500, 0.0000, 0.0000])
    """
    prepared = prepare(scores, dim, mask)
    if isinstance(alpha, Tensor):
        check_per_row("alpha", alpha, prepared, dim)
        check_values("alpha", "finite and greater than 1", alpha, lambda a: (a > 1) & (a < torch.inf))
        alpha = alpha.to(widest(prepared))
    else:
        check_number("alpha", alpha)
        if not 1 < alpha < math.inf:
            raise ValueError(f"alpha must be finite and greater than 1, got {alpha}; argmax is its limit at 1")
    if isinstance(alpha, Tensor) or alpha > 2:
        # At the edge of the support a probability is off by the rounding of its score to the power 1 / (alpha - 1).
        prepared = prepared.to(widest(prepared))
    left_out = prepared == -torch.inf
    # A constant added to all scores changes nothing; off it goes before scaling would round it.
    scaled = (prepared - largest(prepared, dim)).masked_fill(left_out, 0) * (alpha / (alpha - 1))
    powers = entmax(scaled.masked_fill(left_out, -torch.inf), 2 - 1 / alpha, dim=dim)
    chosen = powers > 0
    roots = torch.where(chosen, torch.where(chosen, powers, 1) ** (1 / alpha), powers)
    total = roots.sum(dim, keepdim=True)
    return (roots / torch.where(total == 0, 1, total)).to(scores.dtype)
