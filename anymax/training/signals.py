"""Signals that ask a run to stop: the loop finishes its step, saves, and ends."""

import signal
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
