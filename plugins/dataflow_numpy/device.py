"""The device ``numpy``: works on the host's memory, one Python call per node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dataflow.cdevice.host_memory import array_at
from dataflow.errors import Cancelled, InputError
from dataflow.host.limits import limited
from dataflow.ir.kernel import HOST, Kernel, OperandSpec
from dataflow.ir.lowered import LoweredNode, Root
from dataflow.ir.operand import Operand
from dataflow.ir.plan import Segment
from dataflow.plugin.device import PackRequest, Precision, Role

from .interpreter import call
from .kernels import KERNELS

_ANY = OperandSpec(None, strided=True, optional=True, repeated=True)


class NumpyDevice:
    """See ``dataflow.plugin.device.Device``."""

    name = "numpy"
    ordinal = 0
    memory = HOST
    alignment = 64
    asynchronous = False
    bodies = False  # its kernel of a loop runs the body itself
    peers: str | None = None
    unavailable: str | None = None
    role: Role = "reference"

    def open(self, options: Mapping[str, Any], precision: Precision = "float32") -> NumpyBackend:
        """The open device.

        Raises:
            InputError: an option; it has none.
        """
        if options:
            raise InputError(f"device 'numpy' has no option {next(iter(options))!r}")
        return NumpyBackend()

    def kernels(self) -> Sequence[Kernel]:
        """A record per op; each takes everything."""
        return [Kernel(op, f"numpy {op}", (_ANY,), (_ANY,), code) for op, code in KERNELS.items()]


@dataclass(frozen=True, slots=True)
class Nothing:
    """What the reference answers at plan time: it needs no workspace."""

    workspace: int = 0
    packs: tuple[PackRequest, ...] = ()
    algorithms: tuple[str, ...] = ()
    algorithm: str = ""


class NumpyBackend:
    """See ``dataflow.plugin.device.Backend``; the host's memory is the core's own."""

    def alloc(self, bytes: int) -> Any:
        """Never called: the core allocates on the host."""
        raise NotImplementedError

    def free(self, buffer: Any) -> None:
        """Never called."""
        raise NotImplementedError

    def write(self, buffer: Any, offset: int, array: Any) -> None:
        """Never called."""
        raise NotImplementedError

    def read(self, array: Any, buffer: Any, offset: int) -> None:
        """Never called."""
        raise NotImplementedError

    def receive(self, buffer: Any, offset: int, source: Any, source_offset: int, bytes: int) -> None:
        """Never called."""
        raise NotImplementedError

    def sync(self) -> None:
        """Nothing is ever pending."""

    def memory(self) -> None:
        """Not known: the host's memory is the core's own."""

    def prepare(
        self,
        nodes: Sequence[LoweredNode],
        threads: int,
        constants: Collection[Root] = (),
        algorithms: Mapping[int, str] = MappingProxyType({}),
    ) -> list[Nothing]:
        """Nothing for each node."""
        return [Nothing()] * len(nodes)

    def bind(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int) -> BoundPython:
        """The steps with arrays where the memory stays, and places where it is given per run."""
        return BoundPython(segment, arenas)


class BoundPython:
    """A segment whose steps are calls of Python functions."""

    native = 0

    def __init__(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]]) -> None:
        self._arenas = arenas
        self._steps = [
            (step, [self._fixed(o) for o in step.inputs], [self._fixed(o) for o in step.outputs])
            for step in segment.steps
        ]

    def _fixed(self, operand: Operand | None) -> Any:
        """An array, or the operand itself when it lies in a slot, or None."""
        if operand is None:
            return None
        buffer, size, slot = self._arenas[operand.arena]
        return operand if slot >= 0 else array_at(buffer.base, size, operand)

    def run(self, slots: Any, count: int, cancel: Any, calls: Any) -> None:
        """Runs the steps.

        Raises:
            Cancelled: the cancel word was set.
            InputError: data that a kernel refuses; names the node.
        """
        for step, inputs, outputs in self._steps:
            if cancel and cancel[0]:
                raise Cancelled(f"{step.node.describe()}: the run was cancelled before it")
            assert step.kernel is not None
            calls[0] += 1
            read = [self._array(x, slots) for x in inputs]
            with limited(None, "the run", cancel or None):  # loops look at it too
                results = call(step.kernel.code, step.node, read)
            for target, result in zip(outputs, results, strict=False):
                if target is not None:
                    self._array(target, slots)[...] = result

    def _array(self, place: Any, slots: Any) -> Any:
        if not isinstance(place, Operand):
            return place
        _, size, slot = self._arenas[place.arena]
        return array_at(slots[slot], size, place)
