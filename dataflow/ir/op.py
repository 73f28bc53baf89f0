"""What an op is: one declaration of inputs, attributes, outputs, shapes, gradient and memory behaviour.

An op knows no device. Kernels are elsewhere and are found by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ..errors import InputError, PluginError
from ..host import checks
from ..host.keywords import UnknownKeyword, meant
from . import pickled_ops
from .declaration import fault_of
from .defaults import REQUIRED as REQUIRED
from .defaults import REQUIRED_DTYPE as REQUIRED_DTYPE
from .defaults import PerAxis as PerAxis
from .defaults import Required
from .dims import Dim
from .op_help import Declared, Documentation
from .tracing import Traced
from .types import Array, DType, TensorType, dtype
from .value import Builder, Use, Value, builder_of, misplaced

Attribute = Any  # int, float, str, bool, DType, tuple of ints (or Dims), tuple of floats
DECOMPOSED: Any = type("Decomposed", (), {"__repr__": lambda self: "DECOMPOSED"})()

_PLAIN = 1 << 31  # almost all numbers are below it
_INTEGERS = frozenset({int})
_ONE_KIND = {float: "a number", str: "text", tuple: "a list"}  # of an attribute, by that of its default
_SIMPLE = frozenset({type(None), bool, float, str, DType, Dim})  # types of attributes that are kept as they are

Infer = Callable[..., TensorType | tuple[TensorType, ...]]
"""``infer(*input_types, **attributes)``: the type of each declared output; absent inputs are None, and
those that a node leaves out at the end aren't given. An op with bodies gets ``bodies=`` too."""
Gradient = Callable[..., Value | Sequence[Value | None] | None]
"""``gradient(node, *cotangents)``: a cotangent, or None for zeros, per input, built from nodes; only inputs that
nothing is differentiated by may be left out at the end. The walker undoes broadcasts. There is a cotangent, or None,
per output, extra ones too: where the gradient is differentiated again. A rule that doesn't read them is replaced by the
op's decomposition then, and refused without one. An op with bodies gets ``differentiate=`` too; its node's bodies are
decomposed into ops with gradients. ``DECOMPOSED`` in place of all cotangents: those of the node's decomposition,
computed beside it; so where the loss depends on what a node keeps for backward."""
Differentiate = Callable[[Builder, Mapping[Value, Value], Sequence[Value]], dict[Value, Value | None]]
"""``differentiate(builder, seeds, wrt)``: the cotangent of each value of ``wrt``, None where no seed depends on it.
``seeds`` are cotangents by value; nodes are added to the builder, which has the forward ones."""
Decompose = Callable[..., Value | Sequence[Value]]
"""``decompose(*inputs, **attributes)``: the outputs in terms of smaller ops."""


