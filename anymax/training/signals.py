"""Signals that ask a run to stop, from a user or as the parent process ended: the loop ends its step, saves, and ends.

Imports no torch.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The variable that names the process with which a training ends; its standard input is a pipe that this one holds.
PARENT = "ANYMAX_PARENT"
# From <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1


class StopSignals:
    """While the block runs, SIGINT and SIGTERM are noted; a second SIGINT raises KeyboardInterrupt at once.

    Outside the main thread nothing is noted, as Python delivers signals there alone.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._interrupted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *reason: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that Python did not set and cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        self.received = self.received or signal.Signals(number)


def end_with_parent(parent: int, wait: Callable[[], object]) -> None:
    """Send this process SIGTERM when its parent ends, however that ends, so that a run saves and stops.

    On Linux the kernel sends it, when the thread ends that started this process; elsewhere a thread of this process.

    Args:
        parent: the process id of the parent, which may have ended before this is called.
        wait: returns once the parent has ended, as the read of a pipe does whose other end only the parent holds.
    """
    # Where the parent ignores it, a child would too.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not (sys.platform == "linux" and _ask_kernel()):
        threading.Thread(target=_watch, args=(wait,), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _ask_kernel() -> bool:
    """Whether Linux takes the request."""
    return ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) == 0


def _watch(wait: Callable[[], object]) -> None:
    wait()
    os.kill(os.getpid(), signal.SIGTERM)
