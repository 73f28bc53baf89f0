"""Gives named dims their sizes: types are inferred anew from bound inputs and attributes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.dims import Dim, Size, bind_size
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import Array, bind_shape
from ..ir.value import Value
from ..ops.control_flow import if_
from ..ops.dynamic_shape import deferred, read_shape
from ..ops.dynamic_shape import sizes as sizes_op
from ..ops.infer import operand
from ..ops.rules.subgraph import inline
from ..ops.shape import slice_, slice_grad
from .size_values import Kernels, SizeValues, bound_attributes, completed, static_reads

_SHAPES = frozenset({"shape", "input_shape"})  # attributes that are the sizes of axes


def bind(
    graph: Graph,
    sizes: Mapping[str, int],
    kernels: Kernels = MappingProxyType({}),
    fed: Collection[str] = (),
) -> Graph:
    """The graph with every named dim replaced by its size, in types, attributes and bodies.

    What depends on sizes alone and decides about shapes is computed: sizes that nodes compute, sizes as data, and the
    conditions of branches, of which one is left.

    Args:
        graph: any.
        sizes: by name.
        kernels: the reference's, by op.
        fed: names of sizes that are fed where they are data: a node of ``sizes`` with one of them becomes an input.

    Raises:
        InputError: with these sizes a node's shapes don't fit.
    """
    if not is_open(graph):
        waiting = next((node for node in graph.nodes if node.op is deferred), None)
        if waiting is None:
            return graph
        raise InputError(str(waiting.attributes["why"]))
    return _bound_graph(SizeValues.of(graph), completed(static_reads(graph), sizes, kernels), kernels, frozenset(fed))


def _bound_graph(
    values: SizeValues,
    sizes: Mapping[str, int],
    kernels: Kernels,
    fed: frozenset[str] = frozenset(),
    sliced: frozenset[Dim] = frozenset(),
) -> Graph:
    known = sliced | values.graph.fact(_sliced)

    def inner(body: SizeValues) -> Graph:
        return _bound_graph(body, sizes, kernels, sliced=known)

    def copy(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None]:
        if node.op is deferred:
            raise InputError(str(node.attributes["why"]))
        if node.op is read_shape:  # its sizes are known
            return inputs
        if node.op is if_ and values.is_static(operand(node)):
            condition = values.compute(operand(node), sizes, kernels)
            if condition is not None:
                branch = values.bodies(node)[0 if condition else 1]
                return _taken(builder, node, inner(branch), inputs[1:], sizes)
        bodies = tuple(inner(body) for body in values.bodies(node)) if node.bodies else ()
        names = [None if v is None else v.name for v in node.outputs]
        attributes = bound_attributes(node, sizes)
        for key in _SHAPES & attributes.keys() if known else ():
            pairs = zip(node.attributes[key], attributes[key], strict=True)
            attributes[key] = tuple([bind_shape((of,), sizes)[0] if of in known else size for of, size in pairs])
        if node.op is sizes_op and not any(isinstance(size, Dim) for size in attributes["values"]):
            if has_names(node, fed):
                return [builder.input(names[0] or node.name, attributes["dtype"], attributes["shape"])]
            return [builder.vector_of(names[0] or node.name, *(attributes[k] for k in ("values", "shape", "dtype")))]
        try:
            made = builder.add(node.op, inputs, attributes, bodies=bodies, name=node.name, output_names=names)
        except InputError as error:
            raise InputError(f"{error}; {_listed(node, sizes)}") from None
        _check_types(node, made.outputs, sizes)
        return made.outputs

    bound = rewrite(values.graph, copy, input_type=lambda type_: type_.bind(sizes))
    short = sorted((size for size in known if _is_negative(size, sizes)), key=str)
    if short:
        _refuse_expressions(values.graph, known, short, sizes)
    return bound


def _sliced(graph: Graph) -> frozenset[Dim]:
    """The named sizes of what slices give; where they are negative, there is no element (``bind_shape``)."""
    results = [value for node in graph.nodes if node.op is slice_ for value in node.outputs if value is not None]
    return frozenset(size for value in results for size in value.type.shape if isinstance(size, Dim))


def _is_negative(size: Size, sizes: Mapping[str, int]) -> bool:
    bound = bind_size(size, sizes)
    return not isinstance(bound, Dim) and bound < 0


def _refuse_expressions(graph: Graph, known: frozenset[Dim], short: Sequence[Dim], sizes: Mapping[str, int]) -> None:
    """Where a slice has no element, its size is 0, but an expression that was made of it counts with less.

    Raises:
        InputError: a node has an expression of the same names which is not the size of a value.
    """
    names = frozenset[str]().union(*(size.names for size in short))
    fine = known | {size for value in graph.inputs for size in value.type.shape if isinstance(size, Dim)}
    for node in graph.nodes:
        for size in _expressions(node):
            if size not in fine and not size.names.isdisjoint(names):
                raise InputError(
                    f"{node.describe()}: it reads the size {size}, and {short[0]}, which a slice has, is "
                    f"{short[0].bind(sizes)}; {_listed(node, sizes)}: the graph needs larger sizes"
                )


def _expressions(node: Node) -> Iterator[Dim]:
    """The named sizes among a node's attributes, but for ends of a slice at fixed distances from those of its axis."""
    axes: Sequence[Size] = ()
    if node.op is slice_ or node.op is slice_grad:
        axes = operand(node).type.shape if node.op is slice_ else node.attributes["shape"]
    for key, attribute in node.attributes.items():
        for axis, item in enumerate(attribute if isinstance(attribute, tuple) else (attribute,)):
            fixed = axes and key in ("starts", "stops") and not isinstance(axes[axis] - item, Dim)
            if isinstance(item, Dim) and not fixed:
                yield item


