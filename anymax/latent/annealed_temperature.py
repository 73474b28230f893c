"""A temperature that falls while a model trains, as plain data that imports no torch."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class AnnealedTemperature:
    """max(floor, exp(-rate * step)), computed anew every so many steps.

    Args:
        rate: how fast it falls, per step.
        floor: where it stops, at most 1.
        every: it keeps its value for so many steps.
    """

    rate: float
    floor: float = 0.5
    every: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.rate < math.inf:
            raise ValueError(f"rate must be a finite number of at least 0, got {self.rate}")
        if not 0 < self.floor <= 1:
            raise ValueError(f"floor must be above 0 and at most 1, where the temperature starts, got {self.floor}")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be an integer of at least 1, got {self.every}")

    def at(self, step: int) -> float:
        """The temperature at a step, from 0 on."""
        from anymax.mappings import annealed_tau

        return annealed_tau(step - step % self.every, rate=self.rate, floor=self.floor)
