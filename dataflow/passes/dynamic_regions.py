"""Graphs whose shapes depend on data, split into regions that can be planned one after the other.

A region holds the nodes whose sizes are known once the regions before it have run. What crosses from one to another is
an input and an output of theirs, with an allocation of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..ir.builder import GraphBuilder
from ..ir.dims import Dim
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import TensorType
from ..ir.value import Value
from ..ops.dynamic_shape import read_shape
from ..ops.infer import operand
from ..ops.scatter import gather_elements
from ..ops.sort import topk
from .bind_shapes import dims_of
from .size_values import SizeValues, has_reads


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A subgraph.

    Attributes:
        graph: reads and gives values of the graph under their own names.
        reads: sizes that are read off its results, or off inputs of the graph: the node that says so, and the value.
        sizes: names of those that must be known before it is planned, in order.
    """

    graph: Graph
    reads: tuple[tuple[Node, Value], ...]
    sizes: tuple[str, ...]


def depends_on_data(graph: Graph) -> bool:
    """Whether some sizes are read off values that depend on data."""
    return bool(_reads_of_data(graph))


def _reads_of_data(graph: Graph, values: SizeValues | None = None) -> set[Node]:
    """The nodes that read sizes off what depends on data; binding computes the others."""
    if not has_reads(graph.nodes):
        return set()
    values = SizeValues.of(graph) if values is None else values
    reads = [node for node in graph.nodes if node.op is read_shape and sizes_read(node)]
    return {node for node in reads if not values.is_static(operand(node))}


def sizes_read(node: Node) -> tuple[Dim, ...]:
    """The sizes that a ``read_shape`` node gives names to."""
    return tuple(size for size in node.attributes["sizes"] if isinstance(size, Dim))


def split(graph: Graph) -> tuple[Region, ...]:
    """The regions in the order in which they run; nodes that no result needs are left out."""
    values = SizeValues.of(graph)
    dynamic = _reads_of_data(graph, values)
    kept, levels = _needed(graph), dict.fromkeys((*graph.inputs, *graph.initializers), 0)
    known: dict[str, int] = {}  # level at which a size can be used
    visible = {*graph.outputs.values(), *(v for node in graph.nodes for v in node.inputs if v is not None)}
    nodes_at: dict[int, list[Node]] = {0: []}
    reads: dict[int, list[tuple[Node, Value]]] = {}
    for node in graph.nodes:
        if node not in kept:
            continue
        inputs = [v for v in node.inputs if v is not None]
        level = max([0, *(levels[v] for v in inputs), *(known.get(name, 0) for name in _names(node))])
        if node.op is read_shape and node not in dynamic:  # known with the sizes that it depends on
            known.update({name: level for dim in sizes_read(node) for name in dim.names})
        elif node.op is read_shape:
            reads.setdefault(level, []).append((node, inputs[0]))
            known.update({name: level + 1 for dim in sizes_read(node) for name in dim.names})
            nodes_at.setdefault(level + 1, [])
        if node.op is not read_shape or not visible.isdisjoint(node.outputs):
            if node.op is read_shape:  # it is its operand; the names mean nothing to the region that it is in
                node = dataclasses.replace(node, attributes={"sizes": (0,) * len(node.attributes["sizes"])})
            nodes_at.setdefault(level, []).append(node)
        levels.update({v: level for v in node.outputs if v is not None})
    results = set(graph.outputs.values())
    _repeat_static(graph, nodes_at, values, results)
    read = {v: level for level, nodes in nodes_at.items() for n in nodes for v in n.inputs if v is not None}
    for level, nodes in nodes_at.items():  # the last level that reads a value
        for node in nodes:
            for value in node.inputs:
                if value is not None:
                    read[value] = max(read[value], level)
    given = {value for found in reads.values() for _, value in found}
    regions = []
    for level in sorted(nodes_at):
        nodes = nodes_at[level]
        made = {v for n in nodes for v in n.outputs if v is not None}
        used = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in made)
        stored = {v: graph.initializers[v] for v in used if v in graph.initializers}
        outputs = {v.name: v for v in _ordered(nodes) if v in results or v in given or read.get(v, -1) > level}
        if level == 0:  # results that no node computes
            passed = [v for v in results if v in graph.inputs or v in graph.initializers]
            outputs |= {v.name: v for v in passed}
            used |= dict.fromkeys(v for v in passed if v in graph.inputs)
            stored |= {v: graph.initializers[v] for v in passed if v in graph.initializers}
        inputs_of = tuple(v for v in used if v not in graph.initializers)
        region = Graph(inputs_of, outputs, tuple(nodes), stored, (), f"{graph.name}/{level}")
        regions.append(Region(region, tuple(reads.get(level, ())), tuple(sorted(dims_of(region)))))
    return tuple(regions)


def _repeat_static(graph: Graph, nodes_at: dict[int, list[Node]], values: SizeValues, results: set[Value]) -> None:
    """Gives each region the nodes itself whose results depend on sizes alone: binding computes them there."""
    order = {v: index for index, node in enumerate(graph.nodes) for v in node.outputs if v is not None}
    producers = {v: node for node in graph.nodes for v in node.outputs if v is not None and values.is_static(v)}
    for level, nodes in nodes_at.items():
        kept = [n for n in nodes if results & set(n.outputs) or not any(v in producers for v in n.outputs)]
        pending, chosen = list(kept), set(kept)
        while pending:
            needed = {producers[v] for v in pending.pop().inputs if v is not None and v in producers} - chosen
            chosen |= needed
            pending += needed
        nodes_at[level] = sorted(chosen, key=lambda node: min(order[v] for v in node.outputs if v is not None))


