"""Numbers in place of the traced sizes of types, nodes and graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .dims import Dim, bind_size
from .graph import Graph, Node
from .tracing import Traced, active
from .types import TensorType
from .value import Value

_T = TypeVar("_T")


class Substitution:
    """Makes parts of graphs that were traced anew for other sizes; what no size is in stays itself.

    Args:
        sizes: the named ones.
        known: what something is here, by its id; who gives it keeps these things alive.

    Attributes:
        known: what was asked for so far too.
    """

    def __init__(self, sizes: Mapping[str, int], known: Mapping[int, Any] | None = None) -> None:
        self._sizes, self._numbers = sizes, dict[Dim, int]()
        self.known: dict[int, Any] = dict(known or {})

    def size(self, size: Any) -> Any:
        """A size, or whatever else an attribute is."""
        if type(size) is Traced:
            expression = size.expression
            number = self._numbers.get(expression)
            if number is None:
                bound = bind_size(expression, self._sizes)
                assert isinstance(bound, int)
                number = self._numbers[expression] = bound
            return number
        return size

    def sizes(self, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
        """Several of them; the same tuple where none is traced."""
        for size in sizes:
            if type(size) is Traced:
                return tuple([self.size(size) for size in sizes])
        return sizes

    def made(self, of: _T, make: Callable[[_T], _T]) -> _T:
        """What something is here, made once."""
        found: _T | None = self.known.get(id(of))
        if found is None:
            found = self.known[id(of)] = make(of)
        return found

    def type(self, of: TensorType) -> TensorType:
        """A type."""
        return self.made(of, self._type)

    def _type(self, of: TensorType) -> TensorType:
        shape = self.sizes(of.shape)
        return of if shape is of.shape else TensorType(of.dtype, shape)

    def name(self, of: str) -> str:
        """A name."""
        return of

    def value(self, of: Value) -> Value:
        """A value of a finished graph."""
        return self.made(of, self._value)

    def _value(self, of: Value) -> Value:
        type_, name = self.type(of.type), self.name(of.name)
        return of if type_ is of.type and name is of.name else Value(name, type_)

    def values(self, of: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
        """Several of them; the same tuple where none is another."""
        known, found, same = self.known, [], True
        for value in of:
            made = None if value is None else known.get(id(value))
            if made is None and value is not None:
                made = self.value(value)
            found.append(made)
            same = same and made is value
        return of if same else tuple(found)

    def node(self, of: Node) -> Node:
        """A node."""
        return self.made(of, self._node)

    def _node(self, of: Node) -> Node:
        inputs, outputs = self.values(of.inputs), self.values(of.outputs)
        attributes = self._attributes(of.attributes)
        bodies = tuple([self.graph(body) for body in of.bodies])
        name = self.name(of.name)
        same = inputs is of.inputs and outputs is of.outputs and attributes is of.attributes and name is of.name
        if same and all(map(_is, bodies, of.bodies)):
            return of
        return Node(of.op, name, inputs, outputs, attributes, bodies, of.origin, of.pin)

    def _attributes(self, of: Mapping[str, Any]) -> Mapping[str, Any]:
        if not of:
            return of
        found = {key: self.sizes(a) if type(a) is tuple else self.size(a) for key, a in of.items()}
        return of if all(map(_is, found.values(), of.values())) else found

    def graph(self, of: Graph) -> Graph:
        """A body of a node."""
        return self.made(of, self._graph)

    def _graph(self, of: Graph) -> Graph:
        nodes = tuple([self.node(node) for node in of.nodes])
        inputs = self.values(of.inputs)
        data = [one.at(self) for one in of.initializers.values()]
        if inputs is of.inputs and all(map(_is, nodes, of.nodes)) and all(map(_is, data, of.initializers.values())):
            return of
        outputs = {name: self.value(value) for name, value in of.outputs.items()}
        stored = dict(zip(map(self.value, of.initializers), data, strict=True))
        states = tuple(
            dataclasses.replace(s, before=self.value(s.before), after=self.value(s.after)) for s in of.states
        )
        return Graph(inputs, outputs, nodes, stored, states, of.name, of.stages)  # type: ignore[arg-type]


def _is(one: object, other: object) -> bool:
    return one is other


def answered(question: Callable[[Node], Any], node: Node) -> Any:
    """What is answered about a node, which depends on its types and attributes alone; a trace notes it."""
    trace = active()
    if trace is None:
        return question(node)
    plain = Substitution(trace.numbers).node(node)
    if plain is node:
        return question(node)
    types = [
        None if v is None else (v.type.dtype.name, *map(_text, v.type.shape)) for v in (*node.inputs, *node.outputs)
    ]
    attributes = tuple((key, _text(value)) for key, value in node.attributes.items())
    return trace.ask((question, node.op.name, len(node.inputs), *types, attributes), question, node, plain)


def _text(of: Any) -> Any:
    """An attribute or size as text, which tells expressions."""
    return repr(of)
