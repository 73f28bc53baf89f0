"""The graphs that fused ops stand for, without types: what ``fuse`` looks for."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..builder import GraphBuilder
from ..errors import PluginError
from ..graph import Array, Attribute, Graph, Node, Value
from ..op import Op, Pattern
from ..types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Free:
    """A constant that may have any value: an attribute of a node, or a scalar operand."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A pattern as nodes. Its values have no types.

    Attributes:
        pattern: what it was made from.
        inputs: the op's, each a value or None where an optional one is absent.
        scalars: operands that are numbers, or free.
        makers: the node of each computed value.
        last: the node of the result.
        around: ops of the nodes that the last one reads: to tell in a moment where it can't be.
    """

    pattern: Pattern
    inputs: tuple[Value | None, ...]
    scalars: Mapping[Value, float | Free]
    makers: Mapping[Value, Node]
    last: Node
    around: frozenset[str]

    @property
    def size(self) -> int:
        """How many nodes it has."""
        return len({id(node) for node in self.makers.values()})


def shapes(op: Op) -> Iterator[Shape]:
    """Each of the op's patterns, with and without each optional operand.

    Raises:
        PluginError: a pattern looks at what it can't know, or has no node or several results.
    """
    for pattern in op.pattern:
        yield from _shapes(pattern, op.name, op.inputs, tuple(op.attributes))


@functools.cache
def _shapes(pattern: Pattern, name: str, inputs: tuple[str, ...], attributes: tuple[str, ...]) -> tuple[Shape, ...]:
    free = [Free(key) for key in attributes]
    if pattern.attributes is not None:
        free = [Free(key) for key in inspect.signature(pattern.attributes).parameters]
    optional = [index for index, declared in enumerate(inputs) if declared.endswith("?")]
    absences = itertools.chain.from_iterable(itertools.combinations(optional, n) for n in range(len(optional) + 1))
    return tuple(_traced(pattern, name, inputs, absent, free) for absent in absences)


def _traced(pattern: Pattern, name: str, inputs: Sequence[str], absent: Sequence[int], free: Sequence[Free]) -> Shape:
    tracer = _Tracer(name)
    given = [None if i in absent else tracer.untyped(declared) for i, declared in enumerate(inputs)]
    try:
        result = pattern.build(*given, **{f.name: f for f in free})
    except Exception as error:  # anybody's code
        raise PluginError(f"{name}: its pattern can't be traced: {type(error).__name__}: {error}") from error
    makers = {v: node for node in tracer.nodes() for v in node.outputs if v is not None}
    if not isinstance(result, Value) or result not in makers:
        raise PluginError(f"{name}: its pattern gave {result!r}; expected the one result of a node")
    last = makers[result]
    around = frozenset(makers[v].op.name for v in last.inputs if v in makers)
    return Shape(pattern, tuple(given), tracer.scalars, makers, last, around)


class _Untyped:
    """Stands for a type; whoever asks it for something hears why there is none."""

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        raise TypeError(f"a pattern stands for all types: {key!r} of an operand isn't known; give one without it")


class _Tracer(GraphBuilder):
    """Takes nodes without inferring types.

    Attributes:
        scalars: numbers and free constants among operands.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.scalars: dict[Value, float | Free] = {}

    def untyped(self, name: str) -> Value:
        """A new value."""
        return self.value(name, cast("TensorType", _Untyped()))

    def add(
        self,
        op: Op,
        inputs: Sequence[Value | float | Array | None],
        attributes: Mapping[str, Attribute],
        *,
        bodies: tuple[Graph, ...] = (),
        name: str | None = None,
        output_names: Sequence[str | None] | None = None,
    ) -> Node:
        """The node, whose results have no types."""
        operands = tuple(v if v is None or isinstance(v, Value) else self._scalar(v) for v in inputs)
        op.check_arity(len(operands), [v is None for v in operands])
        outputs = tuple(self.untyped(declared) for declared in op.outputs)
        node = Node(op, op.name, operands, outputs, op.complete(attributes), bodies)
        self._nodes.append(node)
        return node

    def _scalar(self, number: Any) -> Value:
        if not isinstance(number, (Free, bool, int, float)):
            raise TypeError(f"{type(number).__name__} is no operand of a pattern: expected a value or a number")
        value = self.untyped("scalar")
        self.scalars[value] = number
        return value


def attributes_of(op: Op, shape: Shape, free: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The attributes of the op where its pattern was found with these constants."""
    return op.complete(free if shape.pattern.attributes is None else shape.pattern.attributes(**free))
