"""Arrays of the kit: memory before and behind them belongs to nobody, and what lies in them at first is chosen."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from .._runtime import ffi, lib
from ..execute.canaries import CANARY
from ..execute.guarded_memory import GuardedBuffer, access, pages_of
from ..ir.types import Array
from ..planning.offsets import PAGE

_LINE = 64
_SPARE = 1024  # bytes by which an array may be moved
_free: dict[int, list[GuardedBuffer]] = {}  # memory that no array has, by size


Position = int | Literal["begin", "end"]
"""Where an array lies: at the begin of its pages, at a multiple of 64 bytes before their end, or so many elements."""


class GuardedArray:
    """An array at the end of pages of its own.

    Strings lie between none: no kernel sees the memory of their arrays.

    Args:
        shape: sizes.
        dtype: of its elements.
        name: for messages, of guard pages too.

    Attributes:
        array: where it lies now.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
        self.name = name
        self._form = (shape, dtype)
        self._memory: GuardedBuffer | None = None
        self.array: Array
        if dtype.hasobject:
            self.array = np.empty(shape, dtype)
            return
        self._bytes = int(np.prod(shape)) * dtype.itemsize
        self._pages = range(PAGE, PAGE + len(pages_of(0, self._bytes + _SPARE)))
        free = _free.get(self._pages.stop)
        self._memory = free.pop() if free else GuardedBuffer(self._pages.stop + PAGE, [(self._pages, name)])
        self.move("end")

    def release(self) -> None:
        """Lets the next array of this size have the memory: its pages are there already."""
        if self._memory is not None:
            _free.setdefault(self._pages.stop, []).append(self._memory)
            self._memory = None

    def move(self, position: Position) -> None:
        """Puts the array where ``position`` says."""
        if self._memory is None:
            return
        shape, dtype = self._form
        if position == "begin":
            self._offset = self._pages.start
        else:
            size = -(-self._bytes // _LINE) * _LINE if position == "end" else self._bytes + position * dtype.itemsize
            self._offset = self._pages.stop - size
        self._protect(lib.DF_GUARD_WRITE)
        memory = np.asarray(self._memory)
        memory[self._pages.start : self._offset] = CANARY
        memory[self._offset + self._bytes : self._pages.stop] = CANARY
        self.array = np.ndarray(shape, dtype, ffi.buffer(self._memory.base, self._memory.bytes), self._offset)
        # The newest name of an address is the one in messages: this array's, not that of its pages.
        lib.df_guard_name(ffi.cast("char *", self._memory.base) + self._offset, self._bytes, self.name.encode())

    def fill(self, array: Array) -> None:
        """Copies ``array`` into it."""
        self.array[...] = array

    def poison(self, byte: int) -> None:
        """Fills it with a byte."""
        if self._memory is not None:
            np.asarray(self._memory)[self._offset : self._offset + self._bytes] = byte

    def forbid_writes(self) -> None:
        """Lets its pages only be read until it is moved."""
        self._protect(lib.DF_GUARD_READ)

    def same_bytes(self, other: Array) -> bool:
        """Whether it has the bytes of ``other``, which has its shape."""
        return same_bytes(self.array, other)

    def damage(self) -> str | None:
        """Where bytes were written that belong to nobody, or None."""
        if self._memory is None:
            return None
        memory = np.asarray(self._memory)
        begin, end = self._offset, self._offset + self._bytes
        for where, span in (("before", memory[self._pages.start : begin]), ("behind", memory[end : self._pages.stop])):
            if (span != CANARY).any():
                return f"{self.name}: bytes outside the output were written, {where} it"
        return None

    def _protect(self, allowed: int) -> None:
        if self._memory is not None:
            access(ffi.cast("char *", self._memory.base) + self._pages.start, len(self._pages), allowed)


def same_bytes(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape and dtype have the same bytes; strings: whether they are equal."""
    if a.dtype.hasobject:
        return bool((a == b).all())
    # As bytes where they lie; copies of what doesn't lie in a row.
    first, second = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return np.array_equal(first, second)
