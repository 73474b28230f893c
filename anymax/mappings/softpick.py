"""Softpick: a softmax that may choose nothing."""

import torch
from torch import Tensor, nn

from anymax.mappings.arguments import largest, prepare
from anymax.mappings.total import sums_to


@sums_to("at most one")
def softpick(scores: Tensor, *, eps: float = 1e-8, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Give entries above zero shares that sum to less than one where others are below.

        relu(exp(z) - 1) / (sum |exp(z) - 1| + eps)

    An entry gets nothing below a score of zero, and a row of such entries sums to zero: no sink is needed. Unlike
    softmax it changes when a constant is added to all scores.

    Args:
        scores: floating point, any shape.
        eps: above 0, what keeps a row of zeros from being divided by zero.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen; the others get zero and count for nothing.

    Zuhri et al. 2025.

    Example:
        >>> anymax.softpick(torch.tensor([2.0, 1.5, 0.5, -1.0]))
        tensor([0.5729, 0.3122, 0.0582, 0.0000])
        >>> anymax.softpick(torch.tensor([-2.0, -1.5]))
        tensor([0., 0.])
    """
    if not eps > 0:
        raise ValueError(f"eps must be above 0, got {eps}")
    prepared = prepare(scores, dim, mask)
    left_out = prepared == -torch.inf
    prepared = prepared.masked_fill(left_out, 0)
    # Everything is divided by exp(top), so that nothing overflows.
    top = largest(prepared, dim).clamp(min=0)
    is_small = prepared < 1
    small = torch.expm1(torch.where(is_small, prepared, 0)) * torch.exp(-top)
    large = torch.exp(torch.where(is_small, top, prepared) - top) - torch.exp(-top)
    above_zero = torch.where(is_small, small, large)
    total = above_zero.abs().sum(dim, keepdim=True) + eps * torch.exp(-top)
    return (above_zero.relu() / total).to(scores.dtype)


@sums_to("at most one")
class Softpick(nn.Module):
    """`softpick` as a Module.

    Args:
        eps: above 0, as in `softpick`.
        dim: the dimension of the entries.

    Example:
        >>> from anymax.attention import MultiHeadAttention
        >>> layer = MultiHeadAttention(16, 4, mapping=anymax.mappings.Softpick())
        >>> weights = layer.probs(torch.randn(2, 5, 16))
        >>> (weights.sum(-1) <= 1).all()
        tensor(True)
    """

    def __init__(self, *, eps: float = 1e-8, dim: int = -1) -> None:
        super().__init__()
        self.eps = eps
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return softpick(scores, eps=self.eps, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        return f"eps={self.eps:g}, dim={self.dim}"