def without_data(graph: Graph, needed: Iterable[str]) -> Graph:
    """The graph with the results whose shapes don't depend on data, and what they need.

    Args:
        graph: any.
        needed: names of results; where the shape of one does depend on data, the graph stays as it is.
    """
    if not depends_on_data(graph):
        return graph
    single = {name: split(dataclasses.replace(graph, outputs={name: value})) for name, value in graph.outputs.items()}
    if any(region.reads for name in needed for region in single[name]):
        return graph
    free = {name: graph.outputs[name] for name, regions in single.items() if not any(r.reads for r in regions)}
    (free_region,) = split(dataclasses.replace(graph, outputs=free))
    return dataclasses.replace(
        graph, outputs=free, nodes=free_region.graph.nodes, initializers=free_region.graph.initializers
    )


# ---- graphs planned as one, once the regions that decide about sizes have run --------------------------


def choices(graph: Graph) -> tuple[Value, ...]:
    """The integers and booleans, computed from floats, on which the sizes that are read off data depend.

    Everything between them and the sizes is whole numbers, which two programs compute alike; the floats before them are
    rounded as each program fuses them.
    """
    values, producers = SizeValues.of(graph), graph.producers()
    found: dict[Value, None] = {}
    seen: set[Value] = set()
    pending = [operand(node) for node in _reads_of_data(graph, values)]
    while pending:
        value = pending.pop()
        node = producers.get(value)
        if node is None or value in seen or values.is_static(value):
            continue
        seen.add(value)
        read = [v for v in node.inputs if v is not None]
        if any(v.type.dtype.is_float for v in read) or node.op.effects == "random":
            found[value] = None
        else:
            pending += read
    return tuple(v for v in graph.values() if v in found)


def deciding(graph: Graph) -> tuple[Region, ...]:
    """The regions that compute the choices, and the sizes that are read off data."""
    reads = [v for node in _reads_of_data(graph) for v in node.outputs if v is not None]
    return split(dataclasses.replace(graph, outputs={v.name: v for v in (*choices(graph), *reads)}, states=()))


def with_choices(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph that is given its choices as further inputs.

    Args:
        graph: any.
        names: of the inputs, by names of choices.
    """

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if not any(v is not None and v.name in names for v in node.outputs):
            return None
        outputs = [None if v is None else v.name for v in node.outputs]
        made = builder.add(node.op, inputs, node.attributes, bodies=node.bodies, name=node.name, output_names=outputs)
        results = list(made.outputs)
        for index, value in enumerate(node.outputs):
            if value is not None and value.name in names:
                results[index] = builder.input(names[value.name], value.type.dtype, value.type.shape)
        if node.op is topk and results[1] is not made.outputs[1]:  # its elements are those of the indices
            results[0] = gather_elements(inputs[0], results[1], axis=node.attributes["axis"])
        return results

    return rewrite(graph, replace)


def _ordered(nodes: Iterable[Node]) -> Iterable[Value]:
    return (v for n in nodes for v in n.outputs if v is not None)


def _needed(graph: Graph) -> set[Node]:
    """The nodes that a result depends on, through values or sizes."""
    values, sizes = set(graph.outputs.values()), {n for v in graph.outputs.values() for n in _dims(v.type)}
    kept = set()
    for node in reversed(graph.nodes):
        names = {name for dim in sizes_read(node) for name in dim.names} if node.op is read_shape else set()
        if names & sizes or not values.isdisjoint(v for v in node.outputs if v is not None):
            kept.add(node)
            values.update(v for v in node.inputs if v is not None)
            if node.op is not read_shape:
                sizes |= _names(node)
    return kept


def of_read_inputs(graph: Graph) -> Graph:
    """The graph without the inputs that no node reads, nor needs for a size: it is the same whatever shapes they have.

    Graphs with bodies, and those of which sizes are read, are left as they are.
    """
    if any(node.bodies or node.op is read_shape for node in graph.nodes):
        return graph
    read = {*graph.outputs.values(), *(v for node in graph.nodes for v in node.inputs)}
    needed = {n for v in graph.outputs.values() for n in _dims(v.type)}.union(*map(_names, graph.nodes))
    for value in graph.inputs:
        if value in read:
            needed -= {n for dim in value.type.shape if isinstance(dim, Dim) for n in dim.names if dim == Dim(n)}
    inputs = tuple(v for v in graph.inputs if v in read or _dims(v.type) & needed)
    return dataclasses.replace(graph, inputs=inputs)


def _dims(type_: TensorType) -> set[str]:
    return {name for dim in type_.shape if isinstance(dim, Dim) for name in dim.names}


def _names(node: Node) -> set[str]:
    """The named sizes that a node cannot run without."""
    found = {name for v in (*node.inputs, *node.outputs) if v is not None for name in _dims(v.type)}
    if node.op is not read_shape:
        for attribute in node.attributes.values():
            for item in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(item, Dim):
                    found |= item.names
    return found
