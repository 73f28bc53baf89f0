"""Proves that a plan is right by walking through it: what a step reads is what was written for it.

It shares no code with the planner. It reads segments, their steps' operands, transfers and waits, and keeps a shadow
of every arena: for each byte the value that lies there and where that value begins. What a loop carries is one value to
it: it does not tell apart what lies there before the loop, after one iteration and after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import DataflowError
from ..ir.operand import Operand
from ..ir.plan import Item, Plan, Segment, Step, Transfer, Wait, operands_of
from ..ir.types import Array
from ..plugin.device import PrepackRequest

NOTHING = np.iinfo(np.int64).min


class PlanViolation(DataflowError):
    """A plan would compute something else than its graph says."""


@dataclass(slots=True)
class _Shadow:
    """An arena: per unit of bytes the number of the value that lies there, and the offset where that value begins.

    Every operand in the arena begins, ends and moves by whole units, so a unit holds one value.
    """

    value: Array
    base: Array


@dataclass(frozen=True, slots=True)
class _Touch:
    """Bytes that something in a queue reads or writes."""

    arena: int
    low: int
    high: int
    writes: bool
    by: str


@dataclass(frozen=True, slots=True)
class _Extent:
    """Bytes of an operand, from its first element on: the lowest, one past the highest, and whether without gaps."""

    low: int
    high: int
    contiguous: bool


def check_plan(plan: Plan) -> None:
    """Raises PlanViolation, saying where, unless the plan is right.

    Each operand must lie inside its arena; what is read must hold the whole of its value, written before in program
    order; results share no byte with operands, workspace or each other, but for pairs that the kernel declares, in
    the same place; weights and prepacks are never written, a prepack is of the input that the kernel named; outputs
    are complete at the end; and what another device's queue may still touch is waited for.
    """
    _Walk(plan).run()


class _Walk:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.extents: dict[int, _Extent] = {}  # by the operand's id
        self.shadows: list[_Shadow | None] = []
        self.units = _units(plan)
        for arena, unit in zip(plan.arenas, self.units, strict=True):
            if arena.kind in ("weights", "prepacks", "source"):
                self.shadows.append(None)  # never written: only its bounds are looked at
            else:
                count = -(-arena.bytes // unit)
                self.shadows.append(_Shadow(np.full(count, NOTHING), np.zeros(count, np.int64)))
        self.weights: dict[int, tuple[int, int]] = {}  # arena -> value and base
        self.found: dict[int, Operand] = {}  # arena -> the state in it that a run finds
        for operand in (*plan.inputs.values(), *plan.stored.values()):
            shadow = self.shadows[operand.arena]
            if shadow is None:
                self.weights[operand.arena] = (operand.value, operand.offset - operand.origin)
            elif plan.arenas[operand.arena].kind == "grown":  # what lies behind it is still to be written
                self.units_of(operand, 0, shadow.value)[...] = operand.value
                self.units_of(operand, 0, shadow.base)[...] = operand.offset - operand.origin
                self.found[operand.arena] = operand
            else:
                shadow.value[:], shadow.base[:] = operand.value, operand.offset - operand.origin
        for prepack in plan.prepacks.values():
            self.weights[prepack.operand.arena] = (prepack.operand.value, prepack.operand.offset)
        self.pending: dict[str, list[_Touch]] = {}
        self.seen: set[int] = set()  # arenas that the range in progress touched

    def run(self) -> None:
        ranges = [*self.plan.ranges.values()]
        if ranges and [(0, *(p.stop for p in ranges))] != [(*(p.start for p in ranges), len(self.plan.items))]:
            raise PlanViolation("the ranges are not the items in order")
        for range_ in ranges:
            self.seen.clear()
            self.items(self.plan.items[range_.start : range_.stop])
            self.complete(range_.outputs)
            slots = {index for index in self.seen if self.plan.arenas[index].kind in ("input", "output")}
            if not slots <= range_.slots:
                raise PlanViolation(
                    f"a range touches {len(slots - range_.slots)} inputs or outputs that it doesn't name"
                )
        if not ranges:
            self.items(self.plan.items)
        left = sorted(self.pending)
        if left:
            raise PlanViolation(f"the plan ends while {left[0]} may still be working; it must wait for it")
        self.complete(self.plan.outputs)
        for name, operand in self.plan.kept.items():
            self.holds(operand, 0, f"state {name!r} at the end")

    def items(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Wait):
                self.pending.pop(item.device, None)
            elif isinstance(item, Transfer):
                self.transfer(item)
            else:
                self.segment(item)

    def complete(self, outputs: Iterable[str]) -> None:
        """The results of these names hold their values."""
        for name in outputs:
            self.holds(self.plan.outputs[name], 0, f"output {name!r} at the end")

    # ---- items ----------------------------------------------------------------------------------------

    def transfer(self, item: Transfer) -> None:
        where = f"transfer {item.name!r}"
        asynchronous = self.plan.asynchronous
        queue = next((d for d in (item.to_device, item.from_device) if d in asynchronous), "")
        self.enter(queue, [(item.source, 0, False, where), (item.target, 0, True, where)])
        self.holds(item.source, 0, where)
        if item.source.type != item.target.type:
            raise PlanViolation(f"{where}: copies {item.source.type} to {item.target.type}")
        self.write(item.target, 0, where)

    def segment(self, item: Segment) -> None:
        queue = item.device if item.device in self.plan.asynchronous else ""
        for step in item.steps:
            self.step(step, 0, queue)

    def step(self, step: Step, iteration: int, queue: str) -> None:
        if step.body is not None:
            self.body(step, iteration, queue)
            return
        where = step.node.describe()
        reads = [o for o in step.inputs if o is not None]
        writes = [o for o in step.outputs if o is not None]
        touched = [(o, iteration, False, where) for o in reads] + [(o, iteration, True, where) for o in writes]
        if step.workspace is not None:
            touched.append((step.workspace, iteration, True, where))
        for operand, *_ in touched:
            self.inside(operand, iteration, where)
        self.enter(queue, touched)
        for operand in reads:
            self.holds(operand, iteration, where)
        self.prepacks(step, where)
        self.with_memory(step, where)
        self.apart(step, iteration, where)
        if step.workspace is not None:
            self.write(step.workspace, iteration, where)
        for operand in writes:
            self.write(operand, iteration, where)

    def body(self, step: Step, iteration: int, queue: str) -> None:
        """Every iteration of a loop of known length, two of another; a branch as if it were taken."""
        assert step.body is not None
        where = step.node.describe()
        reads = [o for o in step.inputs if o is not None]
        writes = [o for o in step.outputs if o is not None]
        self.enter(queue, [(o, iteration, False, where) for o in reads] + [(o, iteration, True, where) for o in writes])
        for inner in range(min(step.body.iterations, 2) if step.body.kind == "while" else step.body.iterations):
            for operand in reads:
                self.holds(operand, iteration, where)
            for operand in writes[:1]:
                self.write(operand, iteration, where)
            for range_ in step.body.steps:
                self.step(range_, inner, queue)
        for operand in writes:
            self.write(operand, iteration, where)

    # ---- rules ----------------------------------------------------------------------------------------

    def enter(self, queue: str, touched: list[tuple[Operand, int, bool, str]]) -> None:
        """Looks whether another queue may still touch the same bytes, and remembers what this one touches."""
        self.seen.update(operand.arena for operand, *_ in touched)
        if not queue and not self.pending:
            return
        mine = [t for operand, iteration, writes, by in touched for t in self.touches(operand, iteration, writes, by)]
        for other, waiting in self.pending.items():
            if other == queue:
                continue
            for a in mine:
                for b in waiting:
                    if a.arena == b.arena and a.low < b.high and b.low < a.high and (a.writes or b.writes):
                        raise PlanViolation(f"{a.by}: {other} may still be working on the same memory, in {b.by}")
        if queue:
            self.pending.setdefault(queue, []).extend(mine)

    def touches(self, operand: Operand, iteration: int, writes: bool, by: str) -> Iterator[_Touch]:
        if operand.type.elements:
            low, high = self.span(operand, iteration)
            yield _Touch(operand.arena, low, high, writes, by)

    def span(self, operand: Operand, iteration: int) -> tuple[int, int]:
        """First and one-past-last byte in the arena."""
        extent = self.extents.get(id(operand)) or self.extent(operand)
        begin = operand.offset
        if iteration:
            begin += iteration * operand.iteration_stride + (operand.buffer_stride if iteration % 2 else 0)
        return begin + extent.low, begin + extent.high

    def extent(self, operand: Operand) -> _Extent:
        """That of an operand of the plan, computed once."""
        size = operand.type.dtype.nbytes(1)
        low = high = 0
        for dim, stride in zip(operand.type.sizes, operand.strides, strict=True):
            reach = (dim - 1) * stride * size
            low, high = low + min(reach, 0), high + max(reach, 0)
        found = self.extents[id(operand)] = _Extent(low, high + size, operand.is_contiguous)
        return found

    def units_of(self, operand: Operand, iteration: int, shadow: Array) -> Array:
        """The shadow's entries for the operand's bytes."""
        unit = self.units[operand.arena]
        low, high = self.span(operand, iteration)
        range_ = shadow[low // unit : high // unit]
        if self.extents[id(operand)].contiguous:
            return range_
        size = operand.type.dtype.nbytes(1)
        begin = operand.offset + iteration * operand.iteration_stride + (operand.buffer_stride if iteration % 2 else 0)
        item = shadow.itemsize
        # What is repeated by a stride of zero is looked at once.
        axes = [(d, s * (size // unit) * item) for d, s in zip(operand.type.sizes, operand.strides, strict=True) if s]
        sizes, strides = [d for d, _ in axes], [s for _, s in axes]
        found: Array = np.lib.stride_tricks.as_strided(
            range_[(begin - low) // unit :], (*sizes, size // unit), (*strides, item)
        )
        return found

    def inside(self, operand: Operand, iteration: int, where: str) -> None:
        """The operand lies in its arena; asked before its shadow is looked at."""
        if not operand.type.elements:
            return
        arena = self.plan.arenas[operand.arena]
        low, high = self.span(operand, iteration)
        if low < 0 or high > arena.bytes:
            raise PlanViolation(f"{where}: bytes {low} to {high} of {arena.name!r}, which has {arena.bytes}")

    def holds(self, operand: Operand, iteration: int, where: str) -> None:
        """The operand's bytes hold its value, whole and in place."""
        if not operand.type.elements:
            return
        self.inside(operand, iteration, where)
        shadow = self.shadows[operand.arena]
        if shadow is None:
            if self.weights.get(operand.arena) != (operand.value, operand.offset - operand.origin):
                raise PlanViolation(f"{where}: reads value {operand.value} where other weights lie")
            return
        name = self.plan.arenas[operand.arena].name
        found = self.units_of(operand, iteration, shadow.value)
        if (found != operand.value).any():
            wrong = found[found != operand.value].flat[0]
            held = "nothing" if wrong == NOTHING else f"value {wrong}"
            raise PlanViolation(f"{where}: reads value {operand.value} in {name!r}, where {held} lies")
        if (self.units_of(operand, iteration, shadow.base) != operand.offset - operand.origin).any():
            raise PlanViolation(f"{where}: reads value {operand.value} in {name!r}, parts of which lie elsewhere")

    def write(self, operand: Operand, iteration: int, where: str) -> None:
        """The operand's bytes hold its value from now on."""
        if not operand.type.elements:
            return
        self.inside(operand, iteration, where)
        shadow = self.shadows[operand.arena]
        kind = self.plan.arenas[operand.arena].kind
        if shadow is None or kind in ("input", "before"):
            raise PlanViolation(f"{where}: writes {self.plan.arenas[operand.arena].name!r}, which is {kind}")
        if kind == "grown" and self.overlap(operand, self.found[operand.arena], iteration):
            raise PlanViolation(f"{where}: overwrites the state {self.plan.arenas[operand.arena].name!r}")
        self.units_of(operand, iteration, shadow.value)[...] = operand.value
        self.units_of(operand, iteration, shadow.base)[...] = operand.offset - operand.origin

    def prepacks(self, step: Step, where: str) -> None:
        """Each prepack is a copy of the input that the kernel asked for, which nobody writes."""
        for number, operand in enumerate(step.prepacks):
            if operand is None:
                continue
            request = step.prepared.prepacks[number]
            self.inside(operand, 0, where)
            self.holds(operand, 0, where)
            prepack = self.plan.prepacks[self.plan.arenas[operand.arena].name]
            if operand.bytes != request.bytes:
                raise PlanViolation(f"{where}: prepack {number} has {operand.bytes} bytes, it needs {request.bytes}")
            source = step.inputs[request.input]
            if (
                source is None
                or not _same_elements(source, prepack.source)
                or source.iteration_stride
                or source.buffer_stride
            ):
                raise PlanViolation(f"{where}: prepack {number} is a copy of something else than input {request.input}")
            if self.plan.arenas[source.arena].kind not in ("weights", "source"):
                raise PlanViolation(f"{where}: prepack {number} is a copy of what a program changes")

    def with_memory(self, step: Step, where: str) -> None:
        """Inputs without memory are those that the kernel replaces by a prepack that it gets."""
        given = [
            request for request, prepack in zip(_requests(step), step.prepacks, strict=False) if prepack is not None
        ]
        replaced = {request.input for request in given if request.replaces}
        for index, operand in enumerate(step.inputs):
            if operand is not None and self.plan.arenas[operand.arena].kind == "source" and index not in replaced:
                raise PlanViolation(f"{where}: reads input {index}, which has no memory")

    def apart(self, step: Step, iteration: int, where: str) -> None:
        """Results share no byte with operands, workspace or each other, but for declared pairs in one place."""
        assert step.kernel is not None
        results = [(i, o) for i, o in enumerate(step.outputs) if o is not None and o.type.elements]
        others: list[tuple[int, Operand]] = [
            (i, o) for i, o in enumerate(step.inputs) if o is not None and o.type.elements
        ]
        for number, (result, out) in enumerate(results):
            for index, operand in others:
                pair = (result, index) in step.kernel.inplace and _same_elements(out, operand)
                if not pair and self.overlap(out, operand, iteration):
                    raise PlanViolation(f"{where}: result {result} overwrites operand {index} while it is read")
            for other, second in results[:number]:
                if self.overlap(out, second, iteration):
                    raise PlanViolation(f"{where}: results {other} and {result} share memory")
        if step.workspace is not None and step.workspace.type.elements:
            for _, operand in (*results, *others):
                if self.overlap(step.workspace, operand, iteration):
                    raise PlanViolation(f"{where}: its workspace shares memory with an operand or result")

    def overlap(self, a: Operand, b: Operand, iteration: int) -> bool:
        """True when two operands share a byte; gaps between elements count as apart."""
        if a.arena != b.arena:
            return False
        (low, high), (first, last) = self.span(a, iteration), self.span(b, iteration)
        if high <= first or last <= low:
            return False
        mask = np.zeros(-(-self.plan.arenas[a.arena].bytes // self.units[a.arena]), np.bool_)
        self.units_of(a, iteration, mask)[...] = True
        return bool(self.units_of(b, iteration, mask).any())


def _units(plan: Plan) -> list[int]:
    """For each arena the largest number of bytes of which every operand in it is made, and by which it moves."""
    units = [0] * len(plan.arenas)
    named = (*plan.inputs.values(), *plan.outputs.values(), *plan.stored.values(), *plan.kept.values())
    prepacks = (operand for prepack in plan.prepacks.values() for operand in (prepack.operand, prepack.source))
    for operand in (*named, *prepacks, *(o for item in plan.items for o in operands_of(item))):
        if not operand.type.elements:
            continue
        size = operand.type.dtype.nbytes(1)
        numbers = [operand.offset, operand.iteration_stride, operand.buffer_stride]
        if operand.is_contiguous:
            numbers.append(operand.type.elements * size)
        else:
            numbers += [size, *(stride * size for stride in operand.strides)]
        units[operand.arena] = math.gcd(units[operand.arena], *numbers)
    return [unit or max(arena.bytes, 1) for unit, arena in zip(units, plan.arenas, strict=True)]


def _requests(step: Step) -> Sequence[PrepackRequest]:
    """What the kernel of a step asked for."""
    return () if step.prepared is None else tuple(step.prepared.prepacks)


def _same_elements(a: Operand, b: Operand) -> bool:
    """True when two operands lie in the same bytes in the same order."""
    return (
        a.arena == b.arena
        and a.offset == b.offset
        and a.type.sizes == b.type.sizes
        and a.type.dtype.nbytes(1) == b.type.dtype.nbytes(1)
        and a.strides == b.strides
        and a.iteration_stride == b.iteration_stride
        and a.buffer_stride == b.buffer_stride
    )
