"""Weak references without callbacks: one in Python could swallow the Ctrl-C that it meets."""

from __future__ import annotations

import threading
import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakList(Generic[T]):
    """Objects that live only as long as others hold them; safe to use from several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._references: list[weakref.ref[T]] = []
        self._most = 64  # from here on the dead ones are dropped

    def add(self, item: T) -> None:
        """Adds an object."""
        with self.lock:
            self._references.append(weakref.ref(item))
            if len(self._references) > self._most:
                self._references = [reference for reference in self._references if reference() is not None]
                self._most = max(64, 2 * len(self._references))

    def alive(self) -> list[T]:
        """Those that are alive."""
        return [item for item in [reference() for reference in self._references] if item is not None]
