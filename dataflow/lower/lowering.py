"""Storage and memory for every value: views, contiguous copies, moves between memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..device import HOST
from ..errors import ModelError
from ..graph import Graph, Node, Value
from ..native import is_contiguous
from ..op import Op
from ..registry import Registry
from ..types import TensorType, contiguous_strides
from .lowered import Lowered, LoweredNode, Move, Root, Storage, Stored
from .select import Selection, select


def lower(
    graph: Graph, devices: Sequence[str], registry: Registry, homes: Mapping[str, str] = MappingProxyType({})
) -> Lowered:
    """``graph`` with devices, kernels and storage; its types must be bound.

    Args:
        graph: bound, without dead nodes.
        devices: ids in order of preference; the last resort last.
        registry: what plugins offer.
        homes: the one memory in which an initializer lies that programs change; one without a home has a copy in
            every memory that reads it.

    Raises:
        ModelError: a type isn't bound, or no device takes a node.
    """
    for value in graph.values():
        if not value.type.is_bound:
            raise ModelError(f"value {value.name!r} has type {value.type}: bind its named dims first")
    return _Lowering(select(graph, devices, registry), devices, registry, homes).run()


class _Lowering:
    def __init__(
        self, selection: Selection, devices: Sequence[str], registry: Registry, homes: Mapping[str, str]
    ) -> None:
        self.homes = homes
        self.graph = selection.graph
        self.choices = selection.choices
        self.refusals = selection.refusals
        self.devices = devices
        self.registry = registry
        self.copy: Op = registry.ops["copy"]
        self.items: list[LoweredNode | Move] = []
        self.storage: dict[Value, Storage] = {}
        self.device_of: dict[Root, str] = {}  # the device that computed it
        self.inputs: dict[str, Storage] = {}
        self.stored: dict[str, Stored] = {}
        self.moved: dict[tuple[Root, str], Storage] = {}
        self.copied: dict[tuple[Root, int, tuple[int, ...], tuple[int, ...]], Storage] = {}
        self.states: list[tuple[Root, Root]] = []
        self.count = 0

    def run(self) -> Lowered:
        for value in self.graph.inputs:
            self.storage[value] = self.inputs[value.name] = self.root(value.name, value.type, HOST, "input")
        boundary = None
        for index, node in enumerate(self.graph.nodes):
            if index == self.graph.boundary:
                boundary = len(self.items)
            if node.op.view is not None:
                self.view(node)
            else:
                self.kernel(node)
        if self.graph.boundary is not None and boundary is None:
            boundary = len(self.items)
        outputs = self.results()
        self.keep_states()
        states = tuple(self.states)
        return Lowered(tuple(self.items), self.inputs, outputs, self.stored, states, boundary, self.refusals)

    def root(self, name: str, type_: TensorType, memory: str, kind: str) -> Storage:
        self.count += 1
        root = Root(self.count, name, type_, memory, kind)  # type: ignore[arg-type]
        return Storage(root, 0, contiguous_strides(type_.sizes), type_)

    def read(self, value: Value, memory: str) -> Storage:
        """The storage of a value that a device with ``memory`` is about to read."""
        if value in self.graph.initializers:
            return self.initializer(value, self.homes.get(value.name, memory))
        return self.storage[value]

    def initializer(self, value: Value, memory: str) -> Storage:
        key = value.name if memory == HOST else f"{memory}/{value.name}"
        if key not in self.stored:
            storage = self.root(key, value.type, memory, "stored")
            self.stored[key] = Stored(value.name, storage, self.graph.initializers[value])
        return self.stored[key].storage

    def view(self, node: Node) -> None:
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
        self.storage[result] = Storage(source.root, offset, view.strides, result.type)

    def memory_of_readers(self, view: Value) -> str:
        """The memory of the first node that reads a view, through other views too."""
        for node in self.graph.nodes:
            if view in node.inputs:
                if node.op.view is not None and node.outputs[0] is not None:
                    return self.memory_of_readers(node.outputs[0])
                if node.op.view is None:
                    return self.registry.devices[self.choices[node].device].memory
        return HOST

    def kernel(self, node: Node) -> None:
        choice = self.choices[node]
        memory = self.registry.devices[choice.device].memory
        inputs: list[Storage | None] = []
        for index, value in enumerate(node.inputs):
            if value is None:
                inputs.append(None)
                continue
            storage = self.read(value, memory)
            if storage.root.memory != memory:
                storage = self.move(storage, memory, choice.device, node)
            if not choice.kernel.input_spec(index).strided and not is_contiguous(storage.type.shape, storage.strides):
                storage = self.contiguous(storage, node, choice.device)
            inputs.append(storage)
        outputs: list[Storage | None] = []
        for value in node.outputs:
            if value is None:
                outputs.append(None)
                continue
            storage = self.root(value.name, value.type, memory, "computed")
            self.storage[value] = storage
            self.device_of[storage.root] = choice.device
            outputs.append(storage)
        self.items.append(LoweredNode(node, choice.device, choice.kernel, tuple(inputs), tuple(outputs)))

    def contiguous(self, storage: Storage, reader: Node, device: str | None = None) -> Storage:
        """A contiguous copy, made on the device where the source lies; one per source."""
        key = (storage.root, storage.offset, storage.type.sizes, storage.strides)
        if key in self.copied:
            return self.copied[key]
        device = device or self.device_of.get(storage.root) or self.host_device()
        result = self.root(f"{storage.root.name}:contiguous{self.count}", storage.type, storage.root.memory, "computed")
        source, target = Value(storage.root.name, storage.type), Value(result.root.name, storage.type)
        node = Node(self.copy, target.name, (source,), (target,), {}, (), f"contiguous copy for {reader.name}")
        for candidate in (device, *self.devices):
            if self.registry.devices[candidate].memory != storage.root.memory:
                continue
            for kernel in self.registry.kernels[candidate].get("copy", ()):
                if kernel.refuses(node) is None and kernel.input_spec(0).strided:
                    self.items.append(LoweredNode(node, candidate, kernel, (storage,), (result,)))
                    self.device_of[result.root] = candidate
                    self.copied[key] = result
                    return result
        raise ModelError(
            f"{reader.describe()}: no device on memory {storage.root.memory!r} has a copy kernel for "
            f"{storage.type} with any strides; every device needs one"
        )

    def move(self, storage: Storage, memory: str, device: str, reader: Node) -> Storage:
        """The value in another memory; the whole root moves, once per memory, and views stay views."""
        if HOST not in (storage.root.memory, memory):  # between two devices: through the host
            storage = self.move(storage, HOST, self.host_device(), reader)
        key = (storage.root, memory)
        if key not in self.moved:
            target = self.root(f"{storage.root.name}:{memory}", storage.root.type, memory, "computed")
            whole = Storage(storage.root, 0, contiguous_strides(storage.root.type.sizes), storage.root.type)
            origin = self.device_of.get(storage.root) or self.host_device()
            self.items.append(Move(whole, target, origin, device, storage.root.name))
            self.device_of[target.root] = device
            self.moved[key] = target
        moved = self.moved[key]
        return Storage(moved.root, storage.offset, storage.strides, storage.type)

    def host_device(self) -> str:
        """The first device that works on the host's memory."""
        return next(d for d in self.devices if self.registry.devices[d].memory == HOST)

    def results(self) -> dict[str, Storage]:
        """Storage on the host for each output: a computed root of its own, contiguous."""
        found: dict[str, Storage] = {}
        kept = [self.storage.get(s.after) for s in self.graph.states]
        taken = {s.root for s in kept if s is not None}  # they get the place of their state
        marker = Node(self.copy, "result", (), (), {})
        for name, value in self.graph.outputs.items():
            storage = self.read(value, HOST)
            if storage.root.memory != HOST:
                storage = self.move(storage, HOST, self.host_device(), marker)
            whole = storage.offset == 0 and storage.type.nbytes == storage.root.type.nbytes
            straight = is_contiguous(storage.type.sizes, storage.strides)
            if storage.root.kind != "computed" or not whole or not straight or storage.root in taken:
                storage = self.fresh(storage, marker, self.host_device())
            taken.add(storage.root)
            found[name] = storage
        return found

    def fresh(self, storage: Storage, reader: Node, device: str) -> Storage:
        """A copy that nobody else gets."""
        key = (storage.root, storage.offset, storage.type.sizes, storage.strides)
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
            claimed = {root for root, _ in self.states}
            if after.root not in claimed and self.may_overwrite(after, before):
                self.states.append((after.root, before.root))
            else:
                pending.append((after, before))
        # What reads the old place of another state is copied aside before any state is written.
        ready = []
        for after, before in pending:
            device = self.device_of.get(after.root) or self.host_device()
            aside = self.fresh(after, marker, device) if after.root.kind == "stored" else after
            ready.append((aside, before))
        for after, before in ready:
            device = self.device_of.get(after.root) or self.host_device()
            self.states.append((self.fresh(after, marker, device).root, before.root))

    def may_overwrite(self, after: Storage, before: Storage) -> bool:
        """True when ``after`` can be computed in the place of ``before``."""
        root = after.root
        if root.kind != "computed" or after.offset or root.type.nbytes != before.root.type.nbytes:
            return False
        if not is_contiguous(after.type.sizes, after.strides):
            return False
        written = False
        for item in self.items:
            reads = [item.source] if isinstance(item, Move) else [s for s in item.inputs if s is not None]
            if written and any(s.root is before.root for s in reads):
                return False
            results = [item.target] if isinstance(item, Move) else item.outputs
            if any(s is not None and s.root is root for s in results):
                written = True
                at = [i for i, s in enumerate(reads) if s.root is before.root]
                if at and (isinstance(item, Move) or not self._in_place(item, root, before, len(at))):
                    return False
        return written

    @staticmethod
    def _in_place(item: LoweredNode, root: Root, before: Storage, count: int) -> bool:
        return count == 1 and any(
            result < len(item.outputs)
            and operand < len(item.inputs)
            and (out := item.outputs[result]) is not None
            and out.root is root
            and item.inputs[operand] == before
            for result, operand in item.kernel.inplace
        )
