"""Models that take training steps in turn: what the steps take in memory and time, whole and part by part."""

import statistics
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from anymax.bench.memory import peak_bytes
from anymax.bench.timing import Budget, Timing, time_interleaved

# A dataclass of the milliseconds of each part of a step.
PartsT = TypeVar("PartsT", bound=Any)
PartsT_co = TypeVar("PartsT_co", covariant=True, bound=Any)


class Stepping(Protocol[PartsT_co]):
    """Called, it takes one step and tells the loss."""

    name: str

    def __call__(self) -> float: ...

    def parts(self) -> PartsT_co:
        """Take a step and tell where its time went."""
        ...

    @property
    def held_bytes(self) -> int:
        """What stays between steps."""
        ...


class Measured(NamedTuple, Generic[PartsT]):
    """What the steps of one took; their parts where they were asked for."""

    timing: Timing
    num_bytes: int
    parts: PartsT | None


def measure_steps(
    trainees: Sequence[Stepping[PartsT]], budget: Budget, *, part_steps: int = 0
) -> dict[str, Measured[PartsT]]:
    """Memory first, then time, interleaved; the first is the baseline. By name.

    Args:
        part_steps: of so many steps the parts are timed too.
    """
    peaks = {}
    for trainee in trainees:
        # The first step makes what the optimizer holds, which stays.
        trainee()
        peaks[trainee.name] = trainee.held_bytes + peak_bytes(trainee)
    runs = {trainee.name: trainee for trainee in trainees}
    timings = time_interleaved(runs, baseline=trainees[0].name, budget=budget)
    rounds = [[trainee.parts() for trainee in trainees] for _ in range(part_steps)]
    parts = {trainee.name: median_parts([step[i] for step in rounds]) for i, trainee in enumerate(trainees) if rounds}
    return {name: Measured(timings[name], peaks[name], parts.get(name)) for name in runs}


def median_parts(steps: Sequence[PartsT]) -> PartsT:
    """The median of each part over several steps."""
    return type(steps[0])(*(statistics.median(times) for times in zip(*map(astuple, steps), strict=True)))
