"""Gives named dims their sizes: types are inferred anew from bound inputs and attributes."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.dims import Dim, bind_size
from ..ir.graph import Graph, Node
from ..ir.op import Attribute
from ..ir.rewrite import rewrite
from ..ir.value import Value


def bind(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with every named dim replaced by its size, in types, attributes and bodies.

    Raises:
        InputError: with these sizes a node's shapes don't fit.
    """
    if not dims_of(graph):
        return graph

    def copy(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> tuple[Value | None, ...]:
        bodies = tuple(bind(body, sizes) for body in node.bodies)
        names = [None if v is None else v.name for v in node.outputs]
        try:
            attributes = {key: _bound(value, sizes) for key, value in node.attributes.items()}
        except InputError as error:  # a division by zero
            raise InputError(f"{node.describe()}: {error}") from None
        try:
            made = builder.add(node.op, inputs, attributes, bodies=bodies, name=node.name, output_names=names)
        except InputError as error:
            raise InputError(f"{error}; {_listed(node, sizes)}") from None
        for old, new in zip(node.outputs, made.outputs, strict=True):
            # What reads it was made for the type that was inferred from names, attributes and regions among it.
            if old is not None and new is not None and old.type.bind(sizes) != new.type:
                raise InputError(
                    f"{node.describe()}: its result {old.name!r} is {new.type}, where the graph expects {old.type}, "
                    f"{old.type.bind(sizes)}; {_listed(node, sizes)}: give these sizes one name where they are equal"
                )
        return made.outputs

    return rewrite(graph, copy, input_type=lambda type_: type_.bind(sizes))


def _listed(node: Node, sizes: Mapping[str, int]) -> str:
    """The named sizes of a node and what they are."""
    shapes = [*(v.type.shape for v in (*node.inputs, *node.outputs) if v is not None), *node.attributes.values()]
    dims = [d for shape in shapes for d in (shape if isinstance(shape, tuple) else (shape,)) if isinstance(d, Dim)]
    named = sorted({name for dim in dims for name in dim.names})
    return "here " + (", ".join(f"{name} = {sizes.get(name, 'unknown')}" for name in named) or "no size has a name")


def dims_of(graph: Graph) -> frozenset[str]:
    """The names of the sizes that a graph leaves open."""
    found: set[str] = set()
    for value in graph.values():
        for dim in value.type.shape:
            if isinstance(dim, Dim):
                found |= dim.names
    for node in graph.nodes:
        for body in node.bodies:
            found |= dims_of(body)
        for attribute in node.attributes.values():
            for item in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(item, Dim):
                    found |= item.names
    return frozenset(found)


def _bound(attribute: Attribute, sizes: Mapping[str, int]) -> Attribute:
    if isinstance(attribute, tuple):
        return tuple(_bound(item, sizes) for item in attribute)
    return bind_size(attribute, sizes) if isinstance(attribute, Dim) else attribute
