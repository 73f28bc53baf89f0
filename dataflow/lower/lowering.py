"""Storage and memory for every value: views, contiguous copies, moves between memories."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import xxhash

from ..errors import ModelError
from ..host.limits import poll
from ..ir.graph import Graph, Initializer, Node
from ..ir.kernel import HOST
from ..ir.lowered import Lowered, LoweredItem, LoweredNode, Move, Root, Stage, Storage, Stored
from ..ir.operand import is_contiguous
from ..ir.types import TensorType, contiguous_strides, element_count
from ..ir.value import Value
from ..plugin.registry import Registry
from . import control_flow
from .concat import place
from .placement import Pins
from .select import Selection, select


def lower(
    graph: Graph, pins: Pins, registry: Registry, homes: Mapping[str, str] = MappingProxyType({})
) -> tuple[Lowered, dict[str, Initializer]]:
    """``graph`` with devices, kernels and storage; its types must be bound.

    The data of its initializers come apart from it, by the keys of ``Lowered.stored``: whoever fills the stored tensors
    lets go of the data one by one.

    Args:
        graph: bound, without dead nodes.
        pins: devices in order of preference, the last resort last, and what the user wants where.
        registry: what plugins offer.
        homes: the one memory in which an initializer lies that programs change; one without a home has a copy in
            every memory that reads it.

    Raises:
        ModelError: a type isn't bound, or no device takes a node.
    """
    for value in graph.values():
        if not value.type.is_bound:
            raise ModelError(f"value {value.name!r} has type {value.type}: bind its named dims first")
    lowering = Lowering(select(graph, pins, registry), pins.devices, registry, homes)
    return lowering.run(), lowering.data


class Lowering:
    """The state of one lowering: what is lowered so far and where values lie."""

    def __init__(
        self, selection: Selection, devices: Sequence[str], registry: Registry, homes: Mapping[str, str]
    ) -> None:
        self.homes = homes
        self.prefix = ""  # of the names of a body's initializers
        self.graph = selection.graph
        self.choices = selection.choices
        self.refusals = selection.refusals
        self.devices = devices
        self.registry = registry
        self.copy = registry.ops["copy"]
        self.items: list[LoweredItem] = []
        self.first: list[LoweredItem] = []  # before them
        self.storage: dict[Value, Storage] = {}
        self.device_of: dict[Root, str] = {}  # the device that computed it
        self.inputs: dict[str, Storage] = {}
        self.stored: dict[str, Stored] = {}
        self.data: dict[str, Initializer] = {}  # of what is stored
        self.moved: dict[tuple[Root, str], Storage] = {}
        self.copied: dict[Any, Storage] = {}  # by place
        self.states: list[tuple[Root, Root]] = []
        self.wanted: dict[Value, Storage] = {}  # where a value must be computed
        self.wholes: dict[Node, Storage] = {}  # of concats whose parts are computed in place
        self.first_readers = {v: node for node in reversed(self.graph.nodes) for v in node.inputs if v is not None}
        self.returned: set[Root] = set()  # the roots of results
        self.count = 0
        self.index: dict[Root, list[int]] = {}  # of the items that touch it, for the first ``indexed`` items
        self.indexed = 0

    def run(self) -> Lowered:
        """The whole graph, lowered."""
        for value in self.graph.inputs:
            self.storage[value] = self.inputs[value.name] = self.root(value.name, value.type, HOST, "input")
        self.wholes, self.wanted = place(self.graph, self.whole_of, self.can_write)
        stops, names = self.graph.stage_stops(), [*self.graph.stages.values()] or [frozenset(self.graph.outputs)]
        found: dict[str, Storage] = {}
        ends = []
        for number, (start, stop) in enumerate(zip((0, *stops), stops, strict=False)):
            for node in self.graph.nodes[start:stop]:
                self.node(node)
            found |= self.results(names[number])
            ends.append(len(self.items))
        self.keep_states()
        ends[-1] = len(self.items)
        stages = tuple(
            Stage(name, end + len(self.first), tuple(n for n in self.graph.outputs if n in results))
            for (name, results), end in zip(self.graph.stages.items(), ends, strict=False)
        )
        outputs = {name: found[name] for name in self.graph.outputs}
        items = (*self.first, *self.items)
        return Lowered(items, self.inputs, outputs, self.stored, tuple(self.states), stages, self.refusals)

    def node(self, node: Node) -> None:
        """Lowers a node.

        Raises:
            InputError: a result, also one that is a view, has more elements than can be addressed.
        """
        poll(node)
        for value in node.outputs:
            if value is not None:
                element_count(value.type.sizes)  # kernels and strides count in 63 bits
        if node.op.view is not None:
            self.view(node)
        elif node in self.wholes:
            self.concat(node)
        elif self.choices[node].kernel is None:
            {"scan": control_flow.scan, "if_": control_flow.branches, "loop": control_flow.loop}[node.op.name](
                self, node
            )
        else:
            self.kernel(node)

    def root(self, name: str, type_: TensorType, memory: str, kind: str) -> Storage:
        """New bytes for a value."""
        self.count += 1
        root = Root(self.count, name, type_, memory, kind)  # type: ignore[arg-type]
        return Storage(root, 0, contiguous_strides(type_.sizes), type_)

    def read(self, value: Value, memory: str) -> Storage:
        """The storage of a value that a device with ``memory`` is about to read."""
        if value in self.graph.initializers:
            return self.initializer(value, self.homes.get(value.name, memory))
        return self.storage[value]

    def initializer(self, value: Value, memory: str) -> Storage:
        """The storage of stored data in a memory."""
        data = self.graph.initializers[value]
        name = self.prefix + value.name
        if data.role == "constant" and value.name not in self.homes:
            # Programs share stored tensors by name, and each makes constants of its own: the data tells them apart.
            name += "#" + _digest(value, data)
        key = name if memory == HOST else f"{memory}/{name}"
        if key not in self.stored:
            storage = self.root(key, value.type, memory, "stored")
            self.stored[key], self.data[key] = Stored(name, storage), data
        return self.stored[key].storage

    def view(self, node: Node) -> None:
        """The result lies where its operand lies, or in a contiguous copy of it."""
        value, result = node.inputs[0], node.outputs[0]
        assert value is not None and result is not None and node.op.view is not None
        source = self.storage.get(value)
        if source is None:
            source = self.read(value, self.memory_of_readers(result))
        view = node.op.view(node, source.strides)
        if view is None:
            source = self.contiguous(source, node)
            view = node.op.view(node, source.strides)
        if view is None:
            raise ModelError(f"{node.describe()}: not even a contiguous input makes it a view")
        offset = source.offset + view.offset * value.type.dtype.nbytes(1)
        self.storage[result] = Storage(
            source.root, offset, view.strides, result.type, source.iteration_stride, source.buffer_stride
        )

    def memory_of_readers(self, view: Value) -> str:
        """The memory of the first node that reads a view, through other views too."""
        node = self.first_readers.get(view)
        while node is not None and node.op.view is not None:
            node = None if node.outputs[0] is None else self.first_readers.get(node.outputs[0])
        return HOST if node is None else self.registry.devices[self.choices[node].device].memory

    def kernel(self, node: Node) -> None:
        """A node that one kernel computes: operands in its memory and as it takes them, a root per result."""
        choice = self.choices[node]
        assert choice.kernel is not None
        memory = self.registry.devices[choice.device].memory
        inputs: list[Storage | None] = []
        for index, value in enumerate(node.inputs):
            if value is None:
                inputs.append(None)
                continue
            storage = self.bring(value, choice.device, node)
            if not choice.kernel.input_spec(index).strided and not is_contiguous(storage.type.shape, storage.strides):
                storage = self.contiguous(storage, node, choice.device)
            inputs.append(storage)
        outputs: list[Storage | None] = []
        for value in node.outputs:
            if value is None:
                outputs.append(None)
                continue
            storage = self.wanted.get(value) or self.root(value.name, value.type, memory, "computed")
            self.storage[value] = storage
            self.device_of[storage.root] = choice.device
            outputs.append(storage)
        self.items.append(LoweredNode(node, choice.device, choice.kernel, tuple(inputs), tuple(outputs)))

    def whole_of(self, value: Value, node: Node) -> Storage:
        """A root for a concat whose parts are computed in it."""
        memory = self.registry.devices[self.choices[node].device].memory
        return self.root(value.name, value.type, memory, "computed")

    def can_write(self, node: Node, storage: Storage) -> bool:
        """Whether a node's kernel can write its result straight into a part of another value.

        Not with several memories: a value moves as a whole, and the whole isn't complete when a part is read.
        """
        if node.op.view is not None or self.choices[node].kernel is None:
            return False
        return len({self.registry.devices[d].memory for d in self.devices}) == 1 and storage.root.memory == HOST

    def concat(self, node: Node) -> None:
        """Nothing to do: its parts are there."""
        result = node.outputs[0]
        assert result is not None
        whole = self.storage[result] = self.wholes[node]
        self.device_of.setdefault(whole.root, self.choices[node].device)

    def bring(self, value: Value, device: str, reader: Node) -> Storage:
        """The storage of a value in the memory of ``device``."""
        memory = self.registry.devices[device].memory
        storage = self.read(value, memory)
        return storage if storage.root.memory == memory else self.move(storage, memory, device, reader)

    def inside(self, node: Node, index: int = 0) -> Lowering:
        """The lowering of a body, which shares what is stored."""
        choice = self.choices[node]
        inner = Lowering(choice.bodies[index], (choice.device,), self.registry, {})
        inner.prefix = f"{node.name}/{index}/" if index else f"{node.name}/"
        inner.stored, inner.data = self.stored, self.data
        inner.count = self.count
        return inner

    def copy_into(self, source: Storage, target: Storage, reader: Node, device: str) -> None:
        """A step that copies ``source``, of any strides, into ``target``."""
        name = f"{target.root.name}:copy{len(self.items)}"
        value, result = Value(source.root.name, source.type), Value(target.root.name, target.type)
        node = Node(self.copy, name, (value,), (result,), {}, (), f"copy for {reader.name}")
        for candidate in (device, *self.devices):
            if self.registry.devices[candidate].memory != source.root.memory:
                continue
            for kernel in self.registry.kernels[candidate].get("copy", ()):
                if kernel.refuses(node) is None and kernel.input_spec(0).strided:
                    self.items.append(LoweredNode(node, candidate, kernel, (source,), (target,)))
                    return
        raise ModelError(
            f"{reader.describe()}: no device on memory {source.root.memory!r} has a copy kernel for "
            f"{source.type} with any strides; every device needs one"
        )

    def contiguous(self, storage: Storage, reader: Node, device: str | None = None) -> Storage:
        """A contiguous copy, made on the device where the source lies; one per source."""
        key = _place_of(storage)
        if key in self.copied:
            return self.copied[key]
        device = device or self.device_for(storage.root)
        result = self.root(f"{storage.root.name}:contiguous{self.count}", storage.type, storage.root.memory, "computed")
        self.copy_into(storage, result, reader, device)
        self.device_of[result.root] = device
        self.copied[key] = result
        return result

    def move(self, storage: Storage, memory: str, device: str, reader: Node) -> Storage:
        """The value in another memory; the whole root moves, once per memory, and views stay views."""
        if HOST not in (storage.root.memory, memory) and not self.are_peers(storage.root.memory, memory):
            storage = self.move(storage, HOST, self.host_device(), reader)
        key = (storage.root, memory)
        if key not in self.moved:
            target = self.root(f"{storage.root.name}:{memory}", storage.root.type, memory, "computed")
            whole = Storage(storage.root, 0, contiguous_strides(storage.root.type.sizes), storage.root.type)
            origin = self.device_for(storage.root)
            # What is there from the start moves at the start: work on a device is not interrupted for it.
            items = self.first if storage.root.kind == "input" else self.items
            items.append(Move(whole, target, origin, device, storage.root.name))
            self.device_of[target.root] = device
            self.moved[key] = target
        moved = self.moved[key]
        return Storage(moved.root, storage.offset, storage.strides, storage.type)

    def are_peers(self, *memories: str) -> bool:
        """Whether values move between memories without the host."""
        peers = {
            d.peers for d in map(self.registry.devices.get, self.devices) if d is not None and d.memory in memories
        }
        return len(peers) == 1 and None not in peers

    def device_for(self, root: Root) -> str:
        """The device that computed a root, or the first that addresses it."""
        found = self.device_of.get(root)
        return found or next(d for d in self.devices if self.registry.devices[d].memory == root.memory)

    def host_device(self) -> str:
        """The first device that works on the host's memory."""
        return next(d for d in self.devices if self.registry.devices[d].memory == HOST)

    def results(self, names: Collection[str]) -> dict[str, Storage]:
        """Storage on the host for each of these outputs: a computed root of its own, contiguous."""
        found: dict[str, Storage] = {}
        kept = [self.storage.get(s.after) for s in self.graph.states]
        taken = self.returned | {s.root for s in kept if s is not None}  # these get the memory of their state
        marker = Node(self.copy, "result", (), (), {})
        for name, value in self.graph.outputs.items():
            if name not in names:
                continue
            storage = self.read(value, HOST)
            if storage.root.memory != HOST:
                storage = self.move(storage, HOST, self.host_device(), marker)
            whole = storage.offset == 0 and storage.type.nbytes == storage.root.type.nbytes
            straight = is_contiguous(storage.type.sizes, storage.strides)
            if storage.root.kind != "computed" or not whole or not straight or storage.root in taken:
                storage = self.fresh(storage, marker, self.host_device())
            taken.add(storage.root)
            found[name] = storage
        self.returned.update(storage.root for storage in found.values())
        return found

    def fresh(self, storage: Storage, reader: Node, device: str) -> Storage:
        """A copy that nobody else gets."""
        key = _place_of(storage)
        known = self.copied.pop(key, None)
        made = self.contiguous(storage, reader, device)
        del self.copied[key]
        if known is not None:
            self.copied[key] = known
        return made

    def keep_states(self) -> None:
        """Pairs of roots that share a place; a copy at the end where the value can't be computed there."""
        marker = Node(self.copy, "state", (), (), {})
        pending: list[tuple[Storage, Storage]] = []
        for state in self.graph.states:
            home = self.homes.get(state.before.name, HOST)
            before = self.initializer(state.before, home)
            after = self.read(state.after, home)
            if after == before:
                continue
            if after.root.memory != home:
                device = next(d for d in self.devices if self.registry.devices[d].memory == home)
                after = self.move(after, home, device, marker)
            claimed = self.returned | {root for root, _ in self.states}
            if after.root not in claimed and self.may_overwrite(after, before):
                self.states.append((after.root, before.root))
            else:
                pending.append((after, before))
        # What reads the old place of another state is copied aside before any state is written.
        ready = []
        for after, before in pending:
            device = self.device_for(after.root)
            aside = self.fresh(after, marker, device) if after.root.kind == "stored" else after
            ready.append((aside, before))
        for after, before in ready:
            device = self.device_for(after.root)
            self.states.append((self.fresh(after, marker, device).root, before.root))

    def may_overwrite(self, after: Storage, before: Storage) -> bool:
        """True when ``after`` can be computed in the place of ``before``."""
        root = after.root
        if root.kind != "computed" or after.offset or root.type.nbytes != before.root.type.nbytes:
            return False
        if not is_contiguous(after.type.sizes, after.strides):
            return False
        written = False
        for at_item in sorted({*self.touching(root), *self.touching(before.root)}):
            item = self.items[at_item]
            reads = [item.source] if isinstance(item, Move) else [s for s in item.inputs if s is not None]
            if written and any(s.root is before.root for s in reads):
                return False
            results = [item.target] if isinstance(item, Move) else item.outputs
            if any(s is not None and s.root is root for s in results):
                written = True
                at = [i for i, s in enumerate(reads) if s.root is before.root]
                if at and not self._in_place(item, root, before, len(at)):
                    return False
        return written

    def touching(self, root: Root) -> list[int]:
        """Where among the items those are that read or write a root."""
        for at in range(self.indexed, len(self.items)):
            item = self.items[at]
            found = (item.source, item.target) if isinstance(item, Move) else (*item.inputs, *item.outputs)
            for storage in found:
                if storage is not None:
                    self.index.setdefault(storage.root, []).append(at)
        self.indexed = len(self.items)
        return self.index.get(root, [])

    @staticmethod
    def _in_place(item: LoweredItem, root: Root, before: Storage, count: int) -> bool:
        return (
            isinstance(item, LoweredNode)
            and count == 1
            and any(
                result < len(item.outputs)
                and operand < len(item.inputs)
                and (out := item.outputs[result]) is not None
                and out.root is root
                and item.inputs[operand] == before
                for result, operand in item.kernel.inplace
            )
        )


def _place_of(storage: Storage) -> tuple[Any, ...]:
    """What tells the elements of one storage from those of another."""
    moving = storage.iteration_stride, storage.buffer_stride
    return storage.root, storage.offset, storage.type.sizes, storage.strides, *moving


def _digest(value: Value, data: Initializer) -> str:
    """A few characters that tell data, type and shape from others."""
    whole = xxhash.xxh3_128(str(value.type).encode())
    for array in (data.array, data.factor):
        if array is not None:
            plain = np.ascontiguousarray(array)
            whole.update(plain.tobytes() if plain.dtype == object else plain.reshape(-1).view(np.uint8).data)
    return whole.hexdigest()[:12]
