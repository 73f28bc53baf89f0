"""A plan with addresses: items bound to memory, and runs of all of them or of one range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .._runtime import ffi, lib
from ..cdevice.abi import CData
from ..cdevice.host_memory import address_of, array_at
from ..cdevice.sequence import NativeItems
from ..errors import Cancelled, DeviceError, OutOfMemoryError
from ..host import limits
from ..ir.kernel import HOST
from ..ir.plan import Item, Plan, Segment, Transfer, Wait
from ..ir.types import Array
from ..planning.offsets import lie_apart
from ..plugin.device import Backend, Buffer
from . import canaries
from .arguments import KeptResults
from .devices import Devices
from .scratch import Scratch
from .string_arguments import as_numbers, has_strings

Stages = tuple[str, str]
"""The names of the first and the last of some ranges in a row."""


class Bound:
    """A plan with addresses. One run at a time.

    Args:
        plan: what runs.
        devices: the open devices.
        persistent: memory that outlives a run, by the name of its arena.
        scratch: buffers that programs use in turn; None: its own.
        arrange: makes what a run of the whole plan calls one after the other from the bound items, in their order.
        state: memory of a session's state, by kind and name of the arena.

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
        arrange: Callable[[Sequence[Any]], list[Any]] | None = None,
        state: Mapping[tuple[str, str], Buffer] = MappingProxyType({}),
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
            elif arena.kind in ("before", "after", "grown"):
                buffer = state[arena.kind, arena.name]
            elif arena.kind == "source":
                pass  # no step looks at it
            elif arena.kind == "arena":
                if scratch is not None:
                    buffer = scratch.buffer(arena.memory)
                elif lie_apart():
                    rows = plan.lifetimes[len(self._buffers)]
                    buffer = canaries.allocate(devices, arena.memory, arena.bytes, rows)
                    self._scratch.append((arena.memory, buffer))
                else:
                    buffer = devices.allocate_scratch(plan, arena)
                    self._scratch.append((arena.memory, buffer))
            else:
                buffer = persistent[arena.name]
            self._buffers.append(buffer)
            table.append((buffer, arena.bytes, slot))
        self._slots = ffi.new("void *[]", max(len(self._names), 1))
        self._cancel = ffi.new("int32_t *")
        self._calls = ffi.new("int64_t *")
        self._persistent = persistent  # kept alive
        self._strings = has_strings(plan)
        items = self._bind_items(table)
        self._addresses, self._bound_items = table, items
        self._complete = _Stage(plan, table, range(len(plan.arenas)), (arrange or in_sequence)(items))
        self._stages: dict[tuple[str, str], _Stage] = {}
        self._written: KeptResults | None = None  # whose addresses the slots have
        self._last: _Stage | None = None  # what ran last
        self.native_calls = 0

    @property
    def kernel_calls(self) -> int:
        """Kernels called so far, in loops every iteration counts."""
        return int(self._calls[0])

    def damage(self) -> str | None:
        """Beside which value bytes were written that belong to none; of a plan that was made with values apart."""
        return canaries.damage(self.plan, self._devices, self._buffers) if self._scratch else None

    def poison(self, byte: int) -> None:
        """Fills the values of a plan that was made with values apart with ``byte``; its next run writes them again."""
        for index, rows in self.plan.lifetimes.items():
            buffer = self._buffers[index]
            if self._scratch and buffer is not None:
                canaries.poison(self._devices, self.plan.arenas[index].memory, buffer, rows, byte)

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        *,
        interruptible: bool = True,
        stage: Stages | None = None,
    ) -> None:
        """Runs all items, or those of some ranges.

        Args:
            inputs: contiguous, aligned arrays of the planned types, by name.
            outputs: likewise; written. A range after the first gets the arrays that the ranges before it got.
            stage: names of the first and last range; None: all.
            interruptible: SIGINT or a limit of time ends the run; otherwise nothing does, for runs that must be whole.

        Raises:
            InputError: data that a kernel refuses, e.g. an index out of range; says which node.
            Cancelled: ``cancel`` was called. On SIGINT: KeyboardInterrupt.
            LimitExceeded: the call's time is over.
            DeviceError: a device failed.
        """
        if self._devices.failed:
            raise DeviceError(f"a device failed before: {self._devices.failed}; make a new session")
        if self._strings:
            with as_numbers(inputs, outputs) as (given, made):
                self._run_with(given, made, interruptible, stage)
        else:
            self._run_with(inputs, outputs, interruptible, stage)

    def _run_with(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], interruptible: bool, stage: Stages | None
    ) -> None:
        slots, chosen = self._slots, self._complete if stage is None else self._stage(stage)
        for index, name in chosen.inputs:
            slots[index] = address_of(inputs[name])
        if self._written is not outputs or self._last is not chosen:
            for index, name in chosen.outputs:
                slots[index] = address_of(outputs[name])
            self._written, self._last = outputs if type(outputs) is KeptResults else None, chosen
        self._cancel[0] = 0
        if self.plan.asynchronous:
            with self._devices.exclusive:
                self._run_items(chosen.items, interruptible)
        else:
            self._run_items(chosen.items, interruptible)

    def _stage(self, stage: Stages) -> _Stage:
        found = self._stages.get(stage)
        if found is None:
            names = [*self.plan.ranges]
            ranges = [self.plan.ranges[name] for name in names[names.index(stage[0]) : names.index(stage[1]) + 1]]
            waits = [_BoundWait(self._devices.backends[device]) for device in sorted(self.plan.asynchronous)]
            items = in_sequence([*self._bound_items[ranges[0].start : ranges[-1].stop], *waits])
            slots = frozenset[int]().union(*(range_.slots for range_ in ranges))
            found = self._stages[stage] = _Stage(self.plan, self._addresses, slots, items)
        return found

    def kept(self, name: str) -> Array:
        """A copy of a state that lies in scratch memory, after a run and before another plan's in the same memory."""
        operand = self.plan.kept[name]
        memory, buffer = self.plan.arenas[operand.arena].memory, self._buffers[operand.arena]
        assert buffer is not None
        if memory == HOST or not operand.type.elements:
            return array_at(buffer.base, self.plan.arenas[operand.arena].bytes, operand).copy()
        array = np.empty(operand.type.sizes, operand.type.dtype.numpy)
        self._devices.backend_of(memory).read(array, buffer, operand.offset)
        return array

    def _run_items(self, items: Sequence[Any], interruptible: bool) -> None:
        scope = limits.current()
        if scope is None or scope.seconds_left is None or not interruptible:
            self._run_unlimited(items, interruptible)
            return
        deadline = ffi.new("df_deadline *")
        try:
            if not lib.df_deadline_begin(deadline, self._cancel, int(scope.seconds_left * 1e9)):
                raise OutOfMemoryError("no thread could be started to watch the time of the run")
            self._run_unlimited(items, interruptible)
        except Cancelled as error:
            if self._cancel[0] != lib.DF_EXPIRED:
                raise
            raise scope.expired(str(error)) from None
        finally:
            lib.df_deadline_end(deadline)

    def _run_unlimited(self, items: Sequence[Any], interruptible: bool) -> None:
        cancel = self._cancel if interruptible else ffi.NULL
        try:
            for item in items:
                self.native_calls += item.native
                item.run(self._slots, len(self._names), cancel, self._calls)
        except DeviceError as error:
            self._devices.failed = str(error)
            raise

    def cancel(self) -> None:
        """Makes the run that is in progress end with Cancelled; from any thread."""
        self._cancel[0] = 1

    def _bind_items(self, table: Sequence[tuple[Any, int, int]]) -> list[Any]:
        """The items of the plan with addresses."""
        return [self._bind(item, table) for item in self.plan.items]

    def _arenas_of(self, device: str, table: Sequence[tuple[Any, int, int]]) -> list[tuple[Any, int, int]]:
        """The arenas that a device sees: those in its own memory."""
        memory = self._devices.memories[device]
        return [
            entry if arena.memory == memory else (None, 0, -1)
            for arena, entry in zip(self.plan.arenas, table, strict=True)
        ]

    def _bind(self, item: Item, table: Sequence[tuple[Any, int, int]]) -> Any:
        if isinstance(item, Segment):
            own = self._arenas_of(item.device, table)
            return self._devices.backends[item.device].bind(item, own, self._devices.threads)
        if isinstance(item, Wait):
            return _BoundWait(self._devices.backends[item.device])
        if HOST not in (self.plan.arenas[item.source.arena].memory, self.plan.arenas[item.target.arena].memory):
            return _BoundPeerTransfer(item, table, self._devices.backends)
        return _BoundTransfer(item, self.plan, table, self._devices.backends)

    def close(self) -> None:
        """Gives device memory back."""
        self._complete, self._stages, self._bound_items = _Stage(self.plan, (), (), []), {}, []
        for memory, buffer in self._scratch:
            self._devices.free(memory, buffer)
        self._scratch = []


