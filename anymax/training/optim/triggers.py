"""When something begins or ends: by how evaluations went, or by the epoch. Imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from anymax.training.checks import check_counts


@dataclass(frozen=True)
class NonMonotone:
    """Once an evaluation is worse than the best of those that lie more than `window` back.

    The earliest is the evaluation after `window` + 1 others. It counts evaluations, so evaluate once an epoch to count
    epochs. Merity et al. 2018, as their code has it: the paper's listing compares with the last `window` instead.

    Args:
        window: how many evaluations before the last one do not count.
    """

    needs_evaluations: ClassVar[bool] = True

    window: int = 5

    def __post_init__(self) -> None:
        check_counts(window=self.window)

    def is_due(self, goals: Sequence[float], epochs: int) -> bool:
        """Whether it is time.

        Args:
            goals: what evaluations gave so far, less being better. An undefined number is worse than any other.
            epochs: how many epochs are over.
        """
        *earlier, last = [math.inf if math.isnan(goal) else goal for goal in goals] or [math.inf]
        return len(earlier) > self.window and last > min(earlier[: -self.window])


@dataclass(frozen=True)
class AtEpoch:
    """Once so many epochs are over.

    Args:
        epoch: how many; 0 is the first step.
    """

    needs_evaluations: ClassVar[bool] = False

    epoch: int

    def __post_init__(self) -> None:
        check_counts(0, epoch=self.epoch)

    def is_due(self, goals: Sequence[float], epochs: int) -> bool:
        """Whether it is time; arguments as those of `NonMonotone`."""
        return epochs >= self.epoch


Trigger = NonMonotone | AtEpoch
