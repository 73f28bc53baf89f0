"""The pass ``squares``: x ** 2 becomes x * x, which every device computes without a power function."""

from __future__ import annotations

from collections.abc import Iterable

from dataflow import Graph, GraphBuilder, Node, Value, ops
from dataflow.plugin import Context, Pass, hookimpl, rewrite


def squares(graph: Graph, context: Context) -> Graph:
    """The graph with a product for each power whose exponent is the constant 2.

    Graphs are immutable: ``rewrite`` copies one node by node, and a node for which a function returns values is
    replaced by them.
    """
    constants = {v: data for v, data in graph.initializers.items() if v.name not in context.mutable}
    single = {v: data.array for v, data in constants.items() if data.factor is None and data.array.size == 1}
    twos = {v for v, array in single.items() if (array == 2).all()}

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> list[Value] | None:
        if node.op is not ops.pow or node.inputs[1] not in twos:
            return None
        x, result = inputs[0], node.outputs[0]
        if x is None or result is None or x.type != result.type:  # the exponent may broadcast the base
            return None
        return [ops.mul(x, x)]

    return rewrite(graph, replace)


@hookimpl
def dataflow_passes() -> Iterable[Pass]:
    """Before constants are folded, so that the exponent is eliminated where nothing else reads it."""
    return [Pass("squares", "simplify", squares, before=("dead_code",))]
