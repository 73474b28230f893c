"""How batches are counted, how long those of parallel rows are, and what is hidden in rows.

Plain data that imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

# The tokens of a batch of pairs: of one side, of both, or of the longer one, padding included.
Count = Literal["target", "source", "both", "padded"]


@dataclass(frozen=True)
class RandomLengths:
    """Batches of drawn lengths, so that batches begin at other places of the text in every epoch.

    A length is drawn from a normal distribution around the block of the batches, now and then around half of it, and
    rounded down. The learning rate for a batch is multiplied by its drawn length over the block. Merity et al. 2018.

    Args:
        short: how likely a batch is drawn around half of the block.
        deviation: the standard deviation, in tokens.
        least: shorter ones get this length.
        most: longer ones get this length; None leaves them.

    Example:
        >>> from anymax.data import ContiguousBatches, RandomLengths
        >>> drawn = RandomLengths(deviation=2.0, least=3)
        >>> batches = ContiguousBatches(torch.arange(100), batch_size=1, block=10, eos=0, random_lengths=drawn, seed=1)
        >>> lengths = [batch.lengths.item() for batch in batches]
        >>> len(set(lengths)) > 1, sum(lengths)
        (True, 100)
    """

    short: float = 0.05
    deviation: float = 5.0
    least: int = 5
    most: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.short <= 1:
            raise ValueError(f"short must be between 0 and 1, got {self.short}")
        if not 0 <= self.deviation < math.inf:
            raise ValueError(f"deviation must be at least 0 and finite, got {self.deviation}")
        if self.least < 1:
            raise ValueError(f"least must be at least 1, got {self.least}")
        if self.most is not None and self.most < self.least:
            raise ValueError(f"most must be at least as large as least, {self.least}, got {self.most}")

    def toy(self) -> RandomLengths:
        """The same for blocks of a few tokens."""
        return replace(self, deviation=min(self.deviation, 2.0), least=2, most=None if self.most is None else 12)


@dataclass(frozen=True)
class Masking:
    """How pieces are hidden.

    Args:
        share: how many pieces of a row are chosen, rounded, but at least one; special ones never are.
        masked: of these the share that becomes "[MASK]".
        random: of these the share that becomes a piece drawn at random; the rest stays as it is.

    Example:
        >>> from anymax.data import Masking
        >>> Masking(share=0.3).share
        0.3
    """

    share: float = 0.15
    masked: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        # Written so that NaN fails too.
        if not 0 < self.share < 1:
            raise ValueError(f"share must lie strictly between 0 and 1, got {self.share}")
        if not (self.masked >= 0 and self.random >= 0 and self.masked + self.random <= 1):
            raise ValueError(
                f"masked and random must be at least 0 and at most 1 together, got {self.masked} and {self.random}"
            )
