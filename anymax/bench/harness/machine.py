"""What a measurement was taken on: one description, without a date, of the machine and the software that matters."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from anymax.kernels import library
from anymax.version import __version__

MOST_BUSY = 0.1


@dataclass(frozen=True)
class Machine:
    """What decides how fast the CPU kernels are.

    Args:
        level: the instruction level of the native kernels in use.
        why_reference: why the native kernels are missing and torch serves in their place; None where they are there.
    """

    cpu: str
    cores: int
    threads: int
    level: str
    why_reference: str | None
    system: str
    python: str
    torch: str
    anymax: str

    @property
    def kernels(self) -> str:
        return f"native, {self.level}" if self.why_reference is None else f"torch reference ({self.why_reference})"


def describe() -> Machine:
    """The machine this process runs on, with torch's current number of threads."""
    return Machine(
        cpu=cpu_model(),
        cores=num_cores(),
        threads=torch.get_num_threads(),
        level=library.current_level(),
        why_reference=library.why_missing(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        anymax=__version__,
    )


def cpu_model() -> str:
    """The processor's name, as the kernel reports it, if it does."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def num_cores() -> int:
    """Logical cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_share(seconds: float = 0.3) -> float | None:
    """The share of all cores that other processes keep busy while this one sleeps; None where it cannot be known."""
    before = _core_ticks()
    time.sleep(seconds)
    after = _core_ticks()
    if before is None or after is None or after[1] == before[1]:
        return None
    return 1 - (after[0] - before[0]) / (after[1] - before[1])


def warnings() -> Iterator[str]:
    """What speaks against measuring now."""
    busy = busy_share()
    if busy is not None and busy > MOST_BUSY:
        yield f"other processes kept {busy:.0%} of the cores busy, which distorts the ratios; repeat on a quiet machine"


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run the block with a number of threads; None leaves torch's own."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _core_ticks() -> tuple[int, int] | None:
    """Idle time and all time of the cores together since the machine started."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in user already.
    ticks = [int(word) for word in counters.read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)
