"""A plan bound to memory: a pool of arenas, and runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from .._runtime import ffi, lib
from ..cdevice.abi import CData
from ..cdevice.host_memory import address_of, array_at
from ..cdevice.sequence import NativeItems
from ..errors import Cancelled, DeviceError, OutOfMemoryError
from ..host import limits
from ..host.fork import renew_in_child
from ..host.garbage_collection import collection_paused
from ..ir.kernel import HOST
from ..ir.lowered import Lowered
from ..ir.plan import Plan, Segment, Transfer, Wait
from ..ir.types import Array
from ..plugin.device import Backend, Buffer
from .devices import Devices
from .variables import Variables

PERSISTENT = frozenset({"weights", "state", "packs"})  # kinds of arenas that outlive a run


class Scratch:
    """One buffer per memory that programs use as their arena in turn; for programs that never run at one time."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._buffers: dict[str, Buffer] = {}
        self.generation = 0  # goes up when a buffer was replaced: what is bound to the old one binds anew

    def reserve(self, plan: Plan) -> None:
        """Makes the buffers large enough for ``plan``."""
        for arena in plan.arenas:
            if arena.kind != "arena":
                continue
            known = self._buffers.get(arena.memory)
            if known is not None and known.bytes >= arena.bytes:
                continue
            self.generation += 1
            if known is not None:
                del self._buffers[arena.memory]
                self._devices.free(arena.memory, known)
            self._buffers[arena.memory] = self._devices.allocate(arena.memory, arena.bytes)

    def buffer(self, memory: str) -> Buffer:
        """The buffer for arenas in ``memory``."""
        return self._buffers[memory]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each buffer, by memory."""
        return {memory: buffer.bytes for memory, buffer in self._buffers.items()}

    def close(self) -> None:
        """Gives device memory back."""
        for memory, buffer in self._buffers.items():
            self._devices.free(memory, buffer)
        self._buffers.clear()


class _Seat:
    """A Bound, made when it is first needed, and a lock that is held while it runs."""

    __slots__ = ("bound", "generation", "turn")

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.bound: Bound | None = None
        self.generation = -1  # of the scratch that it is bound to


class Program:
    """A plan that can run: bound to memory once per concurrent run, at most ``cap`` times.

    Ctrl-C may come between any two bytecodes. Seats are therefore held by ``with`` on a lock of C, which has nothing
    between taking the lock and entering the block.

    Attributes:
        plan: what runs.
        lowered: what the plan was made from.
    """

    def __init__(
        self,
        plan: Plan,
        lowered: Lowered,
        devices: Devices,
        variables: Variables,
        cap: int = 1,
        scratch: Scratch | None = None,
    ) -> None:
        self.plan, self.lowered = plan, lowered
        self._scratch = scratch
        self._devices = devices
        # From now on: constants may be forgotten while a run of this plan is still to begin.
        self._persistent = {a.name: variables.buffer(a.name) for a in plan.arenas if a.kind in PERSISTENT}
        self._cap = cap
        self._seats: list[_Seat] = []
        self._growing = threading.Lock()
        self._queue = 0
        renew_in_child(self)

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, interruptible: bool = True) -> Bound:
        """Runs all items once; waits while ``cap`` runs are in progress. Returns the Bound that did, for its counters.

        Args:
            inputs: see ``Bound.run``.
            outputs: likewise.
            interruptible: likewise.
        """
        seat = self._seat()
        with seat.turn:
            bound = seat.bound
            if bound is None or self._scratch is not None:
                bound = self._bind(seat)
            bound.run(inputs, outputs, interruptible=interruptible)
        return bound

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """Those that were made so far."""
        return tuple(seat.bound for seat in self._seats if seat.bound is not None)

    def _seat(self) -> _Seat:
        """A free seat, else one to wait for: they are waited for in turn."""
        for seat in self._seats:
            if not seat.turn.locked():
                return seat
        with self._growing:
            if len(self._seats) < self._cap:
                self._seats.append(_Seat())
                return self._seats[-1]
        self._queue = (self._queue + 1) % self._cap
        return self._seats[self._queue]

    def _bind(self, seat: _Seat) -> Bound:
        scratch = self._scratch
        if scratch is not None:
            scratch.reserve(self.plan)
            if seat.generation != scratch.generation:
                seat.bound = None
                seat.generation = scratch.generation
        if seat.bound is None:
            seat.bound = collection_paused(lambda: Bound(self.plan, self._devices, self._persistent, scratch))
        return seat.bound

    def renew(self) -> None:
        """In a forked child: a Bound that another thread was running is not used again."""
        self._growing = threading.Lock()
        self._seats = [seat for seat in self._seats if not seat.turn.locked()]

    def close(self) -> None:
        """Gives device memory back; no run may be in progress."""
        for bound in self.bounds:
            bound.close()
        self._seats.clear()


class Bound:
    """A plan with addresses. One run at a time.

    Args:
        plan: what runs.
        devices: the open devices.
        persistent: memory that outlives a run, by the name of its arena.
        scratch: buffers that programs use in turn; None: its own.
        apart: each item is called by itself, so that it can be timed.

    Attributes:
        kernel_calls: kernels called so far.
        native_calls: segments run so far.
    """

    def __init__(
        self,
        plan: Plan,
        devices: Devices,
        persistent: Mapping[str, Buffer],
        scratch: Scratch | None = None,
        apart: bool = False,
    ) -> None:
        self.plan = plan
        self._devices = devices
        self._names: list[str] = []  # of slots, in their order
        self._buffers: list[Buffer | None] = []
        self._scratch: list[tuple[str, Buffer]] = []  # its own
        table: list[tuple[Any, int, int]] = []
        for arena in plan.arenas:
            buffer: Buffer | None = None
            slot = -1
            if arena.kind in ("input", "output"):
                slot = len(self._names)
                self._names.append(arena.name)
            elif arena.kind == "source":
                pass  # no step looks at it
            elif arena.kind == "arena":
                if scratch is not None:
                    buffer = scratch.buffer(arena.memory)
                else:
                    buffer = devices.allocate(arena.memory, arena.bytes)
                    self._scratch.append((arena.memory, buffer))
            else:
                buffer = persistent[arena.name]
            self._buffers.append(buffer)
            table.append((buffer, arena.bytes, slot))
        kinds = [arena.kind == "input" for arena in plan.arenas if arena.kind in ("input", "output")]
        self._given = tuple(zip(range(len(kinds)), self._names, kinds, strict=True))
        self._slots = ffi.new("void *[]", max(len(self._names), 1))
        self._cancel = ffi.new("int32_t *")
        self._calls = ffi.new("int64_t *")
        self._persistent = persistent  # kept alive
        items = [self._bind(item, table) for item in plan.items]
        self._items = [joined for item in items for joined in _joined([item])] if apart else _joined(items)
        self.native_calls = 0

    @property
    def kernel_calls(self) -> int:
        """Kernels called so far, in loops every iteration counts."""
        return int(self._calls[0])

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, interruptible: bool = True) -> None:
        """Runs all items.

        Args:
            inputs: contiguous, aligned arrays of the planned types, by name.
            outputs: likewise; written.
            interruptible: SIGINT or a limit of time ends the run; otherwise nothing does, for runs that must be whole.

        Raises:
            InputError: data that a kernel refuses, e.g. an index out of range; says which node.
            Cancelled: ``cancel`` was called. On SIGINT: KeyboardInterrupt.
            LimitExceeded: the call's time is over.
            DeviceError: a device failed.
        """
        if self._devices.failed:
            raise DeviceError(f"a device failed before: {self._devices.failed}; make a new session")
        slots = self._slots
        for index, name, is_input in self._given:
            slots[index] = address_of(inputs[name] if is_input else outputs[name])
        self._cancel[0] = 0
        if self.plan.asynchronous:
            with self._devices.turn:
                self._run_items(interruptible)
        else:
            self._run_items(interruptible)

    def _run_items(self, interruptible: bool) -> None:
        scope = limits.current()
        if scope is None or scope.seconds_left is None or not interruptible:
            self._run_unlimited(interruptible)
            return
        deadline = ffi.new("df_deadline *")
        try:
            if not lib.df_deadline_begin(deadline, self._cancel, int(scope.seconds_left * 1e9)):
                raise OutOfMemoryError("no thread could be started to watch the time of the run")
            self._run_unlimited(interruptible)
        except Cancelled as error:
            if self._cancel[0] != lib.DF_EXPIRED:
                raise
            raise scope.expired(str(error)) from None
        finally:
            lib.df_deadline_end(deadline)

    def _run_unlimited(self, interruptible: bool) -> None:
        cancel = self._cancel if interruptible else ffi.NULL
        try:
            for item in self._items:
                self.native_calls += item.native
                item.run(self._slots, len(self._given), cancel, self._calls)
        except DeviceError as error:
            self._devices.failed = str(error)
            raise

    def cancel(self) -> None:
        """Makes the run that is in progress end with Cancelled; from any thread."""
        self._cancel[0] = 1

    def _bind(self, item: Segment | Transfer | Wait, table: Sequence[tuple[Any, int, int]]) -> Any:
        if isinstance(item, Segment):
            memory = self._devices.memories[item.device]
            own = [
                entry if arena.memory == memory else (None, 0, -1)  # a device sees its own memory only
                for arena, entry in zip(self.plan.arenas, table, strict=True)
            ]
            return self._devices.backends[item.device].bind(item, own, self._devices.threads)
        if isinstance(item, Wait):
            return _BoundWait(self._devices.backends[item.device])
        if HOST not in (self.plan.arenas[item.source.arena].memory, self.plan.arenas[item.target.arena].memory):
            return _BoundPeerTransfer(item, table, self._devices.backends)
        return _BoundTransfer(item, self.plan, table, self._devices.backends)

    def close(self) -> None:
        """Gives device memory back."""
        self._items = []
        for memory, buffer in self._scratch:
            self._devices.free(memory, buffer)
        self._scratch = []


def _joined(items: Sequence[Any]) -> list[Any]:
    """The items, those in a row that need no Python as one."""
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


class _BoundWait:
    native = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def as_native(self) -> Any:
        """As an item of a native call, or None."""
        return self._backend if hasattr(self._backend, "fill") else None

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        self._backend.sync()


class _BoundPeerTransfer:
    """A copy between two devices that reach each other's memory; the receiver makes it."""

    native = 0

    def __init__(self, item: Transfer, table: Sequence[tuple[Any, int, int]], backends: Mapping[str, Backend]) -> None:
        self._source, self._from = item.source, table[item.source.arena][0]
        self._target, self._to = item.target, table[item.target.arena][0]
        self._backend = backends[item.to_device]

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        size = self._source.type.nbytes
        if size:
            self._backend.receive(self._to, self._target.offset, self._from, self._source.offset, size)


class _BoundTransfer:
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
        self._host, self._host_place = host, table[host.arena]
        self._device, self._buffer = device, table[device.arena][0]
        self._backend = backends[item.from_device if self._to_host else item.to_device]
        self._empty = item.source.type.elements == 0

    def as_native(self) -> Any:
        """As an item of a native call, or None."""
        if not hasattr(self._backend, "copying") or self._empty:
            return None
        buffer, _, slot = self._host_place
        place = (slot if slot >= 0 else buffer.base, self._host.offset)
        direction = lib.DF_COPY_TO_HOST if self._to_host else lib.DF_COPY_TO_DEVICE
        return self._backend.copying(direction, self._buffer, self._device.offset, place, self._host.type.nbytes)

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        if self._empty:
            return
        buffer, size, slot = self._host_place
        base = slots[slot] if slot >= 0 else buffer.base
        array = array_at(base, size, self._host)
        if self._to_host:
            self._backend.read(array, self._buffer, self._device.offset)
        else:
            self._backend.write(self._buffer, self._device.offset, array)
