"""Devices written in Python: they work on the host's memory, and run one function per node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ..cdevice.host_memory import array_at
from ..errors import Cancelled, DataflowError, InputError, PluginError, failure
from ..host.limits import limited
from ..host.strings import numbers_of, strings_of
from ..ir.graph import Node
from ..ir.kernel import Kernel
from ..ir.lowered import BaseTensor, LoweredNode
from ..ir.op import Attribute
from ..ir.operand import Operand
from ..ir.plan import Segment, Step
from ..ir.types import Array
from ..plugin.device import Backend, BoundSegment, Device, Precision, PrepackRequest


class PythonDevice(Device):
    """A device whose kernels are Python functions.

    A device derives from this, sets ``name`` and has ``kernels``. The ``code`` of a kernel is called as
    ``code(attributes, *inputs)``, with arrays of any strides that it must not write, None for absent operands, and
    ``bodies=`` where the op has some. It returns an array, or a tuple with one per output, which are copied.
    """

    def open(self, options: Mapping[str, Any], precision: Precision = "float32") -> Backend:
        """The open device.

        Raises:
            InputError: an option; it has none.
        """
        if options:
            raise InputError(f"device {self.name!r} has no option {next(iter(options))!r}")
        return PythonBackend()

    def misfit(self, kernel: Kernel) -> str | None:
        """Why the device can't run a kernel that somebody offers for it, or None."""
        return None if callable(kernel.code) else f"is {kernel.code!r}; a device in Python runs functions"


@dataclass(frozen=True, slots=True)
class NothingPrepared:
    """The answer at plan time for a function: it needs no workspace."""

    workspace: int = 0
    prepacks: tuple[PrepackRequest, ...] = ()
    algorithms: tuple[str, ...] = ()
    algorithm: str = ""


class PythonBackend(Backend):
    """An open PythonDevice. The core allocates on the host and copies there itself."""

    def sync(self) -> None:
        """Does nothing: functions have run when they return."""

    def memory(self) -> None:
        """Not known: the host's memory is the core's own."""

    def prepare(
        self,
        nodes: Sequence[LoweredNode],
        threads: int,
        constants: Collection[BaseTensor] = (),
        algorithms: Mapping[int, str] = MappingProxyType({}),
    ) -> Sequence[NothingPrepared]:
        """No workspace for any node."""
        return [NothingPrepared()] * len(nodes)

    def bind(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]], threads: int) -> BoundSegment:
        """The steps with arrays where memory stays, and with operands where it is given per run."""
        return BoundCalls(segment, arenas)


