"""Learning rates over a run, in plain Python: the factor of the optimizer's learning rate at each step.

Also the triggers, which decide when something begins or ends: by the results of evaluations, or by the epoch.

`step` is how many steps were taken before, so it runs from 0 to one less than the steps of the run.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self, final

from anymax.checks import check_counts, check_positive, check_shares


class Schedule(ABC):
    """A learning-rate schedule.

    Args:
        warmup: over how many steps the learning rate rises to the optimizer's; less than the steps of the run.
    """

    warmup: int | float

    @abstractmethod
    def factor(self, step: int, total_steps: int) -> float:
        """The factor of the optimizer's learning rate in a step."""

    def check_fits(self, total_steps: int) -> None:
        """Refuse a run that would end before its warm-up does."""
        if self.warmup >= total_steps:
            raise ValueError(
                f"schedule.warmup must be less than the {total_steps} steps of the run, got {self.warmup}; "
                "lower it or train for longer"
            )

    def toy(self) -> Self:
        """The same over a handful of steps."""
        return replace(self, warmup=min(self.warmup, 2))  # type: ignore[type-var]


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """A constant learning rate, after a linear warm-up.

    Args:
        warmup: over how many steps the learning rate rises to the optimizer's; less than the steps of the run.

    Example:
        >>> from anymax.training import Constant
        >>> [Constant(warmup=4).factor(step, total_steps=100) for step in (0, 1, 3, 50)]
        [0.25, 0.5, 1.0, 1.0]
    """

    warmup: int = 0

    def __post_init__(self) -> None:
        check_counts(0, warmup=self.warmup)

    def factor(self, step: int, total_steps: int) -> float:
        return _risen(step, self.warmup)


@final
@dataclass(frozen=True)
class Cosine(Schedule):
    """After a linear warm-up, half a cosine down to the end of the run; it fits a run of any length.

    Args:
        warmup: the share of the run's steps over which the learning rate rises.
        minimum: the final value, as a share of the optimizer's learning rate.

    Example:
        >>> from anymax.training import Cosine
        >>> [round(Cosine(warmup=0.1).factor(step, total_steps=100), 3) for step in (0, 9, 55, 99)]
        [0.1, 1.0, 0.5, 0.0]
    """

    warmup: float = 0.0
    _: KW_ONLY
    minimum: float = 0.0

    def __post_init__(self) -> None:
        check_shares(warmup=self.warmup, minimum=self.minimum)

    def factor(self, step: int, total_steps: int) -> float:
        warmup = math.floor(self.warmup * total_steps)
        if step < warmup:
            return _risen(step, warmup)
        return _fallen((step - warmup) / max(1, total_steps - warmup), self.minimum)

    def check_fits(self, total_steps: int) -> None:
        """A share fits into any run."""

    def toy(self) -> Self:
        return self


@final
@dataclass(frozen=True)
class CosineCycles(Schedule):
    """After a linear warm-up, cosines from the top to the bottom, each longer and lower than the one before.

    With lr 1, warmup 16000, period 18000, growth 2 and shrink 0.75, four cycles end with step 286000: the schedule of
    Baevski and Auli 2019 for WikiText-103.

    Args:
        warmup: over how many steps the learning rate rises to the optimizer's; less than the steps of the run.
        warmup_from: where the warm-up begins, as a share of the optimizer's learning rate.
        period: the steps of the first cycle.
        growth: by how much each cycle is longer than the one before.
        shrink: what top and bottom are multiplied by from cycle to cycle.
        minimum: the bottom of the first cycle, as a share of the optimizer's learning rate.

    Example:
        >>> from anymax.training import CosineCycles
        >>> schedule = CosineCycles(warmup=10, period=20, shrink=0.5, minimum=0.0)
        >>> [round(schedule.factor(step, total_steps=70), 3) for step in (5, 10, 20, 30, 50)]
        [0.5, 1.0, 0.5, 0.5, 0.25]
    """

    warmup: int = 0
    _: KW_ONLY
    period: int
    warmup_from: float = 1e-7
    growth: float = 2.0
    shrink: float = 1.0
    minimum: float = 1e-5

    def __post_init__(self) -> None:
        check_counts(0, warmup=self.warmup)
        check_counts(period=self.period)
        check_shares(warmup_from=self.warmup_from, shrink=self.shrink, minimum=self.minimum)
        check_positive(growth=self.growth)
        if self.growth < 1:
            raise ValueError(f"growth must be at least 1, got {self.growth}; shorter and shorter cycles never end")

    def factor(self, step: int, total_steps: int) -> float:
        if step < self.warmup:
            return self.warmup_from + (1 - self.warmup_from) * step / self.warmup
        cycle, share = self._place(step - self.warmup)
        return self.shrink**cycle * _fallen(share, self.minimum)

    def toy(self) -> Self:
        return replace(super().toy(), period=2)

    def _place(self, step: int) -> tuple[int, float]:
        """The cycle a step after the warm-up lies in, and the share of that cycle that is done."""
        if self.growth == 1:
            return step // self.period, step % self.period / self.period
        cycle, start, length = 0, 0.0, float(self.period)
        while step >= start + length:
            cycle, start, length = cycle + 1, start + length, length * self.growth
        return cycle, (step - start) / length


