"""Where values lie while a graph is lowered: base tensors, contiguous copies, transfers between memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xxhash

from ..errors import ModelError
from ..ir.graph import Initializer, Node
from ..ir.kernel import HOST
from ..ir.lowered import BaseTensor, LoweredItem, LoweredNode, Move, Storage, Stored
from ..ir.operand import is_contiguous
from ..ir.sized_data import SizedData
from ..ir.tracing import Keys
from ..ir.types import DType, TensorType, contiguous_strides
from ..ir.value import Value
from ..plugin.registry import Registry
from .select import Selection

FRACTION = 8  # of a base tensor of LARGE bytes: a view that is less is copied before it is transferred
LARGE = 64 << 10
SIZED = "sizes"  # ends what stands for the digest of data that depends on traced sizes


@dataclass(slots=True)
class _Numbers:
    """Of base tensors; a graph and the bodies in it share them."""

    last: int = 0


class StorageTable:
    """The items lowered so far, and the storage of each value.

    Attributes:
        graph, choices: the nodes and their kernels.
        devices: in order of preference.
        owners: see ``lower``.
        items: in order; ``first`` stand before them.
        storage: of each value that is no initializer.
        device_of: the device that computed a base tensor.
        stored, data: storage and data of initializers that were read.
        destination: storage that a value must be computed in.
        grown: storage of concats of which only what is added is written.
        first_readers: the first node that reads each value.
        starting: what is lowered is of the first program of the graph.
        memory_when_unread: where a view of stored data lies that no node reads; of a body the memory of its device.
    """

    def __init__(
        self, selection: Selection, devices: Sequence[str], registry: Registry, owners: Mapping[str, str]
    ) -> None:
        self.graph, self.choices = selection.graph, selection.choices
        self.devices, self.registry, self.owners = devices, registry, owners
        self.copy = registry.ops["copy"]
        self.items: list[LoweredItem] = []
        self.first: list[LoweredItem] = []
        self.storage: dict[Value, Storage] = {}
        self.device_of: dict[BaseTensor, str] = {}
        self.stored: dict[str, Stored] = {}
        self.data: dict[str, Initializer] = {}
        self.destination: dict[Value, Storage] = {}
        self.grown: Mapping[Node, Storage] = {}
        self.first_readers = {v: node for node in reversed(self.graph.nodes) for v in node.inputs if v is not None}
        self.starting = True
        self.memory_when_unread = HOST
        self._prefix = ""  # of the names of a body's initializers
        self._transferred: dict[tuple[BaseTensor, str], Storage] = {}
        self._copied: dict[Any, Storage] = {}  # by the elements of the source
        self._keys = Keys()
        self._numbers = _Numbers()
        self._sized: dict[Value, int] = {}  # numbers of constants that depend on traced sizes

    def new_base(
        self, name: str, type_: TensorType, memory: str, kind: Literal["input", "stored", "computed"]
    ) -> Storage:
        """New bytes for a value."""
        self._numbers.last += 1
        return Storage(
            BaseTensor(self._numbers.last, name, type_, memory, kind), 0, contiguous_strides(type_.sizes), type_
        )

    def memory_of(self, device: str) -> str:
        """The memory that a device addresses."""
        return self.registry.devices[device].memory

    def read(self, value: Value, memory: str) -> Storage:
        """The storage of a value that a device with ``memory`` is about to read."""
        if value in self.graph.initializers:
            return self.initializer(value, self.owners.get(value.name, memory))
        return self.storage[value]

    def initializer(self, value: Value, memory: str) -> Storage:
        """The storage of stored data in a memory."""
        data = self.graph.initializers[value]
        name = self._prefix + value.name
        if data.role == "constant" and value.name not in self.owners:
            # Programs share stored tensors by name, and each makes constants of its own: the data tells them apart.
            sized = isinstance(data, SizedData)  # whose digest is known when its sizes are
            number = self._sized.setdefault(value, len(self._sized)) if sized else 0
            name += f"#{number}{SIZED}" if sized else "#" + digest(value.type.dtype, data)
        key = name if memory == HOST else f"{memory}/{name}"
        if key not in self.stored:
            storage = self.new_base(key, value.type, memory, "stored")
            self.stored[key], self.data[key] = Stored(name, storage, data.role == "passing"), data
        return self.stored[key].storage

    def transfer_in(self, value: Value, device: str, reader: Node) -> Storage:
        """The storage of a value in the memory of ``device``."""
        memory = self.memory_of(device)
        storage = self.read(value, memory)
        return storage if storage.base.memory == memory else self.transfer(storage, memory, device, reader)

    def inside(self, node: Node, index: int = 0) -> StorageTable:
        """The table of a body, which shares what is stored."""
        choice = self.choices[node]
        inner = StorageTable(choice.bodies[index], (choice.device,), self.registry, {})
        inner.memory_when_unread = self.memory_of(choice.device)
        inner._prefix = self._prefix + (f"{node.name}/{index}/" if index else f"{node.name}/")
        inner.stored, inner.data, inner._numbers, inner._sized = self.stored, self.data, self._numbers, self._sized
        return inner

    def copy_into(self, source: Storage, target: Storage, reader: Node, device: str) -> None:
        """A step that copies ``source``, of any strides, into ``target``; a device has a kernel that writes there."""
        name = f"{target.base.name}:copy{len(self.items)}"
        value, result = Value(source.base.name, source.type), Value(target.base.name, target.type)
        node = Node(self.copy, name, (value,), (result,), {}, (), f"copy for {reader.name}")
        gaps = not is_contiguous(target.type.sizes, target.strides)
        for candidate in (device, *self.devices):
            if self.memory_of(candidate) != source.base.memory:
                continue
            for kernel in self.registry.kernels[candidate].get("copy", ()):
                strided = kernel.input_spec(0).strided and (kernel.output_spec(0).strided or not gaps)
                if strided and kernel.refuses(node) is None:
                    self.items.append(LoweredNode(node, candidate, kernel, (source,), (target,)))
                    return
        raise ModelError(
            f"{reader.describe()}: no device on memory {source.base.memory!r} has a copy kernel for "
            f"{source.type} with any strides; every device needs one"
        )

    def contiguous(self, storage: Storage, reader: Node, device: str | None = None) -> Storage:
        """A contiguous copy, made on the device where the source lies; one per source."""
        key = self._keys.of(*_elements_of(storage))
        if key in self._copied:
            return self._copied[key]
        device = device or self.device_for(storage.base)
        result = self.new_base(
            f"{storage.base.name}:contiguous{self._numbers.last}", storage.type, storage.base.memory, "computed"
        )
        self.copy_into(storage, result, reader, device)
        self.device_of[result.base] = device
        self._copied[key] = result
        return result

    def fresh(self, storage: Storage, reader: Node, device: str) -> Storage:
        """A copy that nobody else gets."""
        key = self._keys.of(*_elements_of(storage))
        known = self._copied.pop(key, None)
        made = self.contiguous(storage, reader, device)
        del self._copied[key]
        if known is not None:
            self._copied[key] = known
        return made

    def transfer(self, storage: Storage, memory: str, device: str, reader: Node) -> Storage:
        """The value in another memory; the base tensor is transferred, once per memory, and views stay views.

        Of a view that is a small fraction of a computed base tensor, as the last rows of a result, a copy is.
        """
        if (storage.base, memory) not in self._transferred and _is_small_view(storage):
            storage = self.contiguous(storage, reader)
        if HOST not in (storage.base.memory, memory) and not self.are_peers(storage.base.memory, memory):
            storage = self.transfer(storage, HOST, self.host_device(), reader)
        key = (storage.base, memory)
        if key not in self._transferred:
            target = self.new_base(f"{storage.base.name}:{memory}", storage.base.type, memory, "computed")
            source = Storage(storage.base, 0, contiguous_strides(storage.base.type.sizes), storage.base.type)
            origin = self.device_for(storage.base)
            # What is there from the start moves at the start: work on a device is not interrupted for it. What only
            # later programs read of a graph of several may not be there yet.
            items = self.first if storage.base.kind == "input" and self.starting else self.items
            items.append(Move(source, target, origin, device, storage.base.name))
            self.device_of[target.base] = device
            self._transferred[key] = target
        there = self._transferred[key]
        return Storage(there.base, storage.offset, storage.strides, storage.type)

    def are_peers(self, *memories: str) -> bool:
        """Whether values move between memories without the host."""
        peers = {
            d.peers for d in map(self.registry.devices.get, self.devices) if d is not None and d.memory in memories
        }
        return len(peers) == 1 and None not in peers

    def device_for(self, base: BaseTensor) -> str:
        """The device that computed a base tensor, or the first that addresses it."""
        found = self.device_of.get(base)
        return found or next(d for d in self.devices if self.memory_of(d) == base.memory)

    def host_device(self) -> str:
        """The first device that works on the host's memory."""
        return self.device_in(HOST)

    def device_in(self, memory: str) -> str:
        """The first device that works on a memory."""
        return next(d for d in self.devices if self.memory_of(d) == memory)


def _is_small_view(storage: Storage) -> bool:
    """Whether copying these elements is less work than transferring the base tensor."""
    size = storage.base.type.nbytes
    return storage.base.kind == "computed" and size >= LARGE and size >= FRACTION * storage.type.nbytes


def _elements_of(storage: Storage) -> tuple[Any, ...]:
    """What tells the elements of one storage from those of another."""
    moving = storage.iteration_stride, storage.buffer_stride
    return storage.base, storage.offset, storage.type.sizes, storage.strides, *moving


def digest(dtype: DType, data: Initializer) -> str:
    """A few characters that tell data, type and shape from others."""
    found = xxhash.xxh3_128(str(TensorType(dtype, data.array.shape)).encode())
    for array in (data.array, data.factor):
        if array is not None:
            plain = np.ascontiguousarray(array)
            found.update(plain.tobytes() if plain.dtype == object else plain.reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:12]
