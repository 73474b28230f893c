"""What a benchmark returns: numbers and names, nothing about how they are shown."""

from dataclasses import dataclass

from anymax.bench.machine import Machine
from anymax.bench.peers import Sweep
from anymax.bench.timing import Timing


@dataclass(frozen=True)
class Entry:
    """One contestant on one case: whose it is, what it is, and the setting that was chosen for it, if any."""

    maker: str
    name: str
    setting: str
    timing: Timing


@dataclass(frozen=True)
class CaseResult:
    """Every contestant on one shape and scale of scores; the first entry is the baseline."""

    case: str
    scale: float
    entries: tuple[Entry, ...]
    sweeps: tuple[Sweep, ...]


@dataclass(frozen=True)
class Report:
    """One run of a benchmark.

    Args:
        cases: forward and backward.
        calls: one small call without a gradient, where the overhead is what counts; the first entry is the baseline.
        notes: what a reader must know to read the numbers.
    """

    title: str
    machine: Machine
    cases: tuple[CaseResult, ...]
    small_case: str
    calls: tuple[Entry, ...]
    notes: tuple[str, ...]
