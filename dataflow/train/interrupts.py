"""Ctrl-C waits while things change that belong together."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of signal: a tenth of a small training step
import _thread
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

_SIGINT = int(signal.SIGINT)


class InterruptsHeld:
    """A context in which SIGINT raises nothing: one that arrives is raised at the end, when everything has changed.

    Only the main thread is interrupted by signals, so elsewhere it does nothing; nor does it inside of another one.

    Args:
        later: one that arrived is raised soon after the end, for destructors: what they raise is lost.
    """

    def __init__(self, *, later: bool = False) -> None:
        self._later = later
        self._before: Any = None
        self._arrived = False

    def __enter__(self) -> None:
        if _thread.get_ident() != threading.main_thread().ident:
            return
        before = _signal.getsignal(_SIGINT)
        if callable(before) and not isinstance(getattr(before, "__self__", None), InterruptsHeld):
            self._before = before  # before ours is in place: what arrives from then on is held
            _signal.signal(_SIGINT, self._hold)

    def _hold(self, _number: int, _frame: FrameType | None) -> None:
        self._arrived = True

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            _signal.signal(_SIGINT, self._before)
            if self._arrived and self._later:
                _thread.start_new_thread(_raise_outside_destructors, ())
            elif self._arrived:
                signal.raise_signal(signal.SIGINT)


def _raise_outside_destructors() -> None:
    """Interrupts the main thread once it runs no destructor: what is raised in one is lost."""
    main = threading.main_thread().ident
    assert main is not None
    while _in_destructor(sys._current_frames().get(main)):
        time.sleep(0.001)
    # Keeps the lock of the interpreter: the main thread stands where it was seen. To it alone, so that it wakes.
    signal.pthread_kill(main, signal.SIGINT)


def _in_destructor(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
