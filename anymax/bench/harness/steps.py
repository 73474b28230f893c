"""Models that take training steps in turn, compared by memory and time, whole and part by part."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, astuple
from typing import Any, Protocol, TypeVar

from torch import nn

from anymax.bench.harness.comparison import Comparison, Entry
from anymax.bench.harness.memory import peak_bytes
from anymax.bench.harness.peers import Sweep
from anymax.bench.harness.timing import Budget, time_interleaved

# A dataclass of the milliseconds of each part of a step.
PartsT = TypeVar("PartsT", bound=Any)
PartsT_co = TypeVar("PartsT_co", covariant=True, bound=Any)


class Stepping(Protocol[PartsT_co]):
    """Called, it takes one step and returns the loss."""

    name: str
    setting: str

    @property
    def model(self) -> nn.Module: ...

    def __call__(self) -> float: ...

    def parts(self) -> PartsT_co:
        """Take a step and return the time of each part."""
        ...

    @property
    def held_bytes(self) -> int:
        """What stays between steps."""
        ...


def compare_steps(
    job: str,
    trainees: Sequence[Stepping[PartsT]],
    budget: Budget,
    sweeps: tuple[Sweep, ...] = (),
    *,
    part_steps: int = 0,
    tokens: int | None = None,
    device: str = "cpu",
) -> Comparison:
    """Memory first, then time, interleaved; the first is the baseline.

    Args:
        part_steps: the number of steps whose parts are timed too.
        tokens: of a step; where given, speeds are shown in place of times.
        device: whose memory is counted; a step on a GPU must wait for it.
    """
    peaks = {}
    for trainee in trainees:
        # The first step makes what the optimizer holds, which stays.
        trainee()
        peaks[trainee.name] = trainee.held_bytes + peak_bytes(trainee, device)
    runs = {trainee.name: trainee for trainee in trainees}
    timings = time_interleaved(runs, baseline=trainees[0].name, budget=budget)
    rounds = [[trainee.parts() for trainee in trainees] for _ in range(part_steps)]
    entries = [
        Entry(
            trainee.name,
            timings[trainee.name],
            trainee.setting,
            num_parameters=sum(parameter.numel() for parameter in trainee.model.parameters()),
            num_bytes=peaks[trainee.name],
            parts=asdict(median_parts([step[place] for step in rounds])) if rounds else None,
        )
        for place, trainee in enumerate(trainees)
    ]
    return Comparison(job, tuple(entries), sweeps, tokens=tokens, memory="peak MiB")


def median_parts(steps: Sequence[PartsT]) -> PartsT:
    """The median of each part over several steps."""
    return type(steps[0])(*(statistics.median(times) for times in zip(*map(astuple, steps), strict=True)))
