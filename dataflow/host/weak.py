"""Weak references without callbacks: a Python callback could swallow a KeyboardInterrupt that arrives in it."""

from __future__ import annotations

import itertools
import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakList(Generic[T]):
    """A list of weak references.

    Safe to use from several threads, without a lock: none can be held when the process is forked.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}
        self._numbers = itertools.count()
        self._most = 64  # from here on the dead ones are dropped

    def add(self, item: T) -> None:
        """Adds an object."""
        self._references[next(self._numbers)] = weakref.ref(item)
        if len(self._references) > self._most:
            # of a copy: the collector may run while pairs are made of items, and let others add
            for number, reference in self._references.copy().items():
                if reference() is None:
                    self._references.pop(number, None)
            self._most = max(64, 2 * len(self._references))

    def alive(self) -> list[T]:
        """Those that are alive, in the order in which they came."""
        return [item for item in [reference() for reference in list(self._references.values())] if item is not None]
