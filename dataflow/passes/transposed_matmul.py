"""Swaps the operands of a product where only its transpose is read: (A B)' = B' A'.

The gradient of a weight that is stored transposed, as PyTorch's linear layers are, would else be computed and then
copied into the weight's layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.value import Value
from ..ops.linalg import matmul, swapped
from ..ops.shape import transpose
from .dead_code import eliminate_dead_code


def swap_transposed_matmuls(graph: Graph) -> Graph:
    """The graph with swapped operands for every matmul whose only reader swaps its last two axes."""
    if not (graph.has(matmul) and graph.has(transpose)):
        return graph
    makers, readers = graph.producers(), graph.readers()
    kept = {*graph.outputs.values(), *(s.after for s in graph.states)}
    swaps: dict[Node, Node] = {}  # the transpose -> the product
    for node in graph.nodes:
        value = node.inputs[0] if node.op is transpose else None
        maker = makers.get(value) if value is not None else None
        alone = maker is not None and value not in kept and readers[value] == [node]  # type: ignore[index]
        if alone and maker is not None and maker.op is matmul and _alike(maker) and _swaps_last_axes(node):
            swaps[node] = maker
    if not swaps:
        return graph
    operands: dict[Node, list[Value]] = {}
    products = set(swaps.values())

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if node in products:
            operands[node] = [v for v in inputs if v is not None]
        elif node in swaps:
            a, b = operands[swaps[node]]
            return (matmul(swapped(b), swapped(a), name=node.name),)
        return None

    return eliminate_dead_code(rewrite(graph, replace))


def _alike(product: Node) -> bool:
    """True where the operands have one dtype: a second one of 16 bits can't be the first."""
    return len({v.type.dtype for v in product.inputs if v is not None}) == 1


def _swaps_last_axes(node: Node) -> bool:
    """True when a transpose swaps the last two axes and nothing else."""
    perm = node.attributes["perm"]
    rank = len(perm)
    return rank >= 2 and tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)
