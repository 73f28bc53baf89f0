"""Lowered -> Plan: segments, lifetimes, in-place reuse and an offset for every value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .device import HOST
from .lower.lowered import Lowered, LoweredNode, Move, Root, Storage
from .memory import Lifetime, plan_memory
from .native import Operand
from .plan import Arena, Item, Plan, Segment, Step, Transfer, Wait
from .types import TensorType, contiguous_strides, uint8

Prepare = Callable[[str, Sequence[LoweredNode]], Sequence[Any]]
"""``prepare(device, nodes)``: what the device answers for each node; has ``.workspace`` in bytes."""

ALIGNMENT = 64


def make_plan(
    lowered: Lowered,
    prepare: Prepare,
    alignment: Mapping[str, int],
    asynchronous: frozenset[str] = frozenset(),
    changed: Collection[str] = (),
) -> Plan:
    """A plan with every offset fixed.

    Args:
        lowered: nodes and moves in the order in which they run.
        prepare: asks a device for workspace and algorithm.
        alignment: bytes, by device id.
        asynchronous: ids of devices that may return before they are done.
        changed: names of initializers that this or another program changes.
    """
    return _Planning(lowered, prepare, alignment, asynchronous, changed).run()


class _Planning:
    def __init__(
        self,
        lowered: Lowered,
        prepare: Prepare,
        alignment: Mapping[str, int],
        asynchronous: frozenset[str],
        changed: Collection[str],
    ) -> None:
        self.asynchronous = asynchronous
        self.changed = {*changed}
        self.lowered = lowered
        self.prepare = prepare
        self.alignment = max([ALIGNMENT, *alignment.values()])
        self.arenas: list[Arena] = []
        self.place: dict[Root, tuple[int, int]] = {}  # arena, offset
        self.count = 0

    def run(self) -> Plan:
        prepared = self.prepare_nodes()
        for name, storage in self.lowered.inputs.items():
            self.slot(name, storage.root, "input")
        for name, storage in self.lowered.outputs.items():
            self.slot(name, storage.root, "output")
        self.persistent()
        for after, before in self.lowered.states:
            self.place[after] = self.place[before]
        first, last = self.lifetimes()
        owner = self.share_in_place(first, last)
        scratch = self.pack(first, last, owner, prepared)
        peak = sum(p for _, p, _ in scratch.values())
        bound = sum(b for _, _, b in scratch.values())
        items, boundary = self.segments(prepared)
        return Plan(
            tuple(items),
            tuple(self.arenas),
            self.operands(self.lowered.inputs),
            self.operands(self.lowered.outputs),
            self.operands({key: stored.storage for key, stored in self.lowered.stored.items()}),
            {arena: rows for arena, (rows, _, _) in scratch.items()},
            self.asynchronous,
            boundary,
            peak,
            bound,
        )

    def prepare_nodes(self) -> dict[LoweredNode, Any]:
        by_device: dict[str, list[LoweredNode]] = {}
        for item in self.lowered.items:
            if isinstance(item, LoweredNode):
                by_device.setdefault(item.device, []).append(item)
        found: dict[LoweredNode, Any] = {}
        for device, nodes in by_device.items():
            found.update(zip(nodes, self.prepare(device, nodes), strict=True))
        return found

    def arena(self, name: str, memory: str, bytes_: int, kind: str) -> int:
        self.arenas.append(Arena(name, memory, bytes_, kind))  # type: ignore[arg-type]
        return len(self.arenas) - 1

    def slot(self, name: str, root: Root, kind: str) -> None:
        self.place[root] = (self.arena(name, HOST, root.type.nbytes, kind), 0)

    def persistent(self) -> None:
        """An allocation for each stored tensor, so that programs with different plans can share it."""
        written = {before for _, before in self.lowered.states}
        for key, stored in self.lowered.stored.items():
            root = stored.storage.root
            kind = "state" if root in written or stored.name in self.changed else "weights"
            self.place[root] = (self.arena(key, root.memory, root.type.nbytes, kind), 0)

    def lifetimes(self) -> tuple[dict[Root, int], dict[Root, int]]:
        """First write and last use of each root that goes into a scratch arena, by index of item."""
        first: dict[Root, int] = {}
        last: dict[Root, int] = {}
        for time, item in enumerate(self.lowered.items):
            storages = [item.source, item.target] if isinstance(item, Move) else [*item.inputs, *item.outputs]
            for storage in storages:
                if storage is not None and storage.root not in self.place:
                    first.setdefault(storage.root, time)
                    last[storage.root] = time
        return first, last

    def share_in_place(self, first: dict[Root, int], last: dict[Root, int]) -> dict[Root, Root]:
        """Output roots that take the place of an input that dies there, by root that owns the place."""
        owner: dict[Root, Root] = {}
        end = dict(last)  # of the place that a root owns
        for time, item in enumerate(self.lowered.items):
            if not isinstance(item, LoweredNode):
                continue
            taken: set[Root] = set()
            for result, operand in item.kernel.inplace:
                if result >= len(item.outputs) or operand >= len(item.inputs):
                    continue
                out, source = item.outputs[result], item.inputs[operand]
                if out is None or source is None or out.root in self.place or out.root in owner:
                    continue
                if source.root in self.place or last[source.root] != time or source.root in taken:
                    continue
                readers = sum(s is not None and s.root is source.root for s in item.inputs)
                if readers == 1 and _same_bytes(out, source):
                    place = owner.get(source.root, source.root)
                    owner[out.root] = place
                    end[place] = max(end[place], last[out.root])
                    taken.add(source.root)
        last.update(end)
        return owner

    def pack(
        self,
        first: dict[Root, int],
        last: dict[Root, int],
        owner: dict[Root, Root],
        prepared: Mapping[LoweredNode, Any],
    ) -> dict[int, tuple[tuple[tuple[str, Lifetime, int], ...], int, int]]:
        """Offsets in one arena per memory: per arena the rows for drawings, peak and lower bound."""
        rows: dict[str, list[tuple[Root | LoweredNode, str, Lifetime]]] = {}
        for root, start in first.items():
            if root not in owner:
                life = Lifetime(start, last[root] + 1, root.type.nbytes, self.alignment)
                rows.setdefault(root.memory, []).append((root, root.name, life))
        for time, item in enumerate(self.lowered.items):
            if isinstance(item, LoweredNode) and prepared[item].workspace:
                memory = next(s.root.memory for s in item.outputs if s is not None)
                life = Lifetime(time, time + 1, prepared[item].workspace, self.alignment)
                rows.setdefault(memory, []).append((item, f"{item.node.name}:workspace", life))
        self.workspace: dict[LoweredNode, Operand] = {}
        found = {}
        for memory, entries in rows.items():
            packed = plan_memory([life for _, _, life in entries])
            index = self.arena("arena", memory, packed.peak, "arena")
            for (what, _, life), offset in zip(entries, packed.offsets, strict=True):
                if isinstance(what, Root):
                    self.place[what] = (index, offset)
                else:
                    type_ = TensorType(uint8, (life.bytes,))
                    self.count -= 1
                    self.workspace[what] = Operand(index, offset, type_, contiguous_strides(type_.sizes), self.count)
            drawn = tuple((n, life, o) for (_, n, life), o in zip(entries, packed.offsets, strict=True))
            found[index] = (drawn, packed.peak, packed.lower_bound)
        for root, place in owner.items():
            self.place[root] = self.place[place]
        return found

    def operands(self, storages: Mapping[str, Storage]) -> dict[str, Operand]:
        return {name: s.operand(*self.place[s.root]) for name, s in storages.items()}

    def operand(self, storage: Storage | None) -> Operand | None:
        if storage is None:
            return None
        return storage.operand(*self.place[storage.root])

    def segments(self, prepared: Mapping[LoweredNode, Any]) -> tuple[list[Item], int | None]:
        """The items in order, and how many of them are the forward program."""
        items: list[Item] = []
        steps: list[Step] = []
        pending: set[str] = set()
        device = ""
        boundary = None

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
            if index == self.lowered.boundary:
                close()
                enter("")
                boundary = len(items)
            if isinstance(item, Move):
                close()
                device = ""
                source, target = self.operand(item.source), self.operand(item.target)
                assert source is not None and target is not None
                enter(item.to_device if item.source.root.memory == HOST else item.from_device)
                items.append(Transfer(source, target, item.from_device, item.to_device, item.name))
                continue
            if all(s is None or s.type.elements == 0 for s in item.outputs):
                continue  # zero-size results: nothing to compute
            if item.device != device:
                close()
                device = item.device
            if not steps:
                enter(device)
            inputs = tuple(self.operand(s) for s in item.inputs)
            outputs = tuple(self.operand(s) for s in item.outputs)
            workspace = self.workspace.get(item)
            steps.append(Step(item.node, item.kernel, inputs, outputs, workspace, prepared[item]))
        close()
        enter("")
        if self.lowered.boundary is not None and boundary is None:
            boundary = len(items)
        return items, boundary


def _same_bytes(out: Storage, source: Storage) -> bool:
    """True when both are whole roots of one type and layout."""
    return (
        source.offset == 0
        and source.type == out.type
        and source.root.type.nbytes == out.type.nbytes
        and source.strides == out.strides
        and source.root.memory == out.root.memory
    )
