"""Renews locks in a forked child: the threads that may have held them don't exist there."""

from __future__ import annotations

import os
from typing import Protocol

from .weak import WeakList


class Renewed(Protocol):
    """An object with locks, or with work that other threads may have begun."""

    def renew(self) -> None:
        """Replaces the locks and drops unfinished work of other threads; called in the child, on its only thread."""


_renewed: WeakList[Renewed] = WeakList()
renew_in_child = _renewed.add


def _renew() -> None:
    for item in _renewed.alive():
        item.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
