"""State of a session in memory of a device: two buffers for each, one that a run reads and one that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

import numpy as np

from ..cdevice.host_memory import array_at
from ..ir.kernel import HOST
from ..ir.lowered import RunState
from ..ir.operand import Operand
from ..ir.plan import Plan
from ..ir.types import Array, TensorType, contiguous_strides
from ..plugin.device import Buffer
from .devices import Devices

Sides = tuple[int, int]  # how often buffers were replaced, and which of two is read


@dataclass(slots=True)
class _Pair:
    """Memory for one value: the two buffers, and what lies in the one that the next run reads."""

    buffers: tuple[Buffer, Buffer]
    type: TensorType | None = None


class KeptState:
    """What runs leave for the next, by the name of the input; one run at a time may use it.

    Args:
        state: names, and the memory.
        devices: the open devices.

    Attributes:
        state: names, and the memory.
        sides: changes with the addresses that a run reads and writes.
        changes: how often what lies here became something else.
    """

    def __init__(self, state: RunState, devices: Devices) -> None:
        self.state, self._devices = state, devices
        self._pairs: dict[str, _Pair] = {}
        self._left: Callable[[], Mapping[str, TensorType]] | None = (
            None  # types by output, of pairs that don't know yet
        )
        self._reserved: tuple[Plan, int] | None = None  # for which plan last, after how many replacements
        self.sides: Sides = (0, 0)
        self.changes = 0

    @property
    def types(self) -> Mapping[str, TensorType]:
        """Of what there is."""
        self._know_types()
        return {name: pair.type for name, pair in self._pairs.items() if pair.type is not None}

    def reserve(self, plan: Plan) -> None:
        """Makes the buffers large enough for a plan, or those of a series; what lies in them stays."""
        if self._reserved is not None and self._reserved[0] is plan and self._reserved[1] == self.sides[0]:
            return
        self._know_types()
        pairs = self.state.pairs
        for arena in plan.arenas:
            if arena.kind in ("before", "after"):
                self._grow(arena.name if arena.kind == "before" else pairs[arena.name], arena.bytes)
        self._reserved = plan, self.sides[0]

    def _grow(self, name: str, bytes: int) -> None:
        known = self._pairs.get(name)
        if known is not None and known.buffers[0].bytes >= bytes:
            return
        kept = None if known is None or known.type is None else self.read(name)
        memory = self.state.memory
        made = self._devices.allocate(memory, bytes), self._devices.allocate(memory, bytes)
        if known is not None:
            for buffer in known.buffers:
                self._devices.free(memory, buffer)
        self._pairs[name] = _Pair(made, None if known is None else known.type)
        self.sides = (self.sides[0] + 1, self.sides[1])
        if kept is not None:
            self._copy(name, kept)

    def buffers(self) -> dict[tuple[str, str], Buffer]:
        """By kind and name of the arenas of a plan."""
        side = self.sides[1]
        found = {("before", name): pair.buffers[side] for name, pair in self._pairs.items()}
        return found | {
            ("after", output): self._pairs[name].buffers[1 - side] for output, name in self.state.pairs.items()
        }

    def advance(self, outputs: Set[str], types: Callable[[], Mapping[str, TensorType]]) -> None:
        """A run is done: what it wrote is what the next reads, if it was all of the state.

        Args:
            outputs: names of the plan's.
            types: gives those of the outputs; called when they are asked for.
        """
        if not self.state.pairs.keys() <= outputs:
            return
        self._left = types
        self.sides = (self.sides[0], 1 - self.sides[1])
        self.changes += 1

    def _know_types(self) -> None:
        """Asks for the types of what the last run left."""
        if self._left is not None:
            types, self._left = self._left(), None
            for output, name in self.state.pairs.items():
                self._pairs[name].type = types[output]

    def write(self, name: str, array: Array, type_: TensorType) -> None:
        """Sets one value."""
        self._know_types()
        self.changes += 1
        self._grow(name, array.nbytes)
        self._pairs[name].type = TensorType(type_.dtype, array.shape)
        self._copy(name, array)

    def forget(self) -> None:
        """Leaves nothing for the next run."""
        self._left = None
        self.changes += 1
        for pair in self._pairs.values():
            pair.type = None

    def read(self, name: str) -> Array:
        """A copy of one value."""
        self._know_types()
        buffer, operand = self._lies(name)
        if self.state.memory == HOST or not operand.type.elements:
            return array_at(buffer.base, operand.type.nbytes, operand).copy()
        array = np.empty(operand.type.sizes, operand.type.dtype.numpy)
        self._devices.backend_of(self.state.memory).read(array, buffer, 0)
        return array

    def _copy(self, name: str, array: Array) -> None:
        buffer, operand = self._lies(name)
        if not operand.type.elements:
            return
        if self.state.memory == HOST:
            array_at(buffer.base, operand.type.nbytes, operand)[...] = array
            return
        backend = self._devices.backend_of(self.state.memory)
        backend.write(buffer, 0, np.ascontiguousarray(array))
        backend.sync()

    def _lies(self, name: str) -> tuple[Buffer, Operand]:
        pair = self._pairs[name]
        assert pair.type is not None
        return pair.buffers[self.sides[1]], Operand(-1, 0, pair.type, contiguous_strides(pair.type.sizes), 0)
