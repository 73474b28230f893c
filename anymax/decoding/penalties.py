"""Length penalties: by what a sum of log-probabilities is divided, so that longer sentences are not always worse.

Imports no torch.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from anymax.checks import check_not_negative

# The length of a sentence is the number of its words and its <eos>, which has a log-probability too. No divisor
# falls as the length rises, and no log-probability is above 0. So a beginning with log-probability s can reach
# s / divisor(longest length) at most, whatever follows: that bound ends a search and proves its result.


@dataclass(frozen=True)
class NoPenalty:
    """The score is the log-probability.

    Example:
        >>> from anymax.decoding import NoPenalty
        >>> -6.0 / NoPenalty().divisor(length=3)
        -6.0
    """

    name: ClassVar[str] = "none"

    def divisor(self, length: int) -> float:
        return 1.0


@dataclass(frozen=True)
class AveragePenalty:
    """The score is the mean of the log-probabilities: their sum divided by the length.

    Example:
        >>> from anymax.decoding import AveragePenalty
        >>> -6.0 / AveragePenalty().divisor(length=3)
        -2.0
    """

    name: ClassVar[str] = "average"

    def divisor(self, length: int) -> float:
        return float(length)


@dataclass(frozen=True)
class GNMTPenalty:
    """The score is the log-probability divided by ((5 + length) / 6) ** alpha.

    Args:
        alpha: at least 0, where it is no penalty; near 1 it is close to the mean.

    Wu et al. 2016.

    Example:
        >>> from anymax.decoding import GNMTPenalty
        >>> penalty = GNMTPenalty(alpha=1.0)
        >>> penalty.name, -6.0 / penalty.divisor(length=7)
        ('gnmt:1', -3.0)
    """

    alpha: float = 0.6

    def __post_init__(self) -> None:
        check_not_negative(alpha=self.alpha)

    @property
    def name(self) -> str:
        return f"gnmt:{self.alpha:g}"

    def divisor(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.alpha)


LengthPenalty = NoPenalty | AveragePenalty | GNMTPenalty
PenaltyName = Literal["none", "average", "gnmt"]
NO_PENALTY = NoPenalty()


def named_penalty(name: PenaltyName | None, alpha: float | None = None) -> LengthPenalty | None:
    """The length penalty of a name, and for "gnmt" of an alpha; None where none was named."""
    if alpha is not None and name != "gnmt":
        raise ValueError(f"alpha is for the length penalty gnmt, got it with {name}; name gnmt, or leave alpha out")
    match name:
        case None:
            return None
        case "none":
            return NO_PENALTY
        case "average":
            return AveragePenalty()
        case "gnmt":
            return GNMTPenalty() if alpha is None else GNMTPenalty(alpha)
