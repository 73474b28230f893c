"""How fast this processor multiplies matrices in bfloat16, as some announce it and are slow at it or refuse it.

Measured in a separate process, which an illegal instruction may end. Imports no torch.
"""

import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# A product in bfloat16 is slow where it takes this many times as long as in float32; below, it may be noise.
SLOW = 1.2
# Most of the time goes into importing torch; the products take a fifth of a second, or four rounds of them.
SECONDS = 120.0
# Of an instruction that the processor or its virtual machine does not run.
REFUSALS = (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS)
ANNOUNCED = ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16")
_CPU = Path("/proc/cpuinfo")
_SCRIPT = """
import time
import torch

torch.set_num_threads(1)
dtypes = (torch.float32, torch.bfloat16)
matrices = {dtype: torch.ones(256, 256, dtype=dtype) for dtype in dtypes}
seconds = {dtype: [] for dtype in dtypes}
begin = time.perf_counter()
while len(seconds[torch.bfloat16]) < 4 or time.perf_counter() - begin < 0.2:
    for dtype in dtypes:
        a, start = matrices[dtype], time.perf_counter()
        # The products of a linear layer: its output, and its two gradients.
        a @ a.t(), a @ a, a.t() @ a
        seconds[dtype].append(time.perf_counter() - start)
print(min(seconds[torch.bfloat16]) / min(seconds[torch.float32]))
"""


@dataclass(frozen=True)
class Measured:
    """How multiplying in bfloat16 went.

    Args:
        ratio: its time over that of float32; None where it could not be measured.
        ended_by: the signal that ended the process as it multiplied, as "SIGILL"; empty where none did.
    """

    ratio: float | None = None
    ended_by: str = ""

    @property
    def is_slow(self) -> bool:
        return self.ratio is not None and self.ratio > SLOW

    def __str__(self) -> str:
        if self.ended_by:
            return f"this processor refuses bfloat16: a product ends the process with {self.ended_by}"
        if self.ratio is None:
            return "products in bfloat16 could not be measured"
        return f"products in bfloat16 take {self.ratio:.2g} times as long as in float32 on this processor"


@cache
def measure() -> Measured:
    """Multiply in a new process, once; about as long as importing torch takes."""
    try:
        # Without -P a file torch.py in the current folder would be torch.
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _SCRIPT], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Measured()
    if -ended.returncode in REFUSALS:
        return Measured(ended_by=signal.Signals(-ended.returncode).name)
    return Measured(float(ended.stdout)) if ended.returncode == 0 else Measured()


def announced() -> list[str]:
    """The instructions for bfloat16 that the processor announces, by the names of Linux; none where it lists none."""
    listing = _CPU.read_text() if _CPU.exists() else ""
    flags = {flag for line in listing.splitlines() if line.startswith(("flags", "Features")) for flag in line.split()}
    return [name for name in ANNOUNCED if name in flags]
