"""CBackend: an open device behind the C contract: its memory, its kernels at plan time, its segments."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .._runtime import ffi, lib
from ..errors import DeviceError, OutOfMemoryError
from ..host.weak import WeakList
from ..ir.types import Array
from ..plugin.device import Precision, PrepackRequest, Refused
from .abi import CData, Tables, empty_held, member, text_of
from .bound_segment import BoundCSegment
from .compilations import Compilations, Compiled, key_of
from .host_memory import address_of
from .segment_tables import SegmentTables
from .sequence import CopyItem
from .status import raise_error

if TYPE_CHECKING:
    from ..ir.lowered import BaseTensor, LoweredNode, Storage
    from ..ir.plan import Segment

PRECISIONS: Mapping[str, int] = {
    "float32": lib.DF_EXACT,
    "bf16x6": lib.DF_BF16X6,
    "tf32": lib.DF_TF32,
    "bf16": lib.DF_BF16,
}


class CBuffer:
    """Memory of a C device; given back when nobody holds it any more.

    Attributes:
        handle: the device's ``df_buffer``.
        bytes: its size.
    """

    __slots__ = ("__weakref__", "_held", "bytes", "handle")

    def __init__(self, held: CData, bytes: int) -> None:
        self._held, self.handle, self.bytes = held, ffi.addressof(held, "buffer"), bytes

    @property
    def base(self) -> CData:
        """Address or handle."""
        return self.handle.base

    def free(self) -> None:
        """Gives the memory back, once."""
        lib.df_let_go(self._held)


class _PreparedKernels:
    """The prepared states of some kernels; released together."""

    def __init__(self, set: CData, tables: Tables, nodes: CData) -> None:
        self.set, self.tables, self.nodes = set, tables, nodes


@dataclass(frozen=True, slots=True, eq=False)
class PreparedKernel:
    """What a kernel answered at plan time."""

    workspace: int
    prepacks: tuple[PrepackRequest, ...]
    state: CData
    owner: _PreparedKernels | None
    algorithms: tuple[str, ...] = ()
    algorithm: str = ""


def _prepacks(owner: _PreparedKernels, index: int) -> Iterator[PrepackRequest]:
    """What kernel ``index`` asked for; each request keeps the kernel's state alive."""
    answer = owner.set.prepared[index]
    for number in range(answer.n_prepacks):
        prepack = answer.prepacks[number]

        def fill(source: CData, prepacked: CData, number: int = number) -> None:
            answer = owner.set.prepared[index]
            answer.prepacks[number].prepack(owner.nodes + index, answer.state, source, prepacked)

        replaces = bool(answer.replaced >> prepack.input & 1)
        yield PrepackRequest(int(prepack.input), int(prepack.kind), int(prepack.bytes), fill, replaces)


def _number(answer: CData, name: str) -> int:
    """Of the algorithm ``name``, which the kernel has."""
    return next(i for i in range(answer.n_algorithms) if _name(answer.algorithms[i]) == name)


def _algorithms(answer: CData) -> tuple[tuple[str, ...], str]:
    """Those that are possible, and the one that will be used."""
    if not answer.n_algorithms:
        return (), ""
    possible = [i for i in range(answer.n_algorithms) if answer.possible >> i & 1]
    return tuple(_name(answer.algorithms[i]) for i in possible), _name(answer.algorithms[answer.algorithm])


@functools.cache
def _name(text: CData) -> str:
    """A name in a plugin's table, which stays as long as the process."""
    return text_of(text)


def _is_constant(storage: Storage | None, constants: Collection[BaseTensor]) -> bool:
    return (
        storage is not None and storage.base in constants and not storage.iteration_stride and not storage.buffer_stride
    )


