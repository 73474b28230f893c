"""Configs of the mapping that decides where attention looks, as plain data that imports no torch.

`build` makes the mapping of one block, the argument `mapping` of `MultiHeadAttention`.
"""

from __future__ import annotations

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
        if not self.alpha >= 0:
            raise ValueError(f"alpha must be at least 0, got {self.alpha}; 1 is softmax, 2 is sparsemax")

    def build(self, num_heads: int) -> Entmax:
        """The mapping of one block."""
        from anymax.mappings import Entmax

        return Entmax(self.alpha)


@dataclass(frozen=True)
class LearnedEntmaxConfig:
    """Entmax decides where heads look, and every head of every block learns its alpha between 1 and 2.

    Args:
        initial: the alpha that all start from; by default each starts from its own, drawn at random.
    """

    initial: float | None = None

    def __post_init__(self) -> None:
        if self.initial is not None and not 1 < self.initial < 2:
            raise ValueError(f"initial must lie strictly between 1 and 2, got {self.initial}")

    def build(self, num_heads: int) -> LearnedEntmax:
        """The mapping of one block, with an alpha for each of its heads."""
        from anymax.mappings import LearnedEntmax

        return LearnedEntmax(shape=(num_heads, 1, 1), initial=self.initial)


AttentionMappingConfig = SoftmaxConfig | EntmaxConfig | LearnedEntmaxConfig
