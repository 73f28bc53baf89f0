"""Lowered -> Plan: segments, lifetimes, in-place reuse and an offset for every value."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..host.limits import poll
from ..ir.kernel import HOST
from ..ir.lowered import BaseTensor, Loop, Lowered, LoweredItem, LoweredNode, Move, Stage, Storage
from ..ir.operand import Operand
from ..ir.plan import Arena, Body, Item, Lifetime, Plan, Prepack, Range, Segment, Step, Transfer, Wait
from ..ir.types import TensorType, contiguous_strides, uint8
from .liveness import Touched, lifetimes, share_in_place, touched_by, with_live_values
from .offsets import EFFORT, MemoryPlan, lie_apart, offsets_apart, plan_memory, share_operands

Prepare = Callable[[str, Sequence[LoweredNode], Collection[BaseTensor]], Sequence[Any]]
"""``prepare(device, nodes, constants)``: the device's answer for each node (``dataflow.plugin.device.Prepared``)."""

ALIGNMENT = 64
SHORT_EFFORT = EFFORT // 100  # a fifth of a millisecond


def make_plan(
    lowered: Lowered,
    prepare: Prepare,
    alignment: Mapping[str, int],
    asynchronous: frozenset[str] = frozenset(),
    mutable: Collection[str] = (),
    prepacking: Collection[str] = (HOST,),
) -> Plan:
    """A plan with every offset fixed.

    Args:
        lowered: nodes and moves in the order in which they run.
        prepare: asks a device for workspace, prepacks and algorithm.
        alignment: bytes, by device id.
        asynchronous: ids of devices that may return before they are done.
        mutable: names of initializers that this or another program changes.
        prepacking: names of the memories in which prepacked copies may lie.
    """
    return _Planning(lowered, prepare, alignment, asynchronous, mutable, prepacking).run()


_Row = tuple[str, Lifetime, int]


@dataclass(slots=True, eq=False)  # not frozen: there is one per value of each plan, and that takes twice as long
class _Entry:
    """Something that needs an offset: base tensors that share it, a workspace, or what a loop's body needs."""

    name: str
    life: Lifetime
    bases: tuple[BaseTensor, ...] = ()
    node: LoweredNode | None = None
    inner: tuple[tuple[_Entry, ...], tuple[int, ...]] | None = None