class _Stage:
    """What a run of a plan, or of one range, calls.

    Attributes:
        items: called one after the other.
        inputs, outputs: number and name of the slots of the arrays that they read or write.
    """

    __slots__ = ("inputs", "items", "outputs")

    def __init__(
        self, plan: Plan, table: Sequence[tuple[Any, int, int]], arenas: Iterable[int], items: Sequence[Any]
    ) -> None:
        self.items = items
        slots = [(plan.arenas[i].kind, table[i][2], plan.arenas[i].name) for i in sorted(arenas) if table[i][2] >= 0]
        self.inputs = [(number, name) for kind, number, name in slots if kind == "input"]
        self.outputs = [(number, name) for kind, number, name in slots if kind == "output"]


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
        self._host, self._host_slot = host, table[host.arena]
        self._device, self._buffer = device, table[device.arena][0]
        self._backend = backends[item.from_device if self._to_host else item.to_device]
        self._empty = item.source.type.elements == 0

    def as_native(self) -> Any:
        """As an item of a native call, or None."""
        if not hasattr(self._backend, "copying") or self._empty:
            return None
        buffer, _, slot = self._host_slot
        address = (slot if slot >= 0 else buffer.base, self._host.offset)
        direction = lib.DF_COPY_TO_HOST if self._to_host else lib.DF_COPY_TO_DEVICE
        return self._backend.copying(direction, self._buffer, self._device.offset, address, self._host.type.nbytes)

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        if self._empty:
            return
        buffer, size, slot = self._host_slot
        base = slots[slot] if slot >= 0 else buffer.base
        array = array_at(base, size, self._host)
        if self._to_host:
            self._backend.read(array, self._buffer, self._device.offset)
        else:
            self._backend.write(self._buffer, self._device.offset, array)
