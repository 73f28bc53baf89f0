"""Pauses the cyclic garbage collector while many objects are created that all survive."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_paused = False  # by a thread of this process


def collection_paused(make: Callable[[], T]) -> T:
    """What ``make`` returns; no collection meanwhile. One that was off before stays off afterwards.

    It takes a function, since Ctrl-C between the begin of a ``with`` block's manager and that of the block would leave
    the collector off.
    """
    global _paused
    if not gc.isenabled():
        return make()
    try:
        _paused = True
        gc.disable()
        return make()
    finally:
        gc.enable()  # first: a call of C, before which no signal is looked at
        _paused = False


def _resume_in_child() -> None:
    """Resumes it in a forked child, where the thread that paused it doesn't exist."""
    if _paused:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)