class BoundCalls:
    """A segment whose steps are calls of Python functions."""

    native = 0

    def __init__(self, segment: Segment, arenas: Sequence[tuple[Any, int, int]]) -> None:
        self._arenas = arenas
        self._steps = [
            (step, _code_of(step), [*map(_read_only, map(self._fixed, step.inputs))], [*map(self._fixed, step.outputs)])
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
            PluginError: a kernel gave another number of results, or one of another shape or kind, or would leave the
                process.
        """
        for step, code, inputs, outputs in self._steps:
            if cancel and cancel[0]:
                raise Cancelled(f"{step.node.describe()}: the run was cancelled before it")
            calls[0] += 1
            read = [_read_only(self._array(x, slots)) if isinstance(x, Operand) else x for x in inputs]
            with limited(None, "the run", cancel or None):  # loops look at it too
                results = call_kernel(code, step.node, read)
            for target, result in zip(outputs, results, strict=False):
                if target is not None:
                    _put_result(step, self._array(target, slots), result)

    def _array(self, operand: Any, slots: Any) -> Any:
        if not isinstance(operand, Operand):
            return operand
        _, size, slot = self._arenas[operand.arena]
        return array_at(slots[slot], size, operand)


def _read_only(operand: Any) -> Any:
    """An array that a kernel can't write, as it mustn't: it may be the user's."""
    if isinstance(operand, np.ndarray):
        operand.flags.writeable = False
    return operand


def _put_result(step: Step, target: Any, result: Any) -> None:
    """Copies a result to where it belongs; raises PluginError where it has another shape, or no numbers of its kind."""
    try:
        shape = np.shape(result)
        if shape != target.shape:
            gave = "None" if result is None else f"a result of shape {list(shape)}"
            expected = str(list(target.shape))
        elif isinstance(result, np.ma.MaskedArray):  # whose mask would be lost
            gave, expected = "a masked array", "one without a mask"
        elif (found := np.asarray(result).dtype) != target.dtype and _loses(found, target.dtype):
            gave, expected = f"a result of {found}", str(target.dtype)
        else:
            target[...] = result
            return
    except (TypeError, ValueError) as error:  # lists of different lengths, dates
        gave, expected = f"what is no array ({error})", f"{target.dtype}{list(target.shape)}"
    assert step.kernel is not None
    raise PluginError(f"{step.node.describe()}: kernel {step.kernel.name!r} gave {gave}; expected {expected}")


def _loses(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether a cast would lose more than digits: imaginary parts, fractions, or what a text says."""
    kinds = {"c": "fiub", "f": "iub", "U": "cfiub", "S": "cfiub", "O": "cfiub"}  # of objects None would be nan
    return wanted.kind in kinds.get(given.kind, "")


def _code_of(step: Step) -> Callable[..., Any]:
    """The function of a step; where it reads or writes strings, one that takes and gives their numbers."""
    assert step.kernel is not None
    code: Callable[..., Any] = step.kernel.code
    read = [o is not None and o.type.dtype.kind == "s" for o in step.inputs]
    written = [o is not None and o.type.dtype.kind == "s" for o in step.outputs]
    if not any(read) and not any(written):
        return code

    def with_numbers(attributes: Mapping[str, Attribute], *inputs: Any, **bodies: Any) -> tuple[Any, ...]:
        given = [strings_of(x) if strings else x for x, strings in zip(inputs, read, strict=True)]
        found = code(attributes, *given, **bodies)
        results = found if isinstance(found, tuple) else (found,)
        # NumPy's functions give a str for an array without axes
        return tuple(numbers_of(np.asarray(y, object)) if s else y for y, s in zip(results, written, strict=False))

    return with_numbers


def call_kernel(
    code: Callable[..., Any],
    node: Node,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Attribute] | None = None,
) -> tuple[Any, ...]:
    """The results of a node by a function.

    Args:
        code: the function.
        node: which attributes and bodies to give it.
        inputs: one per operand.
        attributes: instead of the node's.

    Raises:
        DataflowError: the function refuses its data; names the node.
        PluginError: it gave another number of results than the node has, or would leave the process.
    """
    bodies = {"bodies": node.bodies} if node.op.bodies else {}
    try:
        with np.errstate(all="ignore"):
            found = code(MappingProxyType(node.attributes if attributes is None else attributes), *inputs, **bodies)
    except SystemExit as error:  # the process is the user's
        raise failure(f"{node.describe()}: a kernel of it", error) from error
    except Exception as error:
        if isinstance(error, DataflowError) and type(error).__init__ is DataflowError.__init__:  # of a text
            raise type(error)(f"{node.describe()}: {error}") from None
        error.add_note(f"in a kernel of {node.describe()}")
        raise
    results = found if isinstance(found, tuple) else (found,)
    if len(results) == len(node.outputs):
        return results
    most = max(len(node.outputs), 0 if node.op.outputs[-1].endswith("*") else len(node.op.outputs))
    if len(results) > most:
        raise PluginError(f"{node.describe()}: a kernel of it gave {len(results)} results; expected {most}")
    needed = max((number for number, value in enumerate(node.outputs, 1) if value is not None), default=0)
    if len(results) < needed:
        raise PluginError(
            f"{node.describe()}: a kernel of it gave {len(results)} of {needed} results; expected a tuple of all"
        )
    return results
