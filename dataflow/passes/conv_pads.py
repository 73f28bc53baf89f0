"""Graph -> Graph without ``pad`` before convolutions, which pad with zeros themselves and copy nothing for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.value import Value
from ..ops.conv import MOST, conv
from ..ops.shape import pad


def pad_in_convs(graph: Graph, mutable: Collection[str] = ()) -> Graph:
    """The graph with convolutions that read what zeros were added to with these among their own pads.

    Args:
        graph: bound.
        mutable: names of initializers whose data may change.
    """
    padded = {node.outputs[0]: node for node in graph.nodes if node.op is pad and _adds_zeros(graph, node, mutable)}
    if not any(node.op is conv and node.inputs[0] in padded for node in graph.nodes):
        return graph
    sources: dict[Value, Value] = {}  # of new values that are padded
    pads: dict[Value, Sequence[int]] = {}

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        x = inputs[0] if inputs else None
        if node.outputs[0] in padded:
            y = builder.again(node, inputs).outputs[0]
            assert x is not None and y is not None
            rank, own = x.type.rank, node.attributes["pads"]
            sources[y], pads[y] = x, (*own[2:rank], *own[rank + 2 :])
            return (y,)
        if node.op is not conv or x not in pads:
            return None
        both = tuple(a + b for a, b in zip(node.attributes["pads"], pads[x], strict=True))
        if max(both) > MOST:
            return None
        return (conv(sources[x], *inputs[1:], **{**node.attributes, "pads": both}, name=node.name),)

    return rewrite(graph, replace)


def _adds_zeros(graph: Graph, node: Node, mutable: Collection[str]) -> bool:
    """True where the node adds zeros to spatial axes and crops nothing."""
    x, value = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    assert x is not None
    rank, pads = x.type.rank, node.attributes["pads"]
    if node.attributes["mode"] != "constant" or min(pads, default=0) < 0 or any(pads[:2]) or any(pads[rank : rank + 2]):
        return False
    if value is None:
        return True
    data = graph.initializers.get(value)
    return data is not None and data.factor is None and value.name not in mutable and not data.array.any()
