"""Proves that a plan is right by walking through it: what a step reads is what was written for it.

It shares no code with the planner. It reads segments, their steps' operands, transfers and waits, and keeps a shadow
of every arena: for each unit of bytes which value lies there and where that value begins. Every operand in an arena
begins, ends and moves by whole units, so a unit holds one value. What a loop carries is one value to
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


class PlanViolation(DataflowError):
    """A plan would compute something else than its graph says."""


@dataclass(frozen=True, slots=True)
class _Touch:
    """Bytes that something in a queue reads or writes."""

    arena: int
    low: int
    high: int
    writes: bool
    by: str


@dataclass(slots=True)
class _Extent:
    """Where an operand lies, outside of iterations.

    Attributes:
        low: the first of its bytes in the arena.
        high: one past the last.
        inside: they are bytes of the arena.
        contiguous: there are no gaps between them.
        content: what a shadow holds where its value lies, see ``_Walk.content``.
        entries: of the shadow, for its bytes; None until they are looked at.
    """

    low: int
    high: int
    inside: bool
    contiguous: bool
    content: int
    entries: Array | None = None


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
        self.contents: dict[tuple[int, int], int] = {}  # by value, and the offset where it begins
        self.units = _units(plan)
        self.shadows = [  # per arena and unit the content; what is never written has none: its bounds are looked at
            None if arena.kind in ("weights", "prepacks", "source") else np.zeros(-(-arena.bytes // unit), np.int32)
            for arena, unit in zip(plan.arenas, self.units, strict=True)
        ]
        self.weights: dict[int, int] = {}  # arena -> content
        self.found: dict[int, Operand] = {}  # arena -> the state in it that a run finds
        for operand in (*plan.inputs.values(), *plan.stored.values()):
            shadow = self.shadows[operand.arena]
            content = self.content(operand.value, operand.offset - operand.origin)
            if shadow is None:
                self.weights[operand.arena] = content
            elif plan.arenas[operand.arena].kind == "grown":  # what lies behind it is still to be written
                self.entries(operand, 0)[...] = content
                self.found[operand.arena] = operand
            else:
                shadow[:] = content
        for prepack in plan.prepacks.values():
            self.weights[prepack.operand.arena] = self.content(prepack.operand.value, prepack.operand.offset)
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
        self.enter(queue, 0, where, [item.source], [item.target])
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
        written = writes if step.workspace is None else [step.workspace, *writes]
        for operand in written:
            self.inside(operand, iteration, where)
        self.enter(queue, iteration, where, reads, written)
        for operand in reads:
            self.holds(operand, iteration, where)
        self.prepacks(step, where)
        self.with_memory(step, where)
        self.apart(step, iteration, where)
        for operand in written:
            self.write(operand, iteration, where)

    def body(self, step: Step, iteration: int, queue: str) -> None:
        """Every iteration of a loop of known length, two of another; a branch as if it were taken."""
        assert step.body is not None
        where = step.node.describe()
        reads = [o for o in step.inputs if o is not None]
        writes = [o for o in step.outputs if o is not None]
        self.enter(queue, iteration, where, reads, writes)
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

    def enter(self, queue: str, iteration: int, by: str, reads: Sequence[Operand], writes: Sequence[Operand]) -> None:
        """Looks whether another queue may still touch the same bytes, and remembers what this one touches."""
        self.seen.update([operand.arena for operand in reads])
        self.seen.update([operand.arena for operand in writes])
        if not queue and not self.pending:
            return
        mine = [touch for operand in reads for touch in self.touches(operand, iteration, False, by)]
        mine += [touch for operand in writes for touch in self.touches(operand, iteration, True, by)]
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

    def content(self, value: int, base: int) -> int:
        """What a shadow holds where a value lies that begins at an offset; 0 is nothing."""
        return self.contents.setdefault((value, base), len(self.contents) + 1)

    def extent(self, operand: Operand) -> _Extent:
        """That of an operand of the plan, computed once."""
        found = self.extents.get(id(operand))
        if found is None:
            size = operand.type.dtype.nbytes(1)
            low = high = operand.offset
            for dim, stride in zip(operand.type.sizes, operand.strides, strict=True):
                reach = (dim - 1) * stride * size
                low, high = low + min(reach, 0), high + max(reach, 0)
            inside = low >= 0 and high + size <= self.plan.arenas[operand.arena].bytes
            content = self.content(operand.value, operand.offset - operand.origin)
            found = _Extent(low, high + size, inside, operand.is_contiguous, content)
            self.extents[id(operand)] = found
        return found

    def span(self, operand: Operand, iteration: int) -> tuple[int, int]:
        """First and one-past-last byte in the arena."""
        extent, by = self.extent(operand), _moved(operand, iteration)
        return extent.low + by, extent.high + by

    def entries(self, operand: Operand, iteration: int) -> Array:
        """The shadow's entries for the operand's bytes, which lie in the arena."""
        extent = self.extent(operand)
        if not iteration and extent.entries is not None:
            return extent.entries
        shadow = self.shadows[operand.arena]
        assert shadow is not None
        found = self.units_of(operand, iteration, shadow)
        if not iteration:
            extent.entries = found
        return found

    def units_of(self, operand: Operand, iteration: int, units: Array) -> Array:
        """Of an array with an entry per unit of its arena those for the operand's bytes."""
        unit = self.units[operand.arena]
        low, high = self.span(operand, iteration)
        range_ = units[low // unit : high // unit]
        if self.extent(operand).contiguous:
            return range_
        size = operand.type.dtype.nbytes(1)
        begin = operand.offset + _moved(operand, iteration)
        item = units.itemsize
        # What is repeated by a stride of zero is looked at once.
        axes = [(d, s * (size // unit) * item) for d, s in zip(operand.type.sizes, operand.strides, strict=True) if s]
        sizes, strides = [d for d, _ in axes], [s for _, s in axes]
        found: Array = np.lib.stride_tricks.as_strided(
            range_[(begin - low) // unit :], (*sizes, size // unit), (*strides, item)
        )
        return found

    def inside(self, operand: Operand, iteration: int, where: str) -> None:
        """The operand lies in its arena; asked before its shadow is looked at."""
        if (not iteration and self.extent(operand).inside) or not operand.type.elements:
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
        content = self.extent(operand).content
        if self.shadows[operand.arena] is None:
            if self.weights.get(operand.arena) != content:
                raise PlanViolation(f"{where}: reads value {operand.value} where other weights lie")
            return
        found = self.entries(operand, iteration)
        if (found != content).any():
            raise PlanViolation(f"{where}: {self.difference(operand, found)}")

    def difference(self, operand: Operand, found: Array) -> str:
        """What is wrong with the entries of an operand that is read."""
        name = self.plan.arenas[operand.arena].name
        values = {content: value for (value, _), content in self.contents.items()}
        for content in np.unique(found):
            if values.get(int(content)) != operand.value:
                held = f"value {values[int(content)]}" if content else "nothing"
                return f"reads value {operand.value} in {name!r}, where {held} lies"
        return f"reads value {operand.value} in {name!r}, parts of which lie elsewhere"

    def write(self, operand: Operand, iteration: int, where: str) -> None:
        """The operand's bytes hold its value from now on."""
        if not operand.type.elements:
            return
        self.inside(operand, iteration, where)
        kind = self.plan.arenas[operand.arena].kind
        if self.shadows[operand.arena] is None or kind in ("input", "before"):
            raise PlanViolation(f"{where}: writes {self.plan.arenas[operand.arena].name!r}, which is {kind}")
        if kind == "grown" and self.overlap(operand, self.found[operand.arena], iteration):
            raise PlanViolation(f"{where}: overwrites the state {self.plan.arenas[operand.arena].name!r}")
        self.entries(operand, iteration)[...] = self.extent(operand).content

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
        if self.extent(a).contiguous and self.extent(b).contiguous:
            return True
        mask = np.zeros(-(-self.plan.arenas[a.arena].bytes // self.units[a.arena]), np.bool_)
        self.units_of(a, iteration, mask)[...] = True
        return bool(self.units_of(b, iteration, mask).any())


def _moved(operand: Operand, iteration: int) -> int:
    """By how many bytes an operand lies behind where it does outside of iterations."""
    if not iteration:
        return 0
    return iteration * operand.iteration_stride + (operand.buffer_stride if iteration % 2 else 0)


def _units(plan: Plan) -> list[int]:
    """For each arena the largest number of bytes of which every operand in it is made, and by which it moves."""
    units = [0] * len(plan.arenas)
    named = (*plan.inputs.values(), *plan.outputs.values(), *plan.stored.values(), *plan.kept.values())
    prepacks = (operand for prepack in plan.prepacks.values() for operand in (prepack.operand, prepack.source))
    all_ = (*named, *prepacks, *(o for item in plan.items for o in operands_of(item)))
    for operand in {id(operand): operand for operand in all_}.values():
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
