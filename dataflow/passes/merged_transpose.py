"""A transpose between a reshape that merges leading axes and one that splits them again is a transpose alone.

PyTorch's exporter writes the transpose of keys so. Where these are a view of a product that gives queries and values
too, the first reshape copies them, and training keeps the copy for backward beside the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import replace_nodes
from ..ir.value import Value
from ..ops.shape import reshape, transpose
from .dead_code import eliminate_dead_code


def transpose_without_merging(graph: Graph) -> Graph:
    """The graph with one transpose for reshape, transpose and reshape where axes that are merged are split alike.

    Args:
        graph: bound.
    """
    if not (graph.has(reshape) and graph.has(transpose)):
        return graph
    makers = graph.producers()
    found: dict[Node, tuple[Value, tuple[int, ...]]] = {}
    for node in graph.nodes:
        inner = _made_by(transpose, node.inputs[0], makers) if node.op is reshape else None
        outer = None if inner is None else _made_by(reshape, inner.inputs[0], makers)
        if inner is None or outer is None:
            continue
        x, y, merged = outer.inputs[0], node.outputs[0], outer.outputs[0]
        assert x is not None and y is not None and merged is not None
        perm = _split(x.type.sizes, merged.type.sizes, inner.attributes["perm"], y.type.sizes)
        if perm is not None:
            found[node] = x, perm
    if not found:
        return graph

    def replace(builder: GraphBuilder, node: Node, new: Mapping[Value, Value]) -> Sequence[Value]:
        x, perm = found[node]
        return (transpose(new[x], perm=perm, name=node.name),)

    return eliminate_dead_code(replace_nodes(graph, found.keys(), replace), extras=False)


def _made_by(op: object, value: Value | None, makers: dict[Value, Node]) -> Node | None:
    """The node that makes a value, if it is one of ``op``."""
    node = None if value is None else makers.get(value)
    return node if node is not None and node.op is op else None


def _split(
    x: tuple[int, ...], merged: tuple[int, ...], perm: tuple[int, ...], y: tuple[int, ...]
) -> tuple[int, ...] | None:
    """What transposes ``x`` to ``y``; None where merged axes don't lead, before and behind, or are split otherwise."""
    count = len(x) - len(merged) + 1
    leads = count > 1 and perm and perm[0] == 0 and prod(x[:count]) == merged[0] and x[count:] == merged[1:]
    if not leads or y != (*x[:count], *(merged[axis] for axis in perm[1:])):
        return None
    return (*range(count), *(axis - 1 + count for axis in perm[1:]))
