"""Contestants that do one job, compared by time and, where it was measured, by memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anymax.bench.harness.memory import peak_bytes
from anymax.bench.harness.peers import Sweep
from anymax.bench.harness.timing import Budget, Run, Timing, time_interleaved


@dataclass(frozen=True)
class Contestant:
    """Args:
    run: one forward and backward; returns the gradients.
    gradient_bytes: what the gradients take, which is not counted as extra memory.
    setting: what was chosen for it, if anything was.
    """

    name: str
    run: Run
    gradient_bytes: int
    setting: str = ""


@dataclass(frozen=True)
class Entry:
    """What was measured of one contestant; None for what was not, which then has no column.

    Args:
        setting: what was chosen for it, if anything was.
        maker: whose it is, where several packages are compared.
        num_bytes: the most that is allocated at once.
        rows: how many rows reached the loss, for each example.
        parts: the milliseconds of each part of a training step.
    """

    name: str
    timing: Timing
    setting: str = ""
    maker: str = ""
    num_parameters: int | None = None
    num_bytes: int | None = None
    rows: float | None = None
    parts: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Comparison:
    """Contestants that do one job; the first is the baseline.

    Args:
        case: comparisons of one job with a case each, such as the shape of the scores, are columns of one table.
        tokens: of a training step; where given, speeds are shown in place of times.
        unit: heads the column of times.
        memory: heads the column of bytes, in MiB.
        memory_baseline: the contestant whose bytes the others' are compared with; by default the first.
        rows: heads the column of rows.
    """

    job: str
    entries: tuple[Entry, ...]
    sweeps: tuple[Sweep, ...] = ()
    case: str = ""
    tokens: int | None = None
    unit: str = "ms"
    memory: str = "extra MiB"
    memory_baseline: str = ""
    rows: str = "rows"


def compare(
    job: str,
    contestants: Sequence[Contestant],
    budget: Budget,
    sweeps: tuple[Sweep, ...] = (),
    *,
    device: str = "cpu",
) -> Comparison:
    """Memory first, over inputs and gradients, then time, interleaved; the first contestant is the baseline.

    Args:
        device: whose memory is counted; a contestant that runs on a GPU must wait for it.
    """
    extra = {one.name: max(0, peak_bytes(one.run, device) - one.gradient_bytes) for one in contestants}
    runs: Mapping[str, Run] = {one.name: one.run for one in contestants}
    timings = time_interleaved(runs, baseline=contestants[0].name, budget=budget)
    entries = [Entry(one.name, timings[one.name], one.setting, num_bytes=extra[one.name]) for one in contestants]
    return Comparison(job, tuple(entries), sweeps)


def fastest(function: str, runs: Mapping[str, Run], budget: Budget) -> Sweep:
    """Try a contestant's settings and choose the fastest."""
    timings = time_interleaved(runs, baseline=next(iter(runs)), budget=budget)
    tried = {setting: timing.milliseconds.median for setting, timing in timings.items()}
    return Sweep(function, "milliseconds", tried, min(tried, key=tried.__getitem__))
