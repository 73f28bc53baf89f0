"""CBackend: an open device behind the C contract: its memory, its kernels at plan time, its segments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .._runtime import ffi, lib
from ..errors import DeviceError, OutOfMemoryError
from ..host.weak import WeakList
from ..ir.types import Array
from ..plugin.device import Precision, Refused
from .abi import CData, Tables, empty_held, member, text_of
from .compilations import Compilations, Compiled, key_of
from .host_memory import address_of, is_shown
from .prepared import PreparedKernel, PreparedKernels, algorithm_number, algorithms_of, prepacks_of
from .segment_tables import SegmentTables
from .sequence import CopyItem, NativeItems
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
        """Memory of the host that the device copies fast; None where it has none to offer.

        What a copy from there reads stays as it is until the device is waited for.
        """
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
        """Copies a contiguous host array into device memory; what lies in the array later isn't seen."""
        self._copy(lib.DF_COPY_TO_DEVICE, buffer.handle.base, offset, _address(array), 0, array.nbytes)
        if is_shown(array):  # the device may read it where it lies
            self.sync()

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
        several = [s for node in nodes for s in (*node.inputs, *node.outputs)]
        different = {id(s): s for s in several if s is not None}  # a result of one is read by others
        named = {key: s.operand() for key, s in different.items()}
        _, operands = tables.operands([None if s is None else named[id(s)] for s in several])
        at = 0
        for index, node in enumerate(nodes):
            kernels[index], own = node.kernel.code, described[index]
            inputs, outputs = len(node.inputs), len(node.outputs)
            tables.node(own, operands + at, inputs, outputs, node.node.attributes, threads)
            at += inputs + outputs
            self.introduce(own)
            own.flags = sum([1 << i for i, s in enumerate(node.inputs[:31]) if _is_constant(s, constants)])
        made = ffi.gc(ffi.new("df_prepared_set *"), lib.df_release_set)
        error = ffi.new("df_error *")
        self._check_prepared(lib.df_prepare_set(count, kernels, described, made, error), error, nodes)
        owner = PreparedKernels(made, tables, described)
        for index, name in enumerate(wanted):
            if name is not None:
                kernel, node, prepared = kernels + index, described + index, made.prepared + index
                node.algorithm = algorithm_number(prepared[0], name) + 1
                lib.df_release_kernels(1, kernel, prepared)
                prepacks = made.prepacks + index * lib.DF_MOST_PREPACKS
                status = lib.df_prepare_kernels(1, kernel, node, prepared, prepacks, error)
                self._check_prepared(status, error, nodes[index : index + 1])
        return [
            PreparedKernel(
                int(answer.workspace), tuple(prepacks_of(owner, i)), answer.state, owner, *algorithms_of(answer)
            )
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
                chosen = nodes[error.step]
                raise Refused((chosen.node.name,), f"{where}: {text_of(error.text)}", kernel=chosen.kernel.name)
            raise_error(status, error, where)

    def compile(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int) -> Compiled | None:
        """What can be made of a segment without addresses; see ``dataflow.plugin.device.Backend``."""
        if not self.compiles:
            return None
        key = key_of(segment, threads, self.precision)
        return self._compilations.get(key, lambda: self._compile(segment, arenas, threads, key))

    def _compile(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int, key: str) -> CData:
        tables = self.tables(segment, [(None, size, slot) for _, size, slot in arenas], threads)
        held, error, text = empty_held(), ffi.new("df_error *", {"step": -1}), ffi.new("char[]", key.encode())
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


class BoundCSegment:
    """A segment that the device has prepared; one native call runs it."""

    native = 1
    _compiled: Compiled | None = None

    def __init__(
        self,
        backend: CBackend,
        segment: Segment,
        arenas: Sequence[tuple[Any, int, int]],
        threads: int,
    ) -> None:
        self._backend, self._segment = backend, segment
        self._error = ffi.new("df_error *")
        self._tables = backend.tables(segment, arenas, threads)
        self._compiled = backend.compile(segment, arenas, threads)
        self._hold()
        backend.segments.add(self)

    def _hold(self) -> None:
        """Lets the device prepare what the tables say."""
        self._held = empty_held()
        native, compiled = self._tables.native, ffi.NULL
        if self._compiled is not None:
            self._key = ffi.new("char[]", self._compiled.key.encode())
            native.key, compiled = self._key, self._compiled.held
        status = lib.df_hold_segment(self._backend.held, compiled, native, self._held, self._error)
        self.check(status, self._error)

    @property
    def prepared(self) -> int:
        """The number that the device knows it by."""
        return int(ffi.cast("intptr_t", self._held.prepared))

    def elapsed(self) -> float | None:
        """Seconds that the last run took by the device's own clock; None where it has none. After a wait."""
        ask = member(self._backend.device, "elapsed")
        if ask is None:
            return None
        found, error = ffi.new("int64_t *"), ffi.new("df_error *")
        status = ask(self._backend.handle, self._held.prepared, found, error)
        raise_error(status, error, f"device {self._backend.name!r}: asking for the time of a run")
        return float(found[0]) * 1e-9

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        """Runs the steps; ``slots`` is a ``void *[]`` with an address per slot."""
        NativeItems([self]).run(slots, count, cancel, calls)

    def fill(self, entry: CData) -> None:
        """See ``NativeItem``."""
        entry.kind, entry.prepared = lib.DF_COMMAND_SEGMENT, self._held.prepared
        entry.device, entry.self = self._backend.device, self._backend.handle

    def check(self, status: int, error: CData) -> None:
        """See ``NativeItem``; names the node."""
        if status:
            raise_error(status, error, self.where(error.step))

    def where(self, step: int) -> str:
        """The node of a step, for messages; the device when there is none of that number."""
        known = 0 <= step < len(self._segment.steps)
        return self._segment.steps[step].node.describe() if known else f"device {self._backend.name!r}"


def _address(array: Array) -> CData:
    if not array.flags.c_contiguous:
        raise DeviceError("only contiguous arrays are copied to or from a device")
    return ffi.cast("void *", address_of(array))
