"""The items of a bound plan that are no segments, and what calls items one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._runtime import lib
from ..cdevice.abi import CData
from ..cdevice.host_memory import array_at
from ..cdevice.sequence import NativeItems
from ..ir.kernel import HOST
from ..ir.plan import Plan, Transfer
from ..plugin.device import Backend


def in_sequence(items: Sequence[Any]) -> list[Any]:
    """The bound items in order, those in a row that need no Python as one native call."""
    found: list[Any] = []
    row: list[Any] = []
    for item in (*items, None):
        native = item.as_native() if hasattr(item, "as_native") else item if hasattr(item, "fill") else None
        if native is not None:
            row.append(native)
            continue
        if row:
            found.append(NativeItems(row))
            row = []
        if item is not None:
            found.append(item)
    return found


class BoundWait:
    """A wait for a device."""

    native = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def as_native(self) -> Any:
        """As an item of a native call, or None."""
        return self._backend if hasattr(self._backend, "fill") else None

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        """See ``dataflow.plugin.device.BoundSegment``."""
        self._backend.sync()


class BoundPeerTransfer:
    """A copy between two devices that reach each other's memory; the receiver makes it."""

    native = 0

    def __init__(self, item: Transfer, table: Sequence[tuple[Any, int, int]], backends: Mapping[str, Backend]) -> None:
        self._source, self._from = item.source, table[item.source.arena][0]
        self._target, self._to = item.target, table[item.target.arena][0]
        self._backend = backends[item.to_device]

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        """See ``dataflow.plugin.device.BoundSegment``."""
        size = self._source.type.nbytes
        if size:
            self._backend.receive(self._to, self._target.offset, self._from, self._source.offset, size)


class BoundTransfer:
    """A copy between the host and a device."""

    native = 0

    def __init__(
        self,
        item: Transfer,
        plan: Plan,
        table: Sequence[tuple[Any, int, int]],
        backends: Mapping[str, Backend],
    ) -> None:
        self._to_host = plan.arenas[item.target.arena].memory == HOST
        host, device = (item.target, item.source) if self._to_host else (item.source, item.target)
        self._host, self._host_slot = host, table[host.arena]
        self._device, self._buffer = device, table[device.arena][0]
        self._backend = backends[item.from_device if self._to_host else item.to_device]
        self._empty = item.source.type.elements == 0

    @property
    def uploaded(self) -> int:
        """The slot of the array that is copied to a device; -1: memory that stays, or another direction."""
        return -1 if self._to_host or self._empty else self._host_slot[2]

    def as_native(self) -> Any:
        """As an item of a native call, or None."""
        if not hasattr(self._backend, "copying") or self._empty:
            return None
        buffer, _, slot = self._host_slot
        address = (slot if slot >= 0 else buffer.base, self._host.offset)
        direction = lib.DF_COPY_TO_HOST if self._to_host else lib.DF_COPY_TO_DEVICE
        return self._backend.copying(direction, self._buffer, self._device.offset, address, self._host.type.nbytes)

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        """See ``dataflow.plugin.device.BoundSegment``."""
        if self._empty:
            return
        buffer, size, slot = self._host_slot
        base = slots[slot] if slot >= 0 else buffer.base
        array = array_at(base, size, self._host)
        if self._to_host:
            self._backend.read(array, self._buffer, self._device.offset)
        else:
            self._backend.write(self._buffer, self._device.offset, array)
