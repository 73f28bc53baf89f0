"""Transposes the operands of a concat of which only a transpose is read that would be copied: one copy is enough.

The gradient of queries, keys and values that one product gives is such a concat, transposed to the product's layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.value import Value
from ..ops.shape import concat, reshape, transpose
from .dead_code import eliminate_dead_code


def transpose_before_concat(graph: Graph) -> Graph:
    """The graph with ``concat`` behind ``transpose`` where all readers reshape what they can't have as a view."""
    if not (graph.has(concat) and graph.has(transpose)):
        return graph
    makers, readers = graph.producers(), graph.readers()
    kept = {*graph.outputs.values(), *(s.after for s in graph.states)}
    moved: dict[Node, Node] = {}  # the transpose -> the concat
    for node in graph.nodes:
        value = node.inputs[0] if node.op is transpose else None
        maker = makers.get(value) if value is not None else None
        if maker is None or maker.op is not concat or value in kept or readers[value] != [node]:  # type: ignore[index]
            continue
        if _rows_stay(node) and not kept.intersection(node.outputs) and _copied(node, readers[node.outputs[0]]):  # type: ignore[index]
            moved[node] = maker
    if not moved:
        return graph
    operands: dict[Node, list[Value]] = {}
    joined = set(moved.values())

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if node in joined:
            operands[node] = [v for v in inputs if v is not None]
        elif node in moved:
            maker, perm = moved[node], node.attributes["perm"]
            axis = maker.attributes["axis"] % len(perm)
            transposed = [transpose(v, perm=perm) for v in operands[maker]]
            return (concat(*transposed, axis=perm.index(axis), name=node.name),)
        return None

    return eliminate_dead_code(rewrite(graph, replace))


def _rows_stay(node: Node) -> bool:
    """Whether the last axis of a transpose stays: whole rows are moved then."""
    perm = node.attributes["perm"]
    return len(perm) > 1 and perm[-1] == len(perm) - 1


def _copied(node: Node, readers: Sequence[Node]) -> bool:
    """Whether a transposed contiguous value has readers, and all reshape it to what is no view of it."""
    source = node.inputs[0]
    assert source is not None
    sizes = source.type.sizes
    strides = [1, *itertools.accumulate(sizes[:0:-1], lambda a, b: a * b)][::-1]
    own = tuple(strides[axis] for axis in node.attributes["perm"])
    return bool(readers) and all(
        reader.op is reshape and reader.op.view is not None and reader.op.view(reader, own) is None
        for reader in readers
    )
