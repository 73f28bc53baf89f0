"""Counted memory that the CPU addresses, and arrays over it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._runtime import ffi, lib
from ..errors import InputError, OutOfMemoryError
from ..host import checks
from ..host.limits import Account, hold
from ..host.numbers import integer
from ..host.system_memory import require_memory
from ..ir.graph import Initializer
from ..ir.operand import Operand
from ..ir.types import MOST_AXES, Array, DType, TensorType
from ..ir.types import dtype as as_dtype
from ..plugin.device import Buffer

LINE = 64  # bytes; how buffers are aligned


class HostBuffer:
    """An allocation on the host, aligned to 64 bytes; freed with the object, by a function of C.

    Attributes:
        base: the address, as a ``void *``.
        bytes: its size.
        __array_interface__: so that an array of bytes over it is a view that keeps it.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_block", "base", "bytes")

    def __init__(self, bytes: int, account: Account | None = None) -> None:
        require_memory(bytes, "a buffer")
        self.bytes = bytes
        if account is not None:
            account.charge(self, "a buffer on the host")
        self._block = ffi.gc(ffi.new("df_host_block *"), lib.df_host_free)
        if lib.df_host_take(bytes, self._block):
            raise OutOfMemoryError(f"{bytes} bytes of host memory could not be had; use a smaller batch")
        self.base = self._block.base
        address = int(ffi.cast("uintptr_t", self.base))
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (bytes,), "data": (address, False)}


_VIEW: Any = ffi.buffer  # the type of what it returns


class Lent:
    """The memory of an array, used where it lies; the array lives as long as this.

    Args:
        array: can be lent.
        account: what counts its bytes, where the array was made for this.

    Attributes:
        base: the address, as a ``void *``.
        bytes: its size.
    """

    __slots__ = ("__weakref__", "_array", "base", "bytes")

    def __init__(self, array: Array, account: Account | None = None) -> None:
        self.bytes = array.nbytes
        if account is not None:
            account.charge(self, "a weight")
        self._array = array
        self.base = ffi.cast("void *", array.__array_interface__["data"][0])


class BufferSlice:
    """A part of a buffer on the host, which lives as long as this.

    Attributes:
        base: the address, as a ``void *``.
        bytes: its size.
    """

    __slots__ = ("__weakref__", "_buffer", "base", "bytes")

    def __init__(self, buffer: Buffer, offset: int, bytes: int) -> None:
        self._buffer = buffer
        self.base = ffi.cast("char *", buffer.base) + offset
        self.bytes = bytes


class Shown:
    """A buffer that the CPU addresses, as something that numpy makes an array of bytes over; the array keeps it.

    Args:
        buffer: on the host, in whoever's memory.
    """

    __slots__ = ("__array_interface__", "_buffer")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        address = int(ffi.cast("uintptr_t", buffer.base))
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (buffer.bytes,), "data": (address, False)}


def is_shown(array: Array) -> bool:
    """Whether the array lies in a buffer that ``Shown`` made arrays of."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner, Shown)


def can_lend(array: Array) -> bool:
    """Whether nothing can change the array, and it lies as a buffer does: contiguous, aligned to 64 bytes."""
    if not array.flags.c_contiguous or array.dtype.hasobject:
        return False
    if int(ffi.cast("intptr_t", address_of(array))) % LINE:
        return False
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return isinstance(owner, _VIEW)  # of others nothing is known


def empty(shape: tuple[int, ...], dtype: DType) -> Array:
    """An array with no particular content, which sessions on the CPU use where it lies once it can't be written.

    It is aligned to 64 bytes, and to large pages where it is large. Sessions copy other arrays, and so they do with
    this one while ``array.flags.writeable`` is true for it or for an array that it is a view of.

    Args:
        shape: sizes.
        dtype: of its elements.

    Raises:
        InputError: a size is negative, or elements have no fixed size.
        OutOfMemoryError: there is not so much memory.
    """
    shape = tuple(integer("empty: a size", size, 0) for size in checks.instance("empty: the shape", shape, tuple, list))
    dtype = as_dtype(dtype)
    size = _size(shape, dtype)
    require_memory(size, "an array")
    hold(size, "an array")
    memory = np.asarray(HostBuffer(size))
    return np.ndarray(shape, dtype.numpy, ffi.buffer(ffi.from_buffer(memory)))


def _size(shape: tuple[int, ...], dtype: DType) -> int:
    """Bytes of an array, or InputError where there can be none."""
    if len(shape) > MOST_AXES or as_dtype(dtype).kind == "s":
        raise InputError(f"empty: {len(shape)} axes of {dtype}: expected {MOST_AXES} at most, and elements of one size")
    return TensorType(dtype, shape).elements * dtype.numpy.itemsize


def data_of(initializer: Initializer, into: Array | None = None) -> Array:
    """The data: the array, or its product with the factor in new memory, read-only.

    Args:
        initializer: what is asked for.
        into: contiguous bytes, at least as many as the array's, where a product may lie instead.
    """
    array, factor = initializer.array, initializer.factor
    if factor is None:
        return array
    if into is None:
        made = empty(array.shape, as_dtype(array))
    else:
        made = into[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.multiply(array, factor, out=made, casting="same_kind")
    made.flags.writeable = False
    return made


def array_at(base: Any, size: int, operand: Operand) -> Array:
    """An array over the memory at ``base``, of ``size`` bytes, where ``operand`` lies; of strings, their numbers.

    Shares the memory.

    Args:
        base: a ``void *``.
        size: bytes that may be addressed from there.
        operand: with an offset inside.
    """
    dtype = operand.type.dtype.in_memory
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
