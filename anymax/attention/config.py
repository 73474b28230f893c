"""Configs of the mapping that decides where attention looks, as plain data that imports no torch.

`build` makes the mapping of one block, the argument `mapping` of `MultiHeadAttention`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anymax.checks import check_alpha_range, check_positive

if TYPE_CHECKING:
    from anymax.mappings import Entmax, LearnedEntmax, Rectified, Sigmoid, Softpick


@dataclass(frozen=True)
class SoftmaxConfig:
    """Softmax decides where heads look.

    Example:
        >>> config = anymax.attention.SoftmaxConfig()
        >>> anymax.attention.MultiHeadAttention(16, 4, mapping=config.build(num_heads=4)).mapping is None
        True
    """

    def build(self, num_heads: int) -> None:
        """None, which attention takes for softmax and computes in one fused call."""


@dataclass(frozen=True)
class EntmaxConfig:
    """Entmax decides where heads look, with one alpha for all.

    Args:
        alpha: at least 0; 1 is softmax, 2 is sparsemax.

    Example:
        >>> config = anymax.attention.EntmaxConfig(alpha=1.5)
        >>> anymax.attention.MultiHeadAttention(16, 4, mapping=config.build(num_heads=4)).mapping
        Entmax(alpha=1.5, dim=-1)
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be finite and at least 0, got {self.alpha}; 1 is softmax, 2 is sparsemax")

    def build(self, num_heads: int) -> Entmax:
        """The mapping of one block."""
        from anymax.mappings import Entmax

        return Entmax(self.alpha)


@dataclass(frozen=True)
class LearnedEntmaxConfig:
    """Entmax decides where heads look, and every head of every block learns its alpha, by default between 1 and 2.

    Args:
        initial: the alpha that all start from; by default each starts from its own, drawn at random.
        low: what alphas stay above, at least 0.
        high: what alphas stay below.
        clamp: the least alpha, below which a head gets no gradient, as 1.01 in the code of Correia et al. 2019; by
            default there is none.

    Example:
        >>> config = anymax.attention.LearnedEntmaxConfig(initial=1.3)
        >>> anymax.attention.MultiHeadAttention(16, 4, mapping=config.build(num_heads=4)).mapping
        LearnedEntmax(shape=(4, 1, 1), dim=-1, low=1, high=2)
    """

    initial: float | None = None
    low: float = 1.0
    high: float = 2.0
    clamp: float | None = None

    def __post_init__(self) -> None:
        check_alpha_range(self.low, self.high, initial=self.initial, clamp=self.clamp)

    def build(self, num_heads: int) -> LearnedEntmax:
        """The mapping of one block, with an alpha for each of its heads."""
        from anymax.mappings import LearnedEntmax

        return LearnedEntmax(
            shape=(num_heads, 1, 1), initial=self.initial, low=self.low, high=self.high, clamp=self.clamp
        )


@dataclass(frozen=True)
class SigmoidConfig:
    """A sigmoid of its score weighs each position, whatever the scores of the others are.

    Args:
        bias: what is added to every score; by default -log of the number of positions that may be attended to.

    Example:
        >>> config = anymax.attention.SigmoidConfig()
        >>> anymax.attention.MultiHeadAttention(16, 4, mapping=config.build(num_heads=4)).mapping
        Sigmoid(bias=None, dim=-1)
    """

    bias: float | None = None

    def __post_init__(self) -> None:
        if self.bias is not None and not math.isfinite(self.bias):
            raise ValueError(f"bias must be finite, got {self.bias}; None is -log of the number of entries")

    def build(self, num_heads: int) -> Sigmoid:
        """The mapping of one block."""
        from anymax.mappings import Sigmoid

        return Sigmoid(self.bias)


@dataclass(frozen=True)
class RectifiedConfig:
    """Rectified scores, raised to a power, weigh the positions, whatever the scores of the others are.

    Args:
        power: at least 1.

    Example:
        >>> config = anymax.attention.RectifiedConfig(power=2.0)
        >>> anymax.attention.MultiHeadAttention(16, 4, mapping=config.build(num_heads=4)).mapping
        Rectified(power=2, dim=-1)
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.power < math.inf:
            raise ValueError(f"power must be finite and at least 1, got {self.power}")

    def build(self, num_heads: int) -> Rectified:
        """The mapping of one block."""
        from anymax.mappings import Rectified

        return Rectified(self.power)


@dataclass(frozen=True)
class SoftpickConfig:
    """Softpick decides where heads look, which may be nowhere.

    Args:
        eps: above 0, what keeps a row of zeros from being divided by zero.

    Example:
        >>> config = anymax.attention.SoftpickConfig()
        >>> anymax.attention.MultiHeadAttention(16, 4, mapping=config.build(num_heads=4)).mapping
        Softpick(eps=1e-08, dim=-1)
    """

    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_positive(eps=self.eps)

    def build(self, num_heads: int) -> Softpick:
        """The mapping of one block."""
        from anymax.mappings import Softpick

        return Softpick(eps=self.eps)


AttentionMappingConfig = (
    SoftmaxConfig | EntmaxConfig | LearnedEntmaxConfig | SigmoidConfig | RectifiedConfig | SoftpickConfig
)
