"""Argmax as a mapping: the limit of entmax for large alpha."""

import torch
from torch import Tensor

from anymax.mappings.arguments import largest, prepare


def argmax(scores: Tensor, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Map scores to the distribution that is uniform over the largest ones: one-hot but for ties.

    It is constant almost everywhere: its gradient is zero.

    Args:
        scores: floating point, any shape.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; a row with none gets zeros.

    Example:
        >>> anymax.argmax(torch.tensor([2.0, 1.5, 2.0, -1.0]))
        tensor([0.5000, 0.0000, 0.5000, 0.0000])
    """
    prepared = prepare(scores, dim, mask)
    top = largest(prepared, dim)
    chosen = (prepared == top) & (prepared > -torch.inf)
    probs = chosen / chosen.sum(dim, keepdim=True).clamp(min=1)
    # Connected to the scores by a zero, so that it can stand wherever another mapping stands.
    probs = probs.to(prepared.dtype) + 0 * torch.where(prepared.isfinite(), prepared, 0)
    return probs.masked_fill(top.isnan() | (top == torch.inf), torch.nan).to(scores.dtype)
