"""What a program does without Python: segments, copies and waits in a row as one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .._runtime import ffi, lib
from .abi import CData
from .status import raise_error


class NativeItem(Protocol):
    """Something of a plan that needs no Python to be done."""

    native: int

    def fill(self, entry: CData) -> None:
        """Fills a ``df_command``."""

    def check(self, status: int, error: CData) -> None:
        """Raises what a status means."""


class NativeItems:
    """Items in a row that one native call does.

    Attributes:
        native: how many of them are segments.
    """

    def __init__(self, items: Sequence[NativeItem]) -> None:
        self._items = _large_first(items)
        self.native = sum(item.native for item in items)
        self._entries = ffi.new("df_command[]", len(items))
        self.refill()
        self._failed, self._error = ffi.new("int64_t *"), ffi.new("df_error *")
        self._run = ffi.new("df_run *")
        self._run.struct_size = ffi.sizeof("df_run")

    def refill(self) -> None:
        """Takes what the items have become."""
        for entry, item in zip(self._entries, self._items, strict=True):
            entry.host_slot = -1
            item.fill(entry)

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        """Does them in order; see ``dataflow.plugin.device.BoundSegment``."""
        run = self._run
        run.n_slots, run.slots, run.cancel, run.calls = count, slots, cancel, calls
        status = lib.df_run_commands(self._entries, len(self._items), run, self._failed, self._error)
        if status:
            self._items[self._failed[0]].check(status, self._error)


def _large_first(items: Sequence[NativeItem]) -> list[NativeItem]:
    """The items, of uploads in a row the largest first: while the device copies it the host hands over the others."""
    found: list[NativeItem] = []
    for item in items:
        at = len(found)
        while isinstance(item, CopyItem) and at and item.overtakes(found[at - 1]):
            at -= 1
        found.insert(at, item)
    return found


class CopyItem:
    """A copy between a C device and the host, for ``NativeItems``.

    Args:
        device, handle: the ``df_device`` and what it wants first.
        direction: ``lib.DF_COPY_TO_DEVICE`` or ``lib.DF_COPY_TO_HOST``.
        memory: base and offset in the device's memory.
        host: address or number of a slot, and an offset in it.
        size: bytes.
        where: for messages.
    """

    native = 0

    def __init__(
        self,
        device: CData,
        handle: CData,
        direction: int,
        memory: tuple[CData, int],
        host: tuple[CData | int, int],
        size: int,
        where: str,
    ) -> None:
        self._device, self._handle, self._direction = device, handle, direction
        self._memory, self._host, self._size, self._where = memory, host, size, where

    def overtakes(self, other: NativeItem) -> bool:
        """Whether both go up, and this one is larger."""
        up = self._direction == lib.DF_COPY_TO_DEVICE
        return up and isinstance(other, CopyItem) and other._direction == self._direction and self._size > other._size

    def fill(self, entry: CData) -> None:
        """See ``NativeItem``."""
        entry.kind, entry.device, entry.self = lib.DF_COMMAND_COPY, self._device, self._handle
        copy, (slot_or_base, offset) = entry.copy, self._host
        copy.struct_size, copy.direction, copy.bytes = ffi.sizeof("df_copy"), self._direction, self._size
        base, begin = self._memory
        address = ffi.NULL
        if isinstance(slot_or_base, int):
            entry.host_slot, entry.host_offset = slot_or_base, offset
        else:
            address = ffi.cast("char *", slot_or_base) + offset
        if self._direction == lib.DF_COPY_TO_HOST:
            copy.to, copy.from_offset = address, begin
            setattr(copy, "from", base)
        else:
            copy.to, copy.to_offset = base, begin
            setattr(copy, "from", address)

    def check(self, status: int, error: CData) -> None:
        """See ``NativeItem``."""
        raise_error(status, error, self._where)
