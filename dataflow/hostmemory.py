"""Counted memory that the CPU addresses, and arrays over it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._runtime import ffi, lib
from .errors import OutOfMemoryError
from .graph import Array
from .native import Operand


class HostBuffer:
    """An allocation on the host, aligned to 64 bytes; freed with the object.

    Attributes:
        base: the address, as a ``void *``.
        bytes: its size.
    """

    __slots__ = ("base", "bytes")

    def __init__(self, bytes: int) -> None:
        self.base = ffi.NULL
        self.bytes = bytes
        self.base = lib.df_host_alloc(bytes)
        if self.base == ffi.NULL:
            raise OutOfMemoryError(f"{bytes} bytes of host memory could not be had; use a smaller batch")

    def __del__(self) -> None:
        if self.base != ffi.NULL:
            lib.df_host_free(self.base, self.bytes)


def array_at(base: Any, size: int, operand: Operand) -> Array:
    """An array over the memory at ``base``, of ``size`` bytes, where ``operand`` lies. Shares the memory.

    Args:
        base: a ``void *``.
        size: bytes that may be addressed from there.
        operand: with an offset inside.
    """
    dtype = operand.type.dtype.numpy
    shape = operand.type.sizes
    if operand.type.elements == 0:
        return np.empty(shape, dtype)
    memory = np.frombuffer(ffi.buffer(base, size), np.uint8)
    strides = tuple(s * dtype.itemsize for s in operand.strides)
    return np.ndarray(shape, dtype, memory, operand.offset, strides)


def address_of(array: Array) -> Any:
    """The address of a contiguous array, as a pointer; the array must stay alive."""
    if array.dtype.kind in "fiub":
        return ffi.from_buffer(array)
    return ffi.cast("void *", array.__array_interface__["data"][0])


def allocated() -> tuple[int, int]:
    """Bytes of host memory allocated for tensors and not freed, and the number of such allocations so far."""
    return int(lib.df_allocated_bytes()), int(lib.df_allocation_count())
