"""Graph -> Graph without nodes whose result is their operand: inactive dropout, empty pads, views of one shape."""

from __future__ import annotations

from ..ir.graph import Graph, Node
from ..ir.operand import is_contiguous
from ..ir.rewrite import with_values
from ..ir.types import contiguous_strides
from ..ir.value import Value
from ..ops.shape import pad
from .random_keys import is_inactive


def remove_identities(graph: Graph) -> Graph:
    """The graph without nodes that only pass their operand on; patterns of fused ops then match across them.

    Args:
        graph: bound.
    """
    found: dict[Value, Value] = {}
    for node in graph.nodes:
        if _is_identity(node):
            x, y = node.inputs[0], node.outputs[0]
            assert x is not None and y is not None
            found[y] = found.get(x, x)
    return with_values(graph, found) if found else graph


def _is_identity(node: Node) -> bool:
    if is_inactive(node) or (node.op is pad and not any(node.attributes["pads"])):
        return True
    x, y = node.inputs[0] if node.inputs else None, node.outputs[0]
    if node.op.view is None or node.op.effects != "none" or x is None or y is None or x.type != y.type:
        return False
    view = node.view_of(contiguous_strides(x.type.sizes))
    return view is not None and view.offset == 0 and is_contiguous(y.type.sizes, view.strides)