@dataclass(frozen=True, slots=True)
class View:
    """Where a view's elements lie in its source: the offset in elements of the source, strides in those of the view."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A small graph that a fused op may replace, on devices that have a kernel for it.

    It is built as a decomposition is, from the op's inputs, with None for optional ones that are absent, and the
    op's attributes: ``Pattern(lambda x, w, b: relu(add(matmul(x, w), b)))``. One graph serves all types, so it must
    not ask for them. An attribute that it passes on, to a node or as an operand, is taken from where the graph is
    found (a scalar operand must be a constant there); everything else must be found as it is written. The operands
    of commutative ops may be swapped. The graph has one result, and nothing else in it has a reader outside but
    nodes of ``shared`` ops.
    What it computes is what the op computes, for all inputs that the op's ``infer`` takes.

    Attributes:
        build: ``build(*inputs, **constants)``: the result.
        attributes: ``attributes(**constants)``: the op's attributes by name, where they are not the constants
            themselves: its parameters name those that ``build`` is given.
        shared: names of ops whose nodes may have readers outside, for which they then stay: what they compute is read
            in several places and costs little.
    """

    build: Decompose
    attributes: Callable[..., Mapping[str, Attribute]] | None = None
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class AnyOp:
    """A declaration: an ``Op``, whose call returns a value, or a ``MultiOp``, whose call returns several.

    Attributes:
        name: unique, snake_case.
        inputs: operand names; ``"b?"`` may be absent, ``"xs*"`` (the last) repeats any number of times.
        outputs: result names; ``"+stats"`` is an extra output that backward may read, ``"ys*"`` repeats.
        attributes: name to default, in order; ``REQUIRED`` has none, nor has ``REQUIRED_DTYPE``, a dtype; ``PerAxis``
            depends on the rank of the first operand.
        infer: see ``Infer``.
        gradient: see ``Gradient``; None with a decomposition: that is differentiated; None without: the op
            is not differentiable.
        decompose: see ``Decompose``.
        effects: ``none``, ``random`` (reads a key) or ``host`` (must not be removed or repeated).
        inplace: pairs (output, input) that a kernel may let share memory.
        view: ``view(node, input_strides)``: the View of its first input that its output is, or None when it cannot be
            one for these strides.
        cheap: recomputing it in backward costs less than keeping its result.
        commutative: its two operands may be swapped.
        elementwise: y[i] depends on the operands at i alone, and kernels of ``fused_elementwise`` compute it as a step.
        reduction: it reduces the axes that its attribute ``axes`` names, and may end ``fused_elementwise``.
        identity_without: index of the optional input without which the result is the first input.
        cost: floating-point operations of a node; by default one per output element.
        bodies: names of the graphs that a node carries.
        pattern: of a fused op: see ``Pattern``; mostly one, of its decomposition.
        again: pairs (input, output): a node that is computed a second time, for its first result, reads the output of
            the first time in place of the input, which may have changed since, or for an optional input of a kernel
            that takes it, which then has less to do; the first result is the same bit for bit.
        gate: index of an input of rank 0; where it isn't finite, or the run has noted a fault before, each result is
            the input that ``inplace`` pairs with it.
        doc: formula and shapes.
    """

    name: str
    inputs: tuple[str, ...]
    infer: Infer
    outputs: tuple[str, ...] = ("y",)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    gradient: Gradient | None = None
    decompose: Decompose | None = None
    effects: Literal["none", "random", "host"] = "none"
    inplace: tuple[tuple[int, int], ...] = ()
    view: Callable[[Any, tuple[int, ...]], View | None] | None = None
    cheap: bool = False
    commutative: bool = False
    elementwise: bool = False
    reduction: bool = False
    identity_without: int | None = None
    cost: Callable[[Any], int] | None = None
    bodies: tuple[str, ...] = ()
    pattern: tuple[Pattern, ...] = ()
    again: tuple[tuple[int, int], ...] = ()
    gate: int | None = None
    doc: str = ""

    def __post_init__(self) -> None:
        fault = fault_of(self.name, self.inputs, self.outputs, self.attributes, self.inplace, self.effects, self.infer)
        if fault is not None:
            raise PluginError(f"op {self.name!r}: {fault}")

    def __reduce__(self) -> tuple[Any, ...]:
        """By name: whoever reads a pickle has the declaration from its plugin."""
        return pickled_ops.reduced(self.name, self)

    def __copy__(self) -> AnyOp:
        return self

    def __deepcopy__(self, memo: Any) -> AnyOp:
        return self

    def output_names(self, node: Use) -> list[str]:
        """A declared name per output of ``node``; a repeated one as often as it occurs."""
        if len(node.outputs) == len(self.outputs):
            return list(self.outputs)
        names: list[str] = []
        spare = len(node.outputs) - len(self.outputs)
        for declared in self.outputs:
            names += [declared] * (spare + 1 if declared.endswith("*") and spare > 0 else 1)
        return (
            names[: len(node.outputs)]
            if len(names) >= len(node.outputs)
            else names + names[-1:] * (len(node.outputs) - len(names))
        )

    def complete(self, given: Mapping[str, Attribute], types: Sequence[TensorType | None] = ()) -> dict[str, Attribute]:
        """The attributes in order, with defaults, of which some depend on the types of the operands.

        Raises:
            InputError: an attribute is unknown or missing.
        """
        if not self.attributes and not given:
            return {}
        if not given.keys() <= self.attributes.keys():
            unknown = next(key for key in given if key not in self.attributes)
            known = ", ".join(self.attributes) or "none"
            advice = misplaced(given) or meant(unknown, self.attributes)
            raise UnknownKeyword(f"{self.name}: unknown attribute {unknown!r}; it has: {known}{advice}")
        out: dict[str, Attribute] = {}
        for key, default in self.attributes.items():
            value = given.get(key, default)
            if type(value) is PerAxis:
                value = value.of(types)
            if type(value) is Required:
                raise InputError(f"{self.name}: attribute {key!r} is missing")
            if isinstance(default, float) and isinstance(value, (int, np.integer)):  # kernels read it as a float
                value = checks.number(f"{self.name}: attribute {key!r}", int(value), -math.inf)
            elif isinstance(value, list):
                value = tuple(value)
            elif type(default) in _ONE_KIND and type(value) in _SIMPLE and type(value) is not type(default):
                # kernels in C would read it as 0
                expected = _ONE_KIND[type(default)]
                raise InputError(f"{self.name}: attribute {key!r} is {checks.shown(value)}; expected {expected}")
            elif type(value) is not DType and (
                type(default) is DType or default is REQUIRED_DTYPE or isinstance(value, (type, np.dtype))
            ):
                value = dtype(value)  # np.float32, or "float32"
            out[key] = value
        return out

    def plain(self, given: Mapping[str, Any]) -> dict[str, Attribute]:
        """The attributes as kernels can read them: numbers of Python, text, dtypes, and tuples of these.

        Raises:
            InputError: one is something else, or a whole number of more than 64 bits.
        """
        if _SIMPLE.issuperset(map(type, given.values())):
            return dict(given)
        return {
            key: value if type(value) in _SIMPLE or self._is_plain(key, value) else self._plain(key, value)
            for key, value in given.items()
        }

    def _is_plain(self, key: str, value: Any) -> bool:
        """Whether an attribute is a number of at most 32 bits, or a tuple of such, and as it should be."""
        if type(value) is tuple:
            known = _INTEGERS.issuperset(map(type, value)) and (
                not value or -_PLAIN < min(value) <= max(value) < _PLAIN
            )
        else:
            known = type(value) is int and -_PLAIN < value < _PLAIN
        return known and type(self.attributes.get(key)) is not bool

    def _plain(self, key: str, value: Any) -> Attribute:
        if isinstance(self.attributes.get(key), bool):
            if not isinstance(value, (int, np.integer, np.bool_)) or value not in (0, 1):
                raise InputError(f"{self.name}: attribute {key!r} is {checks.shown(value)}; expected a bool")
            return bool(value)
        if isinstance(value, (list, tuple)):
            return tuple([entry if type(entry) in _SIMPLE else self._plain(key, entry) for entry in value])
        if type(value) is Traced:
            return value  # its bytes can be counted, so it has fewer bits
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            if not -(1 << 63) <= value < 1 << 63:
                raise InputError(f"{self.name}: attribute {key!r} is {checks.shown(value)}, which takes over 64 bits")
            return int(value)
        if isinstance(value, np.floating):
            return float(value)
        if value is None or isinstance(value, (bool, float, str, DType, Dim)):
            return value
        raise InputError(f"{self.name}: attribute {key!r} is {checks.shown(value)}; expected numbers, text or a dtype")

    def check_arity(
        self, count: int, absent: Sequence[bool], attributes: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Raises InputError when ``count`` inputs, some absent, don't fit the declaration; attributes for messages."""
        variadic = bool(self.inputs) and self.inputs[-1].endswith("*")
        if count > len(self.inputs) and not variadic:
            raise InputError(f"{self.name}: takes {len(self.inputs)} inputs ({', '.join(self.inputs)}), got {count}")
        for index, declared in enumerate(self.inputs):
            missing = index >= count or absent[index]
            if missing and not declared.endswith(("?", "*")):
                raise InputError(f"{self.name}: input {declared!r} is missing{misplaced(attributes)}")


@dataclass(frozen=True, slots=True, eq=False)
class Op(AnyOp):
    """A declaration of one result, beside extra ones; see ``AnyOp`` for the attributes."""

    def __post_init__(self) -> None:
        AnyOp.__post_init__(self)  # slots make another class of it, of which super() doesn't know
        if _results(self.outputs) != 1 or self.outputs[0].startswith("+"):
            raise PluginError(f"op {self.name!r}: its results are {', '.join(self.outputs)}; declare it as MultiOp")

    def __call__(
        self,
        *inputs: Value | float | Array | None,
        bodies: tuple[Any, ...] = (),
        name: str | None = None,
        **attributes: Attribute,
    ) -> Value:
        """Adds a node to the builder of its inputs.

        Returns:
            The result.

        Raises:
            InputError: a wrong number of inputs, an unknown or missing attribute, or types that don't fit.
        """
        node = builder_of(self.name, inputs, attributes).add(self, inputs, attributes, bodies=bodies, name=name)
        result = node.outputs[0]
        assert result is not None
        return result


@dataclass(frozen=True, slots=True, eq=False)
class MultiOp(AnyOp):
    """A declaration of several results, or of as many as there are; see ``AnyOp`` for the attributes."""

    def __call__(
        self,
        *inputs: Value | float | Array | None,
        bodies: tuple[Any, ...] = (),
        name: str | None = None,
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Adds a node to the builder of its inputs.

        Returns:
            The results that are not extra.

        Raises:
            InputError: a wrong number of inputs, an unknown or missing attribute, or types that don't fit.
        """
        node = builder_of(self.name, inputs, attributes).add(self, inputs, attributes, bodies=bodies, name=name)
        named = zip(node.outputs, self.output_names(node), strict=True)
        return tuple(value for value, declared in named if value is not None and declared[0] != "+")


for _kind in (AnyOp, Op, MultiOp):
    _kind.__doc__ = Documentation(_kind.__doc__, Required)  # type: ignore[assignment]
AnyOp.__signature__ = Declared(Required)  # type: ignore[attr-defined]


def _results(outputs: Sequence[str]) -> int | None:
    """How many results a call returns; None where their number isn't declared."""
    return None if any(name.endswith("*") for name in outputs) else sum(not name.startswith("+") for name in outputs)


def same_type(x: TensorType, *others: TensorType | None, **_: Attribute) -> TensorType:
    """The first input's type."""
    return x


def as_dtype(dtype: DType) -> Callable[[TensorType], TensorType]:
    """A function from a type to the same shape with ``dtype``."""
    return lambda x: TensorType(dtype, x.shape)
