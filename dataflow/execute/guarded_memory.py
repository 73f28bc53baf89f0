"""Host memory whose values have pages of their own, between pages that nobody may touch."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from .._runtime import ffi, lib
from ..cdevice.host_memory import LINE, BufferSlice
from ..errors import OutOfMemoryError
from ..planning.offsets import PAGE


class GuardedBuffer:
    """Host memory in which only the pages of values may be touched.

    Args:
        bytes: its size.
        pages: where each value has its pages, and its name.

    Attributes:
        base: the address, as a ``void *``.
        bytes: its size.
        __array_interface__: so that an array of bytes over it is a view that keeps it.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_memory", "base", "bytes")

    def __init__(self, bytes: int, pages: Sequence[tuple[range, str]]) -> None:
        self.bytes = bytes
        self._memory = mmap.mmap(-1, max(-(-bytes // PAGE) * PAGE, PAGE))
        self.base = ffi.cast("void *", ffi.from_buffer(self._memory))
        address = int(ffi.cast("uintptr_t", self.base))
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (bytes,), "data": (address, False)}
        lib.df_guard_forget(self.base, len(self._memory))
        access(self.base, len(self._memory), lib.DF_GUARD_NONE)
        for span, name in pages:
            base = ffi.cast("char *", self.base) + span.start
            access(base, len(span), lib.DF_GUARD_WRITE)
            lib.df_guard_name(base, len(span), name.encode())


def access(base: object, bytes: int, allowed: int) -> None:
    """Lets whole pages be touched as ``allowed`` says, one of ``lib.DF_GUARD_NONE`` and so on.

    Raises:
        OutOfMemoryError: the system keeps no more ranges of pages.
    """
    if lib.df_guard_access(base, bytes, allowed):
        raise OutOfMemoryError(f"{bytes} bytes could not be guarded: the system's limit of mappings is reached")


def pages_of(offset: int, bytes: int) -> range:
    """The bytes of the pages of a value."""
    return range(offset // PAGE * PAGE, -(-(offset + max(bytes, 1)) // PAGE) * PAGE)


def guarded_block(bytes: int, name: str) -> BufferSlice:
    """Guarded memory for one value, whose end is that of its last page, as far as its alignment allows."""
    behind = PAGE + len(pages_of(0, bytes))
    offset = behind - -(-bytes // LINE) * LINE
    return BufferSlice(GuardedBuffer(behind + PAGE, [(range(PAGE, behind), name)]), offset, bytes)
