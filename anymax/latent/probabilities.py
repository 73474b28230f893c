"""Rows of probabilities, zeros among them: logarithm, entropy and drawing, without NaN in values or gradients."""

import torch
from torch import Tensor

from anymax.kernels.backend import widest


def log_of(probs: Tensor) -> Tensor:
    """The logarithm, minus infinity at zero with a gradient of zero there."""
    is_zero = probs == 0
    return probs.masked_fill(is_zero, 1.0).log().masked_fill(is_zero, -torch.inf)


def entropy_of(probs: Tensor, log_probs: Tensor) -> Tensor:
    """The entropy along the last dimension in nats; a zero adds nothing to it or to its gradient."""
    return -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum(-1)


def draw(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """One index along the last dimension for each of the other entries."""
    # One number for each row, where torch.multinomial draws one for each entry. The running sum rises only where an
    # entry has probability, so that no other is ever drawn.
    totals = probs.detach().cumsum(-1, dtype=widest(probs))
    point = torch.rand(*probs.shape[:-1], 1, dtype=totals.dtype, device=probs.device, generator=generator)
    return torch.searchsorted(totals, point * totals[..., -1:], right=True).squeeze(-1)
