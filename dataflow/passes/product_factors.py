"""Moves a factor from the larger operand of a product to the smaller one: A (c B) = (c A) B.

Exporters scale both the queries and the keys of attention. Of a decoder with a cache there is one query, and scaling
all keys would cost more than the product.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import float32, float64
from ..ir.value import Value
from ..ops.arithmetic import mul
from ..ops.fused import matmul_bias, matmul_bias_relu
from ..ops.linalg import matmul
from .dead_code import eliminate_dead_code

_PRODUCTS = (matmul, matmul_bias, matmul_bias_relu)


def move_product_factors(graph: Graph, mutable: Collection[str] = ()) -> Graph:
    """The graph with constant factors of products on their smaller operands.

    Only factors of at most one move, so that nothing overflows that did not before.

    Args:
        graph: bound.
        mutable: names of initializers whose data may change.
    """
    if not (graph.has(mul) and graph.has(*_PRODUCTS)):
        return graph
    makers, readers = graph.producers(), graph.readers()
    kept = {*graph.outputs.values(), *(s.after for s in graph.states)}
    moved: dict[Node, tuple[int, Value, Value]] = {}  # product -> number of the operand, what is scaled, by what
    for node in graph.nodes:
        if node.op not in _PRODUCTS:
            continue
        for index in (0, 1):
            large, small = node.inputs[index], node.inputs[1 - index]
            assert large is not None and small is not None
            maker = makers.get(large)
            if maker is None or maker.op is not mul or large in kept or readers[large] != [node]:
                continue
            found = _scaled(graph, maker, mutable)
            alike = small.type.dtype == large.type.dtype  # a weight may be stored in fewer bits than it is read in
            if found is not None and alike and small.type.elements < large.type.elements and node not in moved:
                moved[node] = index, *found
    if not moved:
        return graph
    new: dict[Value, Value] = {}

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        new.update({old: v for old, v in zip(node.inputs, inputs, strict=True) if old is not None and v is not None})
        if node not in moved:
            return None
        index, plain, factor = moved[node]
        small = inputs[1 - index]
        assert small is not None
        operands = [new[plain], mul(small, new[factor])]
        given = [*(operands if index == 0 else operands[::-1]), *inputs[2:]]
        names = [None if v is None else v.name for v in node.outputs]
        return builder.add(node.op, given, node.attributes, name=node.name, output_names=names).outputs

    return eliminate_dead_code(rewrite(graph, replace))


def _scaled(graph: Graph, node: Node, mutable: Collection[str]) -> tuple[Value, Value] | None:
    """What a node multiplies by a constant number of at most one, and that number; None where it does not."""
    for plain, factor in (node.inputs, node.inputs[::-1]):
        assert plain is not None and factor is not None
        data = graph.initializers.get(factor)
        if data is None or factor.name in mutable or factor.type.elements != 1:
            continue
        number = float(data.array.reshape(-1)[0])
        alike = plain.type == node.outputs[0].type if node.outputs[0] is not None else False
        if alike and plain.type.dtype in (float32, float64) and 0 < math.fabs(number) <= 1:
            return plain, factor
    return None
