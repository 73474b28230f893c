"""Softcap: scores that stay within a bound."""

import math

import torch
from torch import Tensor, nn

from anymax.kernels.rows import computed_in


def softcap(scores: Tensor, cap: float = 50.0) -> Tensor:
    """Bend scores so that none leaves (-cap, cap), and those near zero stay as they are.

        cap tanh(scores / cap)

    A score of minus infinity becomes -cap: mask after it. Half precision is computed in float32.

    Args:
        scores: any shape.
        cap: above 0. Gemma 2 has 50 in attention and 30 before the softmax of the output.

    Bello et al. 2016.

    Example:
        >>> anymax.transforms.softcap(torch.tensor([-1000.0, -1.0, 0.0, 40.0, 1000.0]))
        tensor([-50.0000,  -0.9999,   0.0000,  33.2018,  50.0000])
    """
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with scores.float()")
    _check_cap(cap)
    return (cap * torch.tanh(scores.to(computed_in(scores.dtype)) / cap)).to(scores.dtype)


class Softcap(nn.Module):
    """`softcap` as a Module; its cap is a fixed number.

    Args:
        cap: above 0.

    Example:
        >>> from anymax.attention import MultiHeadAttention
        >>> layer = MultiHeadAttention(16, 4, transform=anymax.transforms.Softcap(50.0))
        >>> layer(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(self, cap: float = 50.0) -> None:
        super().__init__()
        _check_cap(cap)
        self.cap = cap

    def forward(self, scores: Tensor) -> Tensor:
        return softcap(scores, self.cap)

    def extra_repr(self) -> str:
        return f"cap={self.cap:g}"


def _check_cap(cap: float) -> None:
    if not 0 < cap < math.inf:
        raise ValueError(f"cap must be a positive finite number, got {cap}; 50.0 is usual in attention")
