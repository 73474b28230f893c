"""Configs of the mapping that decides where attention looks, as plain data that imports no torch.

`build` makes the mapping of one block, the argument `mapping` of `MultiHeadAttention`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anymax.mappings import Entmax, LearnedEntmax


@dataclass(frozen=True)
class SoftmaxConfig:
    """Softmax decides where heads look."""

    def build(self, num_heads: int) -> None:
        """None, which attention takes for softmax and computes in one fused call."""


@dataclass(frozen=True)
class EntmaxConfig:
    """Entmax decides where heads look, with one alpha for all.

    Args:
        alpha: at least 0; 1 is softmax, 2 is sparsemax.
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
    """

    initial: float | None = None
    low: float = 1.0
    high: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high < math.inf:
            raise ValueError(f"low and high must be finite with 0 <= low < high, got {self.low} and {self.high}")
        if self.initial is not None and not self.low < self.initial < self.high:
            raise ValueError(f"initial must lie strictly between {self.low:g} and {self.high:g}, got {self.initial}")

    def build(self, num_heads: int) -> LearnedEntmax:
        """The mapping of one block, with an alpha for each of its heads."""
        from anymax.mappings import LearnedEntmax

        return LearnedEntmax(shape=(num_heads, 1, 1), initial=self.initial, low=self.low, high=self.high)


AttentionMappingConfig = SoftmaxConfig | EntmaxConfig | LearnedEntmaxConfig