class CBackend:
    """An open C device."""

    def __init__(self, device: CData, name: str, values: CData, precision: Precision) -> None:
        self.device = device
        self.precision = PRECISIONS[precision]
        self.name = name
        self.held, error = empty_held(), ffi.new("df_error *")
        raise_error(lib.df_hold_device(device, values, self.held, error), error, f"device {name!r}")
        self.handle = self.held.self
        self.flags = int(device.flags) & lib.DF_HANDLES  # of its segments
        self.segments: WeakList[BoundCSegment] = WeakList()  # for messages
        self.compiles = member(device, "compile") is not None
        self._compilations = Compilations()

    def memory(self) -> tuple[int, int] | None:
        """Bytes that can still be allocated and bytes in all; None where the device doesn't tell."""
        ask = member(self.device, "memory")
        if ask is None:
            return None
        available, total, error = ffi.new("int64_t *"), ffi.new("int64_t *"), ffi.new("df_error *")
        raise_error(ask(self.handle, available, total, error), error, f"device {self.name!r}")
        return int(available[0]), int(total[0])

    def alloc(self, bytes: int) -> CBuffer:
        """Memory for an arena; raises OutOfMemoryError."""
        largest = member(self.device, "largest_buffer") or 0
        if 0 < largest < bytes:
            raise OutOfMemoryError(
                f"device {self.name!r}: its largest buffer has {largest} bytes, {bytes} are wanted; use a smaller batch"
            )
        held, error = empty_held(), ffi.new("df_error *")
        status = lib.df_hold_memory(self.held, bytes, held, error)
        raise_error(status, error, f"device {self.name!r}: allocating {bytes} bytes")
        return CBuffer(held, bytes)

    def alloc_staging(self, bytes: int) -> CBuffer | None:
        """Memory of the host that the device copies fast; None where it has none to offer."""
        if member(self.device, "alloc_staging") is None:
            return None
        held, error = empty_held(), ffi.new("df_error *")
        status = lib.df_hold_staging(self.held, bytes, held, error)
        raise_error(status, error, f"device {self.name!r}: allocating {bytes} bytes that it copies fast")
        return CBuffer(held, bytes)

    def free(self, buffer: Any) -> None:
        """Gives memory back."""
        buffer.free()

    def write(self, buffer: Any, offset: int, array: Array) -> None:
        """Copies a contiguous host array into device memory."""
        self._copy(lib.DF_COPY_TO_DEVICE, buffer.handle.base, offset, _address(array), 0, array.nbytes)

    def read(self, array: Array, buffer: Any, offset: int) -> None:
        """Copies device memory into a contiguous host array."""
        self._copy(lib.DF_COPY_TO_HOST, _address(array), 0, buffer.handle.base, offset, array.nbytes)
        self.sync()

    def receive(self, buffer: Any, offset: int, source: Any, source_offset: int, bytes: int) -> None:
        """Copies from the memory of another device of the same name."""
        self._copy(lib.DF_COPY_WITHIN, buffer.handle.base, offset, source.handle.base, source_offset, bytes)

    def _copy(self, direction: int, to: CData, to_offset: int, source: CData, from_offset: int, size: int) -> None:
        copy, error = ffi.new("df_copy *"), ffi.new("df_error *")
        copy.struct_size, copy.direction = ffi.sizeof("df_copy"), direction
        copy.to, copy.to_offset = to, to_offset
        setattr(copy, "from", source)
        copy.from_offset, copy.bytes = from_offset, size
        raise_error(self.device.copy(self.handle, copy, error), error, f"device {self.name!r}: copy")

    def sync(self) -> None:
        """Waits for all that was started."""
        if self.device.sync != ffi.NULL:
            error = ffi.new("df_error *")
            self.check(self.device.sync(self.handle, error), error)

    native = 0

    def fill(self, entry: CData) -> None:
        """Fills a ``df_command`` that waits for the device."""
        entry.kind, entry.device, entry.self = lib.DF_COMMAND_WAIT, self.device, self.handle

    def check(self, status: int, error: CData) -> None:
        """Raises what a status of a wait means; names the node that failed."""
        if status:
            failed = member(self.device, "failed")
            prepared = 0 if failed is None else int(ffi.cast("intptr_t", failed(self.handle)))
            segment = next((s for s in self.segments.alive() if s.prepared == prepared), None)
            raise_error(status, error, f"device {self.name!r}" if segment is None else segment.where(error.step))

    def copying(self, direction: int, buffer: Any, offset: int, host: tuple[CData | int, int], size: int) -> CopyItem:
        """A copy between the device and the host as an item.

        Args:
            direction: ``lib.DF_COPY_TO_DEVICE`` or ``lib.DF_COPY_TO_HOST``.
            buffer: the device's.
            offset: in it.
            host: address or number of a slot, and an offset in it.
            size: bytes.
        """
        return CopyItem(
            self.device, self.handle, direction, (buffer.base, offset), host, size, f"device {self.name!r}: copy"
        )

    def prepare(
        self,
        nodes: Sequence[LoweredNode],
        threads: int,
        constants: Collection[BaseTensor] = (),
        algorithms: Mapping[int, str] = MappingProxyType({}),
    ) -> list[PreparedKernel]:
        """Workspace, prepacks and state for each node, chosen by its kernel; see ``dataflow.plugin.device.Backend``."""
        plain = PreparedKernel(0, (), ffi.NULL, None)
        prepares = {kernel: kernel.code.prepare != ffi.NULL for kernel in {n.kernel for n in nodes}}
        chosen = [i for i, n in enumerate(nodes) if prepares[n.kernel]]
        found = [plain] * len(nodes)
        if chosen:
            wanted = [algorithms.get(i) for i in chosen]
            answers = self._prepare([nodes[i] for i in chosen], threads, constants, wanted)
            for index, answer in zip(chosen, answers, strict=True):
                found[index] = answer
        return found

    def _prepare(
        self,
        nodes: Sequence[LoweredNode],
        threads: int,
        constants: Collection[BaseTensor],
        wanted: Sequence[str | None],
    ) -> list[PreparedKernel]:
        count = len(nodes)
        kernels = ffi.new("df_kernel *[]", count)
        described = ffi.new("df_node[]", count)
        tables = Tables()
        for index, node in enumerate(nodes):
            kernels[index] = node.kernel.code
            inputs = [None if s is None else s.operand() for s in node.inputs]
            outputs = [None if s is None else s.operand() for s in node.outputs]
            tables.node(described[index], inputs, outputs, node.node.attributes, threads)
            self.introduce(described[index])
            described[index].flags = sum(1 << i for i, s in enumerate(node.inputs[:31]) if _is_constant(s, constants))
        made = ffi.gc(ffi.new("df_prepared_set *"), lib.df_release_set)
        error = ffi.new("df_error *")
        self._check_prepared(lib.df_prepare_set(count, kernels, described, made, error), error, nodes)
        owner = _PreparedKernels(made, tables, described)
        for index, name in enumerate(wanted):
            if name is not None:
                kernel, node, prepared = kernels + index, described + index, made.prepared + index
                node.algorithm = _number(prepared[0], name) + 1
                lib.df_release_kernels(1, kernel, prepared)
                prepacks = made.prepacks + index * lib.DF_MOST_PREPACKS
                status = lib.df_prepare_kernels(1, kernel, node, prepared, prepacks, error)
                self._check_prepared(status, error, nodes[index : index + 1])
        return [
            PreparedKernel(int(answer.workspace), tuple(_prepacks(owner, i)), answer.state, owner, *_algorithms(answer))
            for i, answer in enumerate(made.prepared[0:count])
        ]

    def introduce(self, node: CData) -> None:
        """Fills what a ``df_node`` says of the device that will run it."""
        node.precision, node.device = self.precision, self.handle

    def _check_prepared(self, status: int, error: CData, nodes: Sequence[LoweredNode]) -> None:
        if status:
            named = 0 <= error.step < len(nodes)
            where = nodes[error.step].node.describe() if named else f"device {self.name!r}"
            if status == lib.DF_UNSUPPORTED and named:
                raise Refused((nodes[error.step].node.name,), f"{where}: {text_of(error.text)}")
            raise_error(status, error, where)

    def compile(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int) -> Compiled | None:
        """What can be made of a segment without addresses; see ``dataflow.plugin.device.Backend``."""
        if not self.compiles:
            return None
        key = key_of(segment, threads, self.precision)
        return self._compilations.get(key, lambda: self._compile(segment, arenas, threads, key))

    def _compile(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int, key: str) -> CData:
        tables = self.tables(segment, [(None, size, slot) for _, size, slot in arenas], threads)
        held, error, text = empty_held(), ffi.new("df_error *"), ffi.new("char[]", key.encode())
        tables.native.key = text
        status = lib.df_hold_compiled(self.held, tables.native, held, error)
        if status:
            steps = segment.steps[error.step : error.step + 1] if error.step >= 0 else segment.steps
            where = steps[0].node.describe() if len(steps) == 1 else f"device {self.name!r}"
            if status == lib.DF_UNSUPPORTED:
                raise Refused(tuple(step.node.name for step in steps), f"{where}: {text_of(error.text)}")
            raise_error(status, error, where)
        return held

    def tables(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int) -> SegmentTables:
        """The segment as tables of the C contract."""
        return SegmentTables(segment, arenas, threads, self.flags, self.precision)

    def bind(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int) -> BoundCSegment:
        """The segment with addresses.

        Args:
            segment: steps whose operands have places.
            arenas: per arena of the plan: buffer or None, bytes, number of the slot or -1.
            threads: the session's.
        """
        return BoundCSegment(self, segment, arenas, threads)


def _address(array: Array) -> CData:
    if not array.flags.c_contiguous:
        raise DeviceError("only contiguous arrays are copied to or from a device")
    return ffi.cast("void *", address_of(array))
