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
    What a handler of another signal raises while this begins or ends may leave it begun: the next SIGINT finds that the
    function that began it is gone, and is raised.

    Args:
        later: one that arrived is raised soon after the end, for destructors: what they raise is lost.
    """

    def __init__(self, *, later: bool = False) -> None:
        self._later = later
        self._before: Any = None
        self._arrived = False
        self._begun: FrameType | None = None  # the function in which it is a context

    def __enter__(self) -> None:
        if _thread.get_ident() != threading.main_thread().ident:
            return
        before, frame = _signal.getsignal(_SIGINT), sys._getframe(1)
        around = getattr(before, "__self__", None)
        if isinstance(around, InterruptsHeld):
            if _is_within(frame, around._begun):
                return
            before = around._before  # which nobody put back
        if callable(before):
            self._before, self._begun = before, frame  # before ours is in place: what arrives from then on is held
            try:
                _signal.signal(_SIGINT, self._hold)
            except BaseException:  # of another signal's handler, which ran behind the call
                _signal.signal(_SIGINT, before)
                raise

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if _is_within(frame, self._begun):
            self._arrived = True
            return
        self._begun = None
        _signal.signal(_SIGINT, self._before)
        self._before(number, frame)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            _signal.signal(_SIGINT, self._before)
            self._begun = None
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


def _is_within(frame: FrameType | None, around: FrameType | None) -> bool:
    """Whether a function is called by another one, or is it."""
    while frame is not None and frame is not around:
        frame = frame.f_back
    return frame is not None


def _in_destructor(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
