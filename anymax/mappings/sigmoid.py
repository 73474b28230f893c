"""Sigmoid: weights in attention that each entry gets by itself."""

import math

import torch
from torch import Tensor, nn

from anymax.mappings.arguments import check_number, check_per_row, entries_left, prepare
from anymax.mappings.total import sums_to


@sums_to("weights")
def sigmoid(scores: Tensor, bias: float | Tensor | None = None, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Give every entry the weight sigmoid(score + bias), which does not depend on the other scores.

    A row is no distribution: its weights sum to anything from zero to the number of entries.

    Args:
        scores: floating point, any shape.
        bias: a number, or a tensor that broadcasts against `scores` with size 1 along `dim`, which gets a gradient. By
            default -log n, where n is the number of entries that the mask leaves, so that scores of zero sum to about
            one.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; the others get zero.

    Ramapuram et al. 2024.

    Example:
        >>> anymax.sigmoid(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.6488, 0.5284, 0.2919, 0.0842])
    """
    prepared = prepare(scores, dim, mask)
    if isinstance(bias, Tensor):
        check_per_row("bias", bias, prepared, dim)
        bias = bias.to(prepared.dtype)
    elif bias is not None:
        check_number("bias", bias)
        if not math.isfinite(bias):
            raise ValueError(f"bias must be finite, got {bias}; None is -log of the number of entries")
    else:
        bias = -entries_left(prepared, dim).log()
    return torch.sigmoid(prepared + bias).to(scores.dtype)


@sums_to("weights")
class Sigmoid(nn.Module):
    """`sigmoid` as a Module; its bias is a fixed number, or -log n.

    Args:
        bias: a number; by default -log n.
        dim: the dimension of the entries.

    Example:
        >>> from anymax.attention import MultiHeadAttention
        >>> layer = MultiHeadAttention(16, 4, mapping=anymax.mappings.Sigmoid())
        >>> layer(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(self, bias: float | None = None, dim: int = -1) -> None:
        super().__init__()
        self.bias = bias
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return sigmoid(scores, self.bias, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"bias={self.bias}, dim={self.dim}"
