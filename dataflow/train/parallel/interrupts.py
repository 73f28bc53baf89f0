"""Ctrl-C in a job of processes: it reaches each of them at another point, so it waits until all stop at the same."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class InterruptsNoted:
    """A context in which the first SIGINT is noted only, and the next does what it did before.

    Outside of the main thread, and where SIGINT has no handler of Python's, it does nothing.

    Attributes:
        arrived: whether one did.
    """

    def __init__(self) -> None:
        self.arrived = False
        self._before: Any = None

    def __enter__(self) -> InterruptsNoted:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.arrived:
            self._before(number, frame)
        self.arrived = True

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