def array_of_sizes(node: Node, sizes: Mapping[str, int]) -> Array:
    """The result of a node of ``sizes``."""
    attributes = bound_attributes(node, sizes)
    return np.array(attributes["values"], attributes["dtype"].numpy).reshape(attributes["shape"])


def has_names(node: Node, names: Collection[str]) -> bool:
    """Whether an attribute of a node, or of one in its bodies, has a size with one of these names."""
    listed = (item for a in node.attributes.values() for item in (a if isinstance(a, tuple) else (a,)))
    return any(isinstance(item, Dim) and not item.names.isdisjoint(names) for item in listed) or any(
        not dims_of(body).isdisjoint(names) for body in node.bodies
    )


def _taken(
    builder: GraphBuilder, node: Node, body: Graph, captures: Sequence[Value | None], sizes: Mapping[str, int]
) -> list[Value]:
    """The results of the branch that is taken, with its nodes in place of the node."""
    given = [v for v in captures if v is not None]
    new = inline(builder, body, given)
    made = [new[v] for v in body.outputs.values()]
    _check_types(node, made, sizes)
    for old, value in zip(node.outputs, made, strict=True):
        if old is not None and value not in given:  # what the branch hands on has a name: an input's, or a parameter's
            builder.rename(value, old.name)
    return made


def _check_types(node: Node, made: Sequence[Value | None], sizes: Mapping[str, int]) -> None:
    """What reads a result was made for the type that was inferred from names, attributes and regions among it."""
    for old, new in zip(node.outputs, made, strict=True):
        if old is not None and new is not None and old.type is not new.type and old.type.bind(sizes) != new.type:
            raise InputError(
                f"{node.describe()}: its result {old.name!r} is {new.type}, where the graph expects {old.type}, "
                f"{old.type.bind(sizes)}; {_listed(node, sizes)}: {_advice(node, sizes)}"
            )


def _advice(node: Node, sizes: Mapping[str, int]) -> str:
    """Why a result has another type than was inferred from names."""
    for value in (v for v in (*node.inputs, *node.outputs) if v is not None):
        for size in value.type.shape:
            if _is_negative(size, sizes):
                return (
                    f"{value.name!r} has no elements along the axis of size {size}, which counts as less in other "
                    "sizes; the graph needs larger ones"
                )
    return "give these sizes one name where they are equal"


def _listed(node: Node, sizes: Mapping[str, int]) -> str:
    """The named sizes of a node and what they are."""
    shapes = [*(v.type.shape for v in (*node.inputs, *node.outputs) if v is not None), *node.attributes.values()]
    dims = [d for shape in shapes for d in (shape if isinstance(shape, tuple) else (shape,)) if isinstance(d, Dim)]
    named = sorted({name for dim in dims for name in dim.names})
    return "here " + (", ".join(f"{name} = {sizes.get(name, 'unknown')}" for name in named) or "no size has a name")


def is_open(graph: Graph) -> bool:
    """Whether a graph leaves a size open; mostly an input's."""
    return graph.fact(_is_open)


def _is_open(graph: Graph) -> bool:
    if graph.has_open_sizes:
        return True
    for node in graph.nodes:
        for attribute in node.attributes.values():
            kind = type(attribute)
            if kind is Dim or (kind is tuple and Dim in map(type, attribute)):
                return True
        if node.bodies and any(is_open(body) for body in node.bodies):
            return True
    return False


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
