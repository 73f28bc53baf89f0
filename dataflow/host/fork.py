"""What a forked child needs: locks that no other thread holds, since those threads do not exist there."""

from __future__ import annotations

import os
from typing import Protocol

from .weak import WeakList


class Renewed(Protocol):
    """An object with locks, or with work that other threads may have begun."""

    def renew(self) -> None:
        """Makes the locks anew and drops what another thread was working on; called in the child, on its one thread."""


_renewed: WeakList[Renewed] = WeakList()
renew_in_child = _renewed.add


def _renew() -> None:
    for item in _renewed.alive():
        item.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
