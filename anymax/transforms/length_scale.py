"""LengthScale: scores that grow with the number of entries, so that long rows are no flatter than short ones.

Softmax of n scores of a fixed spread gives each about 1/n: the longer the row, the less any entry can stand out.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from anymax.kernels.rows import computed_in

Part = Literal["delta", "beta", "gamma"]


def length_scale(
    scores: Tensor,
    beta: float | Tensor,
    *,
    delta: float | Tensor = 0.0,
    gamma: float | Tensor = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
) -> Tensor:
    """Multiply every row by delta + beta (log n)^gamma, where n is the number of its entries.

    Args:
        scores: floating point, any shape.
        beta: a number, or a tensor that broadcasts against `scores` with size 1 along `dim`, which gets a gradient.
        delta: as beta.
        gamma: as beta.
        dim: the dimension of the entries.
        mask: true where an entry may be chosen. Entries that are masked or minus infinity do not count in n.

    Nakanishi 2025 (scalable softmax, delta 0 and gamma 1); Vasylenko et al. 2025.

    Example:
        >>> short, long = torch.tensor([[4.0, 0.0]]), torch.tensor([[4.0] + [0.0] * 999])
        >>> scale = anymax.transforms.length_scale
        >>> [round(anymax.softmax(row)[0, 0].item(), 2) for row in (short, long)]
        [0.98, 0.05]
        >>> [round(anymax.softmax(scale(row, 1.5))[0, 0].item(), 2) for row in (short, long)]
        [0.98, 1.0]
    """
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}; convert them with scores.float()")
    wide = scores.to(computed_in(scores.dtype))
    left = wide != -torch.inf
    if mask is not None:
        left = left & mask
    factor = length_factor(left.sum(dim, keepdim=True).to(wide.dtype), beta, delta=delta, gamma=gamma)
    # Minus infinity stays what it is whatever the factor.
    left_out = wide == -torch.inf
    return (wide.masked_fill(left_out, 0) * factor).masked_fill(left_out, -torch.inf).to(scores.dtype)


def length_factor(
    num_entries: Tensor, beta: float | Tensor, *, delta: float | Tensor = 0.0, gamma: float | Tensor = 1.0
) -> Tensor:
    """delta + beta (log n)^gamma, and delta alone for rows of one entry or none, whatever gamma."""
    is_longer = num_entries > 1
    power = torch.where(is_longer, num_entries, math.e).log() ** gamma
    return delta + beta * torch.where(is_longer, power, 0)


class LengthScale(nn.Module):
    """`length_scale` as a Module, with what is learned of its formula.

    As the transform of `MultiHeadAttention` or `attention`, which count the keys that a query may attend to, it
    multiplies the queries and not the scores, which costs next to nothing.

    Args:
        shape: of the learned numbers; broadcasts against the scores with size 1 along `dim`. `(heads, 1, 1)` gives each
            head of a (batch, heads, queries, keys) attention its own.
        dim: the dimension of the entries.
        beta: its initial value, which it keeps if it is not learned. The default leaves rows of about 400 entries as
            they are.
        delta: as beta.
        gamma: as beta.
        learned: the names of those that are learned. The default is scalable softmax; all three, from delta 1, with
            entmax, are ASEntmax without its dependence on the query.

    Example:
        >>> from anymax.attention import MultiHeadAttention
        >>> scale = anymax.transforms.LengthScale((4, 1, 1))  # one beta for each of 4 heads
        >>> layer = MultiHeadAttention(16, 4, mapping=anymax.Entmax(1.5), transform=scale)
        >>> layer(torch.randn(2, 5, 16), is_causal=True).sum().backward()
        >>> scale.beta.grad.shape
        torch.Size([4, 1, 1])
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (1,),
        dim: int = -1,
        *,
        beta: float = 0.168,
        delta: float = 0.0,
        gamma: float = 1.0,
        learned: Sequence[Part] = ("beta",),
    ) -> None:
        super().__init__()
        self.initial: dict[Part, float] = {"delta": delta, "beta": beta, "gamma": gamma}
        for name, value in self.initial.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        if isinstance(learned, str) or not set(learned) <= set(self.initial):
            raise ValueError(f"learned must be a tuple of 'delta', 'beta' and 'gamma', got {learned!r}")
        self.shape = shape
        self.dim = dim
        self.learned = tuple(learned)
        self.delta, self.beta, self.gamma = (self._make(name) for name in ("delta", "beta", "gamma"))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, self.initial[name])  # type: ignore[index]

    def factor(self, num_entries: Tensor) -> Tensor:
        """The factor of rows of `num_entries` entries, which has size 1 along `dim`."""
        return length_factor(num_entries, self.beta, delta=self.delta, gamma=self.gamma)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return length_scale(scores, self.beta, delta=self.delta, gamma=self.gamma, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        numbers = ", ".join(f"{name}={value:g}" for name, value in self.initial.items())
        return f"shape={tuple(self.shape)}, dim={self.dim}, {numbers}, learned={self.learned}"

    def _make(self, name: Part) -> nn.Parameter | float:
        return nn.Parameter(torch.empty(self.shape)) if name in self.learned else self.initial[name]
