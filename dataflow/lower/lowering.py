"""Storage and memory for every value: views, contiguous copies, moves between memories."""

from __future__ import annotations

from collections.abc import Sequence

from ..device import HOST
from ..errors import ModelError
from ..graph import Graph, Initializer, Node, Value
from ..native import is_contiguous
from ..op import Op
from ..registry import Registry
from ..types import TensorType, contiguous_strides
from .lowered import Lowered, LoweredNode, Move, Root, Storage
from .select import Selection, select


def lower(graph: Graph, devices: Sequence[str], registry: Registry) -> Lowered:
    """``graph`` with devices, kernels and storage; its types must be bound.

    Args:
        graph: bound, without dead nodes.
        devices: ids in order of preference; the last resort last.
        registry: what plugins offer.

    Raises:
        ModelError: a type isn't bound, or no device takes a node.
    """
    for value in graph.values():
        if not value.type.is_bound:
            raise ModelError(f"value {value.name!r} has type {value.type}: bind its named dims first")
    return _Lowering(select(graph, devices, registry), devices, registry).run()


class _Lowering:
    def __init__(self, selection: Selection, devices: Sequence[str], registry: Registry) -> None:
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
        self.stored: dict[str, tuple[Storage, Initializer]] = {}
        self.moved: dict[tuple[Root, str], Storage] = {}
        self.copied: dict[tuple[Root, int, tuple[int, ...], tuple[int, ...]], Storage] = {}
        self.count = 0

    def run(self) -> Lowered:
        for value in self.graph.inputs:
            self.storage[value] = self.inputs[value.name] = self.root(value.name, value.type, HOST, "input")
        for node in self.graph.nodes:
            if node.op.view is not None:
                self.view(node)
            else:
                self.kernel(node)
        outputs = self.results()
        return Lowered(tuple(self.items), self.inputs, outputs, self.stored, self.refusals)

    def root(self, name: str, type_: TensorType, memory: str, kind: str) -> Storage:
        self.count += 1
        root = Root(self.count, name, type_, memory, kind)  # type: ignore[arg-type]
        return Storage(root, 0, contiguous_strides(type_.sizes), type_)

    def read(self, value: Value, memory: str) -> Storage:
        """The storage of a value that a device with ``memory`` is about to read."""
        if value in self.graph.initializers:
            return self.initializer(value, memory)
        return self.storage[value]

    def initializer(self, value: Value, memory: str) -> Storage:
        key = value.name if memory == HOST else f"{memory}/{value.name}"
        if key not in self.stored:
            self.stored[key] = (self.root(key, value.type, memory, "stored"), self.graph.initializers[value])
        return self.stored[key][0]

    def view(self, node: Node) -> None:
        value, result = node.inputs[0], node.outputs[0]
        assert value is not None and result is not None and node.op.view is not None
        source = self.storage.get(value)
        if source is None:  # an initializer stays where its reader wants it: views of it are on the host
            source = self.initializer(value, HOST)
        view = node.op.view(node, source.strides)
        if view is None:
            source = self.contiguous(source, node)
            view = node.op.view(node, source.strides)
        if view is None:
            raise ModelError(f"{node.describe()}: not even a contiguous input makes it a view")
        offset = source.offset + view.offset * value.type.dtype.nbytes(1)
        self.storage[result] = Storage(source.root, offset, view.strides, result.type)

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
        taken: set[Root] = set()
        marker = Node(self.copy, "result", (), (), {})
        for name, value in self.graph.outputs.items():
            storage = self.read(value, HOST)
            whole = storage.offset == 0 and storage.type.nbytes == storage.root.type.nbytes
            if storage.root.memory != HOST:
                storage = self.move(storage, HOST, self.host_device(), marker)
            straight = is_contiguous(storage.type.sizes, storage.strides)
            if storage.root.kind != "computed" or not whole or not straight or storage.root in taken:
                self.copied.pop((storage.root, storage.offset, storage.type.sizes, storage.strides), None)
                storage = self.contiguous(storage, marker, self.host_device())
                self.copied.pop((storage.root, storage.offset, storage.type.sizes, storage.strides), None)
            taken.add(storage.root)
            found[name] = storage
        return found
