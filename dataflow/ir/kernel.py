"""What a kernel is to the core: the op, the operands that it takes, and its code, which only a device can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import PluginError, blamed
from .declaration import unpaired
from .graph import Node
from .substitution import answered
from .types import DTYPES, DType
from .value import Value

HOST = "host"
"""Name of the memory that the CPU addresses; devices that share it need no copies between them."""

_BY_SHORT = {d.short: d for d in DTYPES}


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """What a kernel takes at one operand.

    Attributes:
        dtypes: those it takes; None: every type that fits in an arena.
        strided: any strides, of a result such that no two elements lie in one place; otherwise contiguous.
        optional: may be absent.
        repeated: the last operand, any number of times.
        strings: strings too where ``dtypes`` is None; a function then gets arrays of Python strings.
    """

    dtypes: frozenset[DType] | None = None
    strided: bool = False
    optional: bool = False
    repeated: bool = False
    strings: bool = False

    def refuses(self, value: Value | None) -> str | None:
        """Why ``value`` can't stand here, or None."""
        if value is None:
            return None if self.optional else "an operand is absent"
        if self.dtypes is not None and value.type.dtype not in self.dtypes:
            return f"takes {'|'.join(sorted(d.short for d in self.dtypes))}, not {value.type.dtype.short}"
        if value.type.dtype.kind == "s" and not self.strings:
            return "takes no strings"
        return None


def parse_operands(text: str) -> tuple[tuple[OperandSpec, ...], tuple[OperandSpec, ...]]:
    """Input and output specs from a record's text, e.g. ``"~f32,i32|i64,f32?->f32"`` (see dataflow.h).

    Raises:
        PluginError: the text has not that form.
    """
    sides = text.replace(" ", "").split("->")
    if len(sides) != 2:
        raise PluginError(f"kernel operands {text!r}: expected 'inputs->outputs'")
    return _parse_side(sides[0], text), _parse_side(sides[1], text)


def _parse_side(side: str, text: str) -> tuple[OperandSpec, ...]:
    specs = []
    for item in filter(None, side.split(",")):
        names = item.strip("~?*")
        if names == "any":
            dtypes = None
        else:
            unknown = [n for n in names.split("|") if n not in _BY_SHORT]
            if unknown:
                raise PluginError(f"kernel operands {text!r}: unknown dtype {unknown[0]!r}")
            dtypes = frozenset(_BY_SHORT[n] for n in names.split("|"))
        specs.append(OperandSpec(dtypes, item.startswith("~"), "?" in item, "*" in item))
    return tuple(specs)


def has_work(node: Node) -> bool:
    """Whether a result of the node has elements; one without is planned, but not run."""
    return any(value is not None and 0 not in value.type.shape for value in node.outputs)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Capability and code in one record.

    Attributes:
        op: name of the op or pattern.
        name: for messages.
        inputs, outputs: what each operand may be.
        inplace: pairs (output, input) that may share memory when shape and strides agree.
        priority: the highest accepted one wins; of two plugins' with one priority that of the earlier plugin, and a tie
            within a plugin is an error.
        accepts: a reason why it can't take a node, or None.
        code: what the device runs: a C record, or a Python callable.
        capturable: may run inside a graph capture.
        plugin: who offers it; the registry enters it.
    """

    op: str
    name: str
    inputs: tuple[OperandSpec, ...]
    outputs: tuple[OperandSpec, ...]
    code: Any
    inplace: tuple[tuple[int, int], ...] = ()
    priority: int = 0
    accepts: Callable[[Node], str | None] | None = None
    capturable: bool = True
    plugin: str = ""

    def __post_init__(self) -> None:
        for side, specs in (("inputs", self.inputs), ("outputs", self.outputs)):
            if not isinstance(specs, (tuple, list)) or not all(isinstance(spec, OperandSpec) for spec in specs):
                raise TypeError(f"kernel {self.name!r}: {side} are {specs!r}; expected a tuple of OperandSpec")
        pair = unpaired(self.inplace, self.inputs, self.outputs)
        if pair is not None:
            expected = "numbers of an output and of an input that it has"
            raise PluginError(f"kernel {self.name!r}: inplace has {pair}; expected {expected}")

    def refuses(self, node: Node) -> str | None:
        """Why this kernel can't take ``node``, or None when it can, as every kernel can that has no work with it."""
        for specs, values, side in (
            (self.inputs, node.inputs, "input"),
            (self.outputs, node.outputs, "output"),
        ):
            if len(values) > len(specs) and not (specs and specs[-1].repeated):
                return f"{self.name}: {len(values)} {side}s, takes {len(specs)}"
            for index, spec in enumerate(specs):
                if spec.repeated:
                    reasons = [spec.refuses(v) for v in values[index:]]
                else:
                    reasons = [spec.refuses(values[index] if index < len(values) else None)]
                for reason in filter(None, reasons):
                    return f"{self.name}: {side} {index}: {reason}"
        # A node without work isn't run: no kernel is asked about sizes that it could only divide by zero.
        if self.accepts is None or not has_work(node):
            return None
        with blamed(f"{node.describe()}: accepts of the kernel {self.name!r}"):
            answer: str | None = answered(self.accepts, node)
        if answer is not None and not isinstance(answer, str):
            raise PluginError(
                f"{node.describe()}: accepts of the kernel {self.name!r} gave {answer!r}; expected a reason, or None"
            )
        return answer

    def input_spec(self, index: int) -> OperandSpec:
        """The spec of input ``index``, counting repeated ones."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def output_spec(self, index: int) -> OperandSpec:
        """Likewise of output ``index``."""
        return self.outputs[min(index, len(self.outputs) - 1)]


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The devices that may run a graph, with their kernels: what a pass knows of them.

    Attributes:
        kernels: per device id and op, highest priority first.
        order: the device ids in the order in which they are asked to take a node.
        pin: the device that the user wants for a node, or empty.
    """

    kernels: Mapping[str, Mapping[str, tuple[Kernel, ...]]]
    order: Callable[[Node], tuple[str, ...]]
    pin: Callable[[Node], str]

    def offer(self, op: str) -> bool:
        """Whether a device has a kernel for an op."""
        return any(op in kernels for kernels in self.kernels.values())

    def taker(self, made: Node, member: Node) -> str | None:
        """The device that would run ``member``, if it has a kernel that takes ``made``."""
        for device in self.order(member):
            kernels = self.kernels[device]
            if any(k.refuses(made) is None for k in kernels.get(made.op.name, ())):
                return device
            if any(k.refuses(member) is None for k in kernels.get(member.op.name, ())):
                return None
        return None
