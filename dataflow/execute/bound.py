"""A plan with addresses: items bound to memory, and runs of all of them or of one range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .._runtime import ffi, lib
from ..cdevice.host_memory import address_of, array_at
from ..errors import Cancelled, DeviceError, OutOfMemoryError, PluginError
from ..host import limits
from ..ir.kernel import HOST
from ..ir.plan import Item, Plan, Segment, Wait
from ..ir.types import Array
from ..planning.offsets import lie_apart
from ..plugin.device import Buffer
from . import canaries
from .arguments import KeptResults
from .bound_items import BoundPeerTransfer, BoundTransfer, BoundWait, in_sequence
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
        self._splits: dict[frozenset[str], _Split] | None = {} if arrange is None and not self._strings else None
        self._begun: tuple[_Split, Mapping[str, Array]] | None = None
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

    def begin(self, inputs: Mapping[str, Array]) -> None:
        """Begins to copy inputs of a run of the whole plan to its devices, without waiting for it.

        If that run comes next, and is given these arrays among others, it copies the others alone. Nothing else may
        run in the same memory in between.

        Args:
            inputs: some of those of ``run``, as there.

        Raises:
            DeviceError: a device failed.
        """
        self._begun = None
        if self._splits is None or not self.plan.asynchronous or self._devices.failed:
            return
        names = frozenset(inputs)
        split = self._splits.get(names)
        if split is None:
            split = self._splits[names] = _Split(self._bound_items, self._complete, names)
        for index, name in split.inputs:
            self._slots[index] = address_of(inputs[name])
        if split.first:
            with self._devices.exclusive:
                self._run_unlimited(split.first, interruptible=False)
            self._begun = split, inputs

    def _run_with(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], interruptible: bool, stage: Stages | None
    ) -> None:
        slots, chosen = self._slots, self._complete if stage is None else self._stage(stage)
        items, begun, self._begun = chosen.items, self._begun, None
        if begun is not None and stage is None and all(inputs[name] is begun[1][name] for _, name in begun[0].inputs):
            items = begun[0].rest
        for index, name in chosen.inputs:
            slots[index] = address_of(inputs[name])
        if self._written is not outputs or self._last is not chosen:
            for index, name in chosen.outputs:
                slots[index] = address_of(outputs[name])
            self._written, self._last = outputs if type(outputs) is KeptResults else None, chosen
        self._cancel[0] = 0
        if self.plan.asynchronous:
            with self._devices.exclusive:
                self._run_items(items, interruptible)
        else:
            self._run_items(items, interruptible)

    def _stage(self, stage: Stages) -> _Stage:
        found = self._stages.get(stage)
        if found is None:
            names = [*self.plan.ranges]
            ranges = [self.plan.ranges[name] for name in names[names.index(stage[0]) : names.index(stage[1]) + 1]]
            waits = [BoundWait(self._devices.backends[device]) for device in sorted(self.plan.asynchronous)]
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
        except Cancelled as error:
            if self._cancel[0]:
                raise
            raise PluginError(f"{error}: a kernel says that the run was cancelled, which nobody did") from error

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
            return BoundWait(self._devices.backends[item.device])
        if HOST not in (self.plan.arenas[item.source.arena].memory, self.plan.arenas[item.target.arena].memory):
            return BoundPeerTransfer(item, table, self._devices.backends)
        return BoundTransfer(item, self.plan, table, self._devices.backends)

    def close(self) -> None:
        """Gives device memory back."""
        self._complete, self._stages, self._bound_items = _Stage(self.plan, (), (), []), {}, []
        self._splits, self._begun = None, None
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


class _Split:
    """The items of a whole plan in two parts: copies of some inputs to devices, with which it begins, and the rest.

    Attributes:
        inputs: number and name of the slots of these inputs.
        first, rest: called one after the other.
    """

    __slots__ = ("first", "inputs", "rest")

    def __init__(self, items: Sequence[Any], stage: _Stage, names: frozenset[str]) -> None:
        named = {number: name for number, name in stage.inputs if name in names}
        end = next((i for i, item in enumerate(items) if not isinstance(item, BoundTransfer)), len(items))
        slots = [item.uploaded for item in items[:end]]
        chosen = {i for i, slot in enumerate(slots) if slot in named and slots.count(slot) == 1}
        self.inputs = [(slots[i], named[slots[i]]) for i in sorted(chosen)]
        self.first = in_sequence([items[i] for i in sorted(chosen)])
        self.rest = in_sequence([item for i, item in enumerate(items) if i not in chosen])