@final
@dataclass(frozen=True)
class Linear(Schedule):
    """After a linear warm-up, a line down to the end of the run. Devlin et al. 2019.

    Args:
        warmup: over how many steps the learning rate rises to the optimizer's; less than the steps of the run.
        minimum: where the line ends, as a share of the optimizer's learning rate.

    Example:
        >>> from anymax.training import Linear
        >>> [Linear(warmup=10).factor(step, total_steps=90) for step in (4, 10, 50, 90)]
        [0.5, 1.0, 0.5, 0.0]
    """

    warmup: int = 0
    _: KW_ONLY
    minimum: float = 0.0

    def __post_init__(self) -> None:
        check_counts(0, warmup=self.warmup)
        check_shares(minimum=self.minimum)

    def factor(self, step: int, total_steps: int) -> float:
        if step < self.warmup:
            return _risen(step, self.warmup)
        # Above the minimum in the last step too, which else would learn nothing.
        return 1 - (1 - self.minimum) * (step - self.warmup) / max(1, total_steps - self.warmup)


@final
@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    """A linear warm-up, then the root of warmup / step. Vaswani et al. 2017.

    Args:
        warmup: over how many steps the learning rate rises to the optimizer's; less than the steps of the run.

    Example:
        >>> from anymax.training import InverseSquareRoot
        >>> [InverseSquareRoot(warmup=100).factor(step, total_steps=1000) for step in (24, 99, 399)]
        [0.25, 1.0, 0.5]
    """

    warmup: int

    def __post_init__(self) -> None:
        check_counts(warmup=self.warmup)

    def factor(self, step: int, total_steps: int) -> float:
        return min(_risen(step, self.warmup), math.sqrt(self.warmup / (step + 1)))


def _risen(step: int, warmup: int) -> float:
    """Already the first step learns something; the last of the warm-up has the full learning rate."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _fallen(share: float, minimum: float) -> float:
    return minimum + 0.5 * (1 - minimum) * (1 + math.cos(math.pi * share))


@dataclass(frozen=True)
class NonMonotone:
    """Fires once an evaluation is worse than the best of those that lie more than `window` back.

    The earliest is the evaluation after `window` + 1 others. It counts evaluations, so evaluate once an epoch to count
    epochs. Merity et al. 2018, as their code has it: the paper's listing compares with the last `window` instead.

    Args:
        window: how many evaluations before the last one do not count.

    Example:
        >>> from anymax.training import NonMonotone
        >>> stop = NonMonotone(window=1)
        >>> stop.is_due([3.0, 2.0, 1.9], epochs=3), stop.is_due([3.0, 2.0, 1.9, 2.1], epochs=4)
        (False, True)
    """

    needs_evaluations: ClassVar[bool] = True

    window: int = 5

    def __post_init__(self) -> None:
        check_counts(window=self.window)

    def is_due(self, goals: Sequence[float], epochs: int) -> bool:
        """Whether the trigger fires.

        Args:
            goals: the results of evaluations so far, lower being better. An undefined number is worse than any other.
            epochs: the number of finished epochs.
        """
        *earlier, last = [math.inf if math.isnan(goal) else goal for goal in goals] or [math.inf]
        return len(earlier) > self.window and last > min(earlier[: -self.window])


@dataclass(frozen=True)
class AtEpoch:
    """Fires once a number of epochs is finished.

    Args:
        epoch: how many; 0 is the first step.

    Example:
        >>> from anymax.training import AtEpoch, AveragedSGDConfig
        >>> AveragedSGDConfig(lr=30.0, begin=AtEpoch(10)).begin
        AtEpoch(epoch=10)
    """

    needs_evaluations: ClassVar[bool] = False

    epoch: int

    def __post_init__(self) -> None:
        check_counts(0, epoch=self.epoch)

    def is_due(self, goals: Sequence[float], epochs: int) -> bool:
        """Whether the trigger fires; arguments as those of `NonMonotone`."""
        return epochs >= self.epoch


Trigger = NonMonotone | AtEpoch
