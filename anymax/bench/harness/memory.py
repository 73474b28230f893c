"""The memory a call takes at its worst moment, as torch's allocator sees it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from anymax.bench.harness.timing import Run


def peak_bytes(run: Run, device: str = "cpu") -> int:
    """The most that is allocated at once during the call, over what was there before.

    Scratch space inside torch's matrix products and our kernels is not seen; the kernels' is a few rows per thread.

    Args:
        device: whose memory is counted, "cpu" or "cuda".
    """
    if device == "cuda":
        return _peak_bytes_of_gpu(run)
    with _quiet_standard_error(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        result = run()
    del result
    assert watched.profiler is not None and watched.profiler.kineto_results is not None
    events = watched.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def _peak_bytes_of_gpu(run: Run) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


@contextmanager
def _quiet_standard_error() -> Iterator[None]:
    """The profiler announces itself there, below Python."""
    before = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
