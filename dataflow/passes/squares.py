"""Graph -> Graph with x^2 written as x x, which fuses with what is around it, in gradients too."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from ..ir.graph import Graph, Node
from ..ops.arithmetic import mul, pow_


def multiply_squares(graph: Graph, mutable: Collection[str] = ()) -> Graph:
    """The graph with powers whose exponent is the constant 2 as products; both are x^2 rounded once.

    Runs behind ``fuse``, whose patterns have what exporters write.

    Args:
        graph: bound.
        mutable: names of initializers whose data may change.
    """

    def is_square(node: Node) -> bool:
        if node.op is not pow_ or node.inputs[0] is None or node.inputs[1] is None or node.outputs[0] is None:
            return False
        exponent = graph.initializers.get(node.inputs[1])
        if exponent is None or exponent.factor is not None or node.inputs[1].name in mutable:
            return False
        same = node.outputs[0].type == node.inputs[0].type and node.inputs[0].type.dtype.is_float
        return same and node.inputs[1].type.elements == 1 and bool(exponent.array.reshape(-1)[0] == 2)

    squares = {node for node in graph.nodes if is_square(node)}
    if not squares:
        return graph

    def written(node: Node) -> Node:
        x, attributes = node.inputs[0], mul.plain(mul.complete({}))
        origin = node.origin or node.name
        return dataclasses.replace(node, op=mul, inputs=(x, x), attributes=attributes, origin=origin)

    nodes = tuple([written(node) if node in squares else node for node in graph.nodes])
    return dataclasses.replace(graph, nodes=nodes)
