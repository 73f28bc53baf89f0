"""Graph -> Graph: a result that only a cast to 16 bits reads is stored in 16 bits by the kernel that computes it.

The kernel computes in float32 and rounds as the cast would, so the bits are the same, and float32 is neither written
nor read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.types import bfloat16, float16, float32
from ...ir.value import Value
from ...ops.cast import cast

_HALVES = (bfloat16, float16)


def round_results(graph: Graph, targets: Targets, refused: Collection[str] = ()) -> Graph:
    """The graph without casts whose operand is rounded where it is computed.

    It comes last: the type of such a result is not the one that its op infers.

    Args:
        graph: bound.
        targets: the devices and their kernels.
        refused: names of nodes that a device doesn't run after all: others would not take such results.
    """
    makers, readers = graph.producers(), graph.readers()
    kept = {*graph.outputs.values(), *(state.after for state in graph.states)}
    stored: dict[Node, Node] = {}  # the maker -> as it stores the result of the cast
    casts = set()
    for node in graph.nodes:
        value = node.inputs[0] if node.op is cast else None
        maker = None if value is None else makers.get(value)
        if value is None or maker is None or value in kept or readers[value] != [node] or maker.name in refused:
            continue
        (result,) = node.outputs
        assert result is not None
        if maker.op is cast or value.type.dtype != float32 or result.type.dtype not in _HALVES:
            continue
        found = _storing(stored.get(maker, maker), value, result, targets)
        if found is not None:
            stored[maker] = found
            casts.add(node)
    if not casts:
        return graph
    nodes = tuple([stored.get(node, node) for node in graph.nodes if node not in casts])
    return dataclasses.replace(graph, nodes=nodes)


def _storing(maker: Node, value: Value, result: Value, targets: Targets) -> Node | None:
    """The node with ``result`` in place of ``value``, if its device has a kernel that names such results."""
    index = maker.outputs.index(value)
    outputs = tuple([result if v is value else v for v in maker.outputs])
    made = dataclasses.replace(maker, outputs=outputs)
    device = None if maker.bodies or maker.op.view is not None else targets.taker(made, maker)
    for kernel in () if device is None else targets.kernels[device].get(maker.op.name, ()):
        if index < len(kernel.outputs) and kernel.output_spec(index).dtypes and kernel.refuses(made) is None:
            return made
    return None
