"""State of a session in memory of a device.

For each value there are two buffers. A plan reads it in one and writes it to the other, or adds to it where it lies:
then its rows are as far apart as the plan says, with memory between them for what later runs add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..cdevice.host_memory import array_at
from ..ir.graph import Graph
from ..ir.kernel import HOST
from ..ir.lowered import RunState
from ..ir.operand import Operand
from ..ir.plan import Plan
from ..ir.types import Array, TensorType, contiguous_strides
from ..plugin.device import Buffer
from .devices import Devices

Sides = tuple[int, int]  # how often buffers were replaced, and bit by bit which of the two of each value is read
Strides = tuple[int, ...] | None  # None: contiguous


@dataclass(slots=True)
class _Pair:
    """Memory for one value: the two buffers, and what lies in the one that the next run reads."""

    bit: int  # of ``Sides``
    buffers: list[Buffer | None] = field(default_factory=lambda: [None, None])
    type: TensorType | None = None
    strides: Strides = None
    before: TensorType | None = None  # what the last run read


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
        self._pairs = {name: _Pair(1 << number) for number, name in enumerate(state.pairs.values())}
        self._left: Callable[[], Mapping[str, TensorType]] | None = (
            None  # types by output, of pairs that don't know yet
        )
        self._reserved: tuple[Plan, int] | None = None  # for which plan last, after how many replacements
        self._advanced = 0  # the values of which the last run wrote the other buffer, as bits
        self.sides: Sides = (0, 0)
        self.changes = 0

    @property
    def types(self) -> Mapping[str, TensorType]:
        """Of what there is."""
        self._know_types()
        return {name: pair.type for name, pair in self._pairs.items() if pair.type is not None}

    def reserve(self, plan: Plan) -> None:
        """Makes the buffers large enough for a plan, or those of a series; what lies in them stays, as it wants it."""
        if self._reserved is not None and self._reserved[0] is plan and self._reserved[1] == self.sides[0]:
            return
        self._know_types()
        bytes = {(arena.kind, arena.name): arena.bytes for arena in plan.arenas}
        for output, name in self.state.pairs.items():
            pair = self._pairs[name]
            if ("grown", name) in bytes:
                self._lay_out(pair, bytes["grown", name], plan.inputs[name].strides)
            elif ("before", name) in bytes or ("after", output) in bytes:  # each buffer becomes the other
                most = max(bytes.get(("before", name), 0), bytes.get(("after", output), 0))
                self._lay_out(pair, most, None)
                self._require(pair, 1 - self._side(pair), most)
        self._reserved = plan, self.sides[0]

    def _side(self, pair: _Pair) -> int:
        """Which buffer is read."""
        return 1 if self.sides[1] & pair.bit else 0

    def _require(self, pair: _Pair, side: int, bytes: int) -> None:
        """Makes a buffer so large; what lay in a smaller one is lost."""
        known = pair.buffers[side]
        if known is not None and known.bytes >= bytes:
            return
        pair.buffers[side] = None
        self.sides = (self.sides[0] + 1, self.sides[1])
        if known is not None:
            self._devices.free(self.state.memory, known)
        pair.buffers[side] = self._devices.allocate(self.state.memory, bytes)

    def _lay_out(self, pair: _Pair, bytes: int, strides: Strides) -> None:
        """Makes the buffer that is read so large, with rows so far apart; what lies otherwise moves to the other."""
        side = self._side(pair)
        known = pair.buffers[side]
        holds = pair.type is not None and pair.type.elements > 0
        if not holds or (pair.strides == strides and known is not None and known.bytes >= bytes):
            self._require(pair, side, bytes)
            pair.strides = strides
            return
        self._require(pair, 1 - side, bytes)
        there = self._array(pair)
        self.sides = (self.sides[0], self.sides[1] ^ pair.bit)
        pair.strides = strides
        self._fill(pair, there)

    def buffers(self) -> dict[tuple[str, str], Buffer]:
        """By kind and name of the arenas of a plan."""
        found: dict[tuple[str, str], Buffer | None] = {}
        for output, name in self.state.pairs.items():
            pair = self._pairs[name]
            side = self._side(pair)
            found["before", name] = found["grown", name] = pair.buffers[side]
            found["after", output] = pair.buffers[1 - side]
        return {key: buffer for key, buffer in found.items() if buffer is not None}

    def advances(self, plan: Plan) -> int | None:
        """The values that are in the other buffer behind a run of a plan, as bits; None: it has not all of them."""
        if not self.state.pairs.keys() <= plan.outputs.keys():
            return None
        after = [self.state.pairs[arena.name] for arena in plan.arenas if arena.kind == "after"]
        return sum(self._pairs[name].bit for name in after)

    def advance(self, bits: int, types: Callable[[], Mapping[str, TensorType]]) -> None:
        """A run is done: what it wrote is what the next reads.

        Args:
            bits: see ``advances``.
            types: gives those of the outputs; called when they are asked for.
        """
        self._left, self._advanced = types, bits
        self.sides = (self.sides[0], self.sides[1] ^ bits)
        self.changes += 1

    def _know_types(self) -> None:
        """Asks for the types of what the last run left."""
        if self._left is not None:
            types, self._left = self._left(), None
            for output, name in self.state.pairs.items():
                pair = self._pairs[name]
                pair.before, pair.type = pair.type, types[output]

    def take_back(self, names: Iterable[str]) -> None:
        """What the last run read of these is what the next reads too; types were known before that run."""
        self._know_types()
        for name in names:
            pair = self._pairs[name]
            pair.type = pair.before
            self.sides = (self.sides[0], self.sides[1] ^ (pair.bit & self._advanced))
        self.changes += 1

    def write(self, values: Mapping[str, tuple[TensorType, Array]], *, others: bool = True) -> None:
        """Sets values; where memory for one of them is refused, all that was there before still is.

        Args:
            values: types without names of sizes, and arrays.
            others: what else there is stays for the next run.
        """
        self._know_types()
        replaced = 0
        for name, (_, array) in values.items():
            pair = self._pairs[name]
            known = pair.buffers[self._side(pair)]
            if known is None or known.bytes < array.nbytes:
                self._require(pair, 1 - self._side(pair), array.nbytes)
                replaced |= pair.bit
        self.sides = (self.sides[0], self.sides[1] ^ replaced)
        self.changes += 1
        self._reserved = None
        for name, pair in self._pairs.items():
            if name in values:
                (pair.type, array), pair.strides = values[name], None
                self._fill(pair, array)
            elif not others:
                pair.type = None

    def read(self, name: str) -> Array:
        """A copy of one value."""
        self._know_types()
        return self._array(self._pairs[name]).copy()

    def _array(self, pair: _Pair) -> Array:
        """What lies in the buffer that is read; on the host without a copy."""
        buffer, operand = self._lies(pair)
        if self.state.memory == HOST or not operand.type.elements:
            return array_at(buffer.base, buffer.bytes, operand)
        found = np.empty(operand.bytes, np.uint8)
        self._devices.backend_of(self.state.memory).read(found, buffer, 0)
        return _over(found, operand)

    def _fill(self, pair: _Pair, array: Array) -> None:
        """Writes it all into the buffer that is read."""
        buffer, operand = self._lies(pair)
        if not operand.type.elements:
            return
        if self.state.memory == HOST:
            array_at(buffer.base, buffer.bytes, operand)[...] = array
            return
        written = np.zeros(operand.bytes, np.uint8)
        _over(written, operand)[...] = array
        backend = self._devices.backend_of(self.state.memory)
        backend.write(buffer, 0, written)
        backend.sync()

    def _lies(self, pair: _Pair) -> tuple[Buffer, Operand]:
        buffer = pair.buffers[self._side(pair)]
        assert pair.type is not None and buffer is not None
        strides = contiguous_strides(pair.type.sizes) if pair.strides is None else pair.strides
        return buffer, Operand(-1, 0, pair.type, strides, 0)


def _over(memory: Array, operand: Operand) -> Array:
    """The elements of an operand in bytes."""
    dtype = operand.type.dtype.numpy
    return np.ndarray(operand.type.sizes, dtype, memory.data, 0, tuple(s * dtype.itemsize for s in operand.strides))


def growing_sizes(names: Iterable[str], first: Graph, last: Graph) -> dict[str, tuple[int, ...]]:
    """Sizes that some graphs don't reach, for outputs that are larger in the last of them along one axis alone.

    Not even the last one's have no gaps then, so that all need the same copies where a kernel takes none.
    """
    sizes = {name: (first.outputs[name].type.sizes, last.outputs[name].type.sizes) for name in names}
    grow = {name: [max(b - a, -1) for a, b in zip(*both, strict=True)] for name, both in sizes.items()}
    return {
        name: tuple([size + (by > 0) for size, by in zip(last_sizes, grow[name], strict=True)])
        for name, (_, last_sizes) in sizes.items()
        if sum(map(bool, grow[name])) == 1 == sum(by > 0 for by in grow[name])
    }