class _Planning:
    def __init__(
        self,
        lowered: Lowered,
        prepare: Prepare,
        alignment: Mapping[str, int],
        asynchronous: frozenset[str],
        mutable: Collection[str],
        prepacking: Collection[str],
    ) -> None:
        self.asynchronous, self.prepacking = asynchronous, prepacking
        self.mutable = {*mutable}
        self.lowered = lowered
        self.passing = lowered.passing()
        self.prepare = prepare
        self.alignment = max([ALIGNMENT, *alignment.values()])
        self.arenas: list[Arena] = []
        self.positions: dict[BaseTensor, tuple[int, int]] = {}  # arena, offset
        self.workspace: dict[LoweredNode, Operand] = {}
        self.prepacks: dict[str, Prepack] = {}
        self.read: set[BaseTensor] = set()  # other than by their prepacks
        self.made: dict[int, Operand] = {}  # by id of a storage, which the lowered items keep alive
        self.count = 0

    def run(self) -> Plan:
        written = {before for _, before in self.lowered.states}
        self.constants = {
            stored.storage.base
            for stored in self.lowered.stored.values()
            if stored.storage.base not in written and stored.name not in self.mutable
        }
        self.packable = {base for base in self.constants if base.memory in self.prepacking}
        prepared = self.prepare_nodes()
        pairs = self.lowered.state.pairs
        kept = frozenset(pairs.values())
        left = {storage.base for storage in self.lowered.outputs.values()}
        for name, storage in self.lowered.inputs.items():
            kind = "grown" if storage.base in left else "before"
            self.slot(name, storage.base, kind if name in kept else "input")
        for name, storage in self.lowered.outputs.items():
            if storage.base not in self.positions:
                self.slot(name, storage.base, "after" if name in pairs else "output")
        self.persistent()
        for after, before in self.lowered.states:
            if after not in self.passing:
                self.positions[after] = self.positions[before]
        scratch = self.assign_offsets(prepared)
        peak = sum(p for _, p, _ in scratch.values())
        bound = sum(b for _, _, b in scratch.values())
        items, stops = self.segments(prepared)
        self.without_memory()
        rows = [row for found, _, _ in scratch.values() for row in found]
        touched = [touched_by(item) for item in items]
        return Plan(
            tuple(with_live_values(items, touched, self.arenas)),
            tuple(self.arenas),
            self.operands(self.lowered.inputs),
            self.operands(self.lowered.outputs),
            self.operands({key: stored.storage for key, stored in self.lowered.stored.items() if not stored.passes}),
            self.prepacks,
            {before.name: self.base_operand(after) for after, before in self.lowered.states},
            {arena: rows for arena, (rows, _, _) in scratch.items()},
            self.asynchronous,
            self.ranges(touched, stops, rows),
            peak,
            bound,
            self.lowered.again,
            frozenset([self.positions[base][0] for base in self.packable if base in self.positions]),
        )

    def prepare_nodes(self) -> dict[LoweredNode, Any]:
        by_device: dict[str, list[LoweredNode]] = {}
        for item in self.lowered.items:
            if not isinstance(item, Move):
                by_device.setdefault(item.device, []).extend(_computing(item))
        found: dict[LoweredNode, Any] = {}
        for device, nodes in by_device.items():
            found.update(zip(nodes, self.prepare(device, nodes, self.packable), strict=True))
        return found

    def arena(self, name: str, memory: str, bytes_: int, kind: str) -> int:
        self.arenas.append(Arena(name, memory, bytes_, kind))  # type: ignore[arg-type]
        return len(self.arenas) - 1

    def slot(self, name: str, base: BaseTensor, kind: str) -> None:
        self.positions[base] = (self.arena(name, base.memory, base.type.nbytes, kind), 0)

    def persistent(self) -> None:
        """An allocation for each stored tensor, so that programs with different plans can share it."""
        for key, stored in self.lowered.stored.items():
            base = stored.storage.base
            if stored.passes:
                continue
            kind = "weights" if base in self.constants else "state"
            self.positions[base] = (self.arena(key, base.memory, base.type.nbytes, kind), 0)

    def assign_offsets(self, prepared: Mapping[LoweredNode, Any]) -> dict[int, tuple[tuple[_Row, ...], int, int]]:
        """Gives everything an offset that has none yet: per arena the rows for drawings, peak and lower bound."""
        found = {}
        for memory, (entries, assigned) in self.assigned(self.lowered.items, prepared).items():
            index = self.arena("arena", memory, assigned.peak, "arena")
            self.put(index, 0, entries, assigned.offsets)
            drawn = tuple((e.name, e.life, offset) for e, offset in zip(entries, assigned.offsets, strict=True))
            found[index] = (drawn, assigned.peak, assigned.lower_bound)
        return found

    def assigned(
        self, items: Sequence[LoweredItem], prepared: Mapping[LoweredNode, Any]
    ) -> dict[str, tuple[list[_Entry], MemoryPlan]]:
        """What ``items`` need beside what has a position, with offsets, by memory.

        A loop is one item of its parent: what its body needs is one entry, alive while the loop runs.
        """
        alive = lifetimes(items, self.positions)
        for base in self.passing:
            if base in alive:  # to the end, where it may be read
                alive[base] = (alive[base][0], len(items) - 1)
        owner = share_in_place(items, self.positions, self.passing, alive) if share_operands() else {}
        guests: dict[BaseTensor, list[BaseTensor]] = {}
        for base, whose in owner.items():
            guests.setdefault(whose, []).append(base)
        entries: dict[str, list[_Entry]] = {}
        for base, (start, last) in alive.items():
            if base not in owner:
                shared = guests.get(base, ())
                life = Lifetime(start, last + 1, base.type.nbytes, self.alignment)
                entries.setdefault(base.memory, []).append(_Entry(base.name, life, (base, *shared)))
        for time, item in enumerate(items):
            if isinstance(item, LoweredNode) and item in prepared and prepared[item].workspace:
                memory = next(s.base.memory for s in item.outputs if s is not None)
                life = Lifetime(time, time + 1, prepared[item].workspace, self.alignment)
                entries.setdefault(memory, []).append(_Entry(f"{item.node.name}:workspace", life, node=item))
            elif isinstance(item, Loop):
                outside = {s.base: (0, 0) for s in (*item.inputs, *item.outputs)}
                for memory, (inner, body) in self.assigned_body(item, outside, prepared).items():
                    life = Lifetime(time, time + 1, body.peak, self.alignment)
                    entry = _Entry(f"{item.node.name}:body", life, inner=(tuple(inner), body.offsets))
                    entries.setdefault(memory, []).append(entry)
        return {memory: (found, _offsets([e.life for e in found])) for memory, found in entries.items()}

    def assigned_body(
        self, loop: Loop, outside: Mapping[BaseTensor, tuple[int, int]], prepared: Mapping[LoweredNode, Any]
    ) -> dict[str, tuple[list[_Entry], MemoryPlan]]:
        """What a loop's body needs for itself, with offsets from the begin of its program of the arena."""
        known = self.positions
        self.positions = {**outside, **known}
        try:
            return self.assigned(loop.items, prepared)
        finally:
            self.positions = known

    def put(self, arena: int, start: int, entries: Sequence[_Entry], offsets: Sequence[int]) -> None:
        for entry, offset in zip(entries, offsets, strict=True):
            for base in entry.bases:
                self.positions[base] = (arena, start + offset)
            if entry.node is not None:
                self.workspace[entry.node] = self.bytes_at(arena, start + offset, entry.life.bytes)
            if entry.inner is not None:
                self.put(arena, start + offset, *entry.inner)

    def bytes_at(self, arena: int, offset: int, size: int) -> Operand:
        """Memory that holds no value of the graph."""
        type_ = TensorType(uint8, (size,))
        self.count -= 1  # no value has a number below zero
        return Operand(arena, offset, type_, contiguous_strides(type_.sizes), self.count)

    def prepackable(self, storage: Storage) -> bool:
        """True for what is the same at every run and in every iteration of a loop, in a memory with such copies."""
        return storage.base in self.packable and not storage.iteration_stride and not storage.buffer_stride

    def prepacked_of(self, item: LoweredNode, inputs: Sequence[Operand | None], prepared: Any) -> list[Operand | None]:
        """Where the prepacks lie that a node's kernel asked for; None for those of an input that is not constant."""
        found: list[Operand | None] = []
        for request in prepared.prepacks:
            storage, source = item.inputs[request.input], inputs[request.input]
            if storage is None or source is None or not request.bytes or not self.prepackable(storage):
                found.append(None)
                continue
            layout = (source.offset, source.type, source.strides)
            alike = (item.kernel.name, *layout, request.kind, request.bytes, item.node.attributes)
            digest = hashlib.blake2b(repr(alike).encode(), digest_size=8).hexdigest()
            name = f"{storage.base.name}:{request.input}:{digest}"
            if name not in self.prepacks:
                size = -(-request.bytes // ALIGNMENT) * ALIGNMENT  # prepacks lie one behind another
                operand = self.bytes_at(self.arena(name, storage.base.memory, size, "prepacks"), 0, request.bytes)
                self.prepacks[name] = Prepack(operand, source, request.fill, digest)
            found.append(self.prepacks[name].operand)
        return found if any(found) else []

    def operands(self, storages: Mapping[str, Storage]) -> dict[str, Operand]:
        return {name: found for name, s in storages.items() if (found := self.operand(s)) is not None}

    def base_operand(self, base: BaseTensor) -> Operand:
        strides = contiguous_strides(base.type.sizes)
        return Storage(base, 0, strides, base.type).operand(*self.positions[base])

    def operand(self, storage: Storage | None) -> Operand | None:
        if storage is None:
            return None
        found = self.made.get(id(storage))
        if found is None:
            found = self.made[id(storage)] = storage.operand(*self.positions[storage.base])
        return found

    def without_memory(self) -> None:
        """Marks the weights of which only prepacks are read."""
        self.read.update(s.base for s in self.lowered.outputs.values())
        prepacked = {prepack.source.arena for prepack in self.prepacks.values()}
        for base in self.constants - self.read:
            index, _ = self.positions[base]
            if index in prepacked:
                self.arenas[index] = replace(self.arenas[index], kind="source")

    def step(self, item: LoweredNode | Loop, prepared: Mapping[LoweredNode, Any]) -> Step:
        poll(item.node)
        if isinstance(item, Loop):
            self.read.update(s.base for s in (*item.inputs, *item.control, *item.counts))
            steps = tuple(self.step(i, prepared) for i in item.items if _does_work(i))
            body = Body(steps, item.iterations, item.kind, item.when)
            control, counts = (tuple(self.operand(s) for s in program) for program in (item.control, item.counts))
            return Step(item.node, None, control, counts, None, None, body)
        inputs = tuple([self.operand(s) for s in item.inputs])
        outputs = tuple([self.operand(s) for s in item.outputs])
        answer = prepared[item]
        prepacks = tuple(self.prepacked_of(item, inputs, answer)) if answer.prepacks else ()
        given = [request for request, prepack in zip(answer.prepacks, prepacks, strict=False) if prepack is not None]
        replaced = {request.input for request in given if request.replaces}
        self.read.update([s.base for i, s in enumerate(item.inputs) if s is not None and i not in replaced])
        return Step(item.node, item.kernel, inputs, outputs, self.workspace.get(item), answer, None, prepacks)

    def segments(self, prepared: Mapping[LoweredNode, Any]) -> tuple[list[Item], list[int]]:
        """The items in order, and for each stage how many of them are of it or of those before."""
        items: list[Item] = []
        steps: list[Step] = []
        pending: set[str] = set()
        device = ""
        stops: list[int] = []
        stages = self._stages()

        def close() -> None:
            if steps:
                items.append(Segment(device, tuple(steps)))
                steps.clear()

        def enter(queue: str) -> None:
            """Waits for other queues: what they do may touch what the next item touches."""
            for other in sorted(pending - {queue}):
                items.append(Wait(other))
                pending.discard(other)
            if queue in self.asynchronous:
                pending.add(queue)

        for index, item in enumerate(self.lowered.items):
            while len(stops) < len(stages) and index >= stages[len(stops)].stop:
                close()
                stops.append(len(items))
            if isinstance(item, Move):
                close()
                device = ""
                self.read.add(item.source.base)
                source, target = self.operand(item.source), self.operand(item.target)
                assert source is not None and target is not None
                enter(item.from_device if item.target.base.memory == HOST else item.to_device)
                items.append(Transfer(source, target, item.from_device, item.to_device, item.name))
                continue
            idle = item not in prepared if isinstance(item, LoweredNode) else not _does_work(item)
            if idle:
                continue  # of zero size: nothing to compute
            if item.device != device:
                close()
                device = item.device
            if not steps:
                enter(device)
            steps.append(self.step(item, prepared))
        close()
        enter("")
        stops += [len(items)] * (len(stages) - len(stops))
        return items, stops

    def _stages(self) -> tuple[Stage, ...]:
        """Those that can run by themselves."""
        return () if self.lowered.joined else self.lowered.stages

    def ranges(self, by_item: Sequence[Touched], stops: Sequence[int], rows: Sequence[_Row]) -> dict[str, Range]:
        """What the plan's programs are, by what each item touches; ``rows`` are what lies in scratch memory."""
        slots = {index for index, arena in enumerate(self.arenas) if arena.kind in ("input", "output")}
        programs = [by_item[start:stop] for start, stop in zip((0, *stops), stops, strict=False)]
        touched = [frozenset(slots & {arena for found in program for _, arena in found}) for program in programs]
        found = {}
        for number, stage in enumerate(self._stages()):
            alive = [(name, life.bytes) for name, life, _ in rows if life.start < stage.stop < life.stop]
            before, later = frozenset().union(*touched[: number + 1]), frozenset().union(*touched[number + 1 :])
            read = [self.arenas[i] for i in sorted(later) if self.arenas[i].kind == "input" or i in before]
            alive += [(arena.name, arena.bytes) for arena in read]
            if number == len(programs) - 1:
                alive = [(b.name, b.type.nbytes) for after, b in self.lowered.states if after not in self.passing]
            start = 0 if number == 0 else stops[number - 1]
            found[stage.name] = Range(start, stops[number], stage.stop, stage.outputs, touched[number], tuple(alive))
        return found


def _offsets(lives: Sequence[Lifetime]) -> MemoryPlan:
    """Offsets; the long search is for what the short one leaves more than a hundredth above the bound."""
    if lie_apart():
        return offsets_apart(lives)
    found = plan_memory(lives, SHORT_EFFORT)
    return found if found.peak <= 1.01 * found.lower_bound else plan_memory(lives)


def _computing(item: LoweredNode | Loop) -> Iterator[LoweredNode]:
    """The nodes with kernels of an item, in bodies too, but for those without work."""
    if _does_work(item):
        if isinstance(item, LoweredNode):
            yield item
        else:
            for inner in item.items:
                yield from _computing(inner)


def _does_work(item: LoweredNode | Loop) -> bool:
    """False where every result is of zero size, or no iteration is made."""
    if isinstance(item, Loop):
        return item.kind == "while" or (item.iterations > 0 and any(_does_work(i) for i in item.items))
    first = item.outputs[0]
    if first is not None and 0 not in first.type.shape:
        return True
    return any(storage is not None and 0 not in storage.type.shape for storage in item.outputs)
