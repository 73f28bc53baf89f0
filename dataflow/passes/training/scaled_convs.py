"""Graph -> Graph: batch norm with fixed statistics scales the weight of the convolution before it, in training too.

    scale (conv(x, w) - mean) / deviation + bias = conv(x, w scale / deviation) + (bias - mean scale / deviation)

A weight has few elements beside what a convolution gives, which is then neither written nor kept for backward, and
what follows fuses with the convolution. The gradient of ``scale`` comes from that of the scaled weight, which the
gradient of w is computed from: nothing of the size of an image is read for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.rewrite import rewrite
from ...ir.types import float32
from ...ir.value import Value
from ...ops.arithmetic import add, mul, reciprocal, sqrt, sub
from ...ops.conv import conv
from ...ops.norm import batch_norm
from ...ops.shape import reshape


def scale_convs(graph: Graph, mutable: Collection[str]) -> Graph:
    """The graph with ``conv`` of scaled weights for each convolution of float32 that only a batch norm reads.

    Args:
        graph: bound, yet to be differentiated.
        mutable: names of initializers that some program changes. Weights must be among them: the gradient of another
            would be computed for nothing but the scale's. Statistics must not.
    """
    makers, readers = graph.producers(), graph.readers()
    kept = {*graph.outputs.values(), *(s.after for s in graph.states)}

    def stays(value: Value | None) -> bool:
        return value in graph.initializers and value is not None and value.name not in mutable

    def is_scaled(node: Node) -> bool:
        x = node.inputs[0] if node.op is batch_norm else None
        maker = makers.get(x) if x is not None else None
        if x is None or maker is None or maker.op is not conv or x in kept or readers[x] != [node]:
            return False
        weight = maker.inputs[1]
        trained = weight in graph.initializers and weight is not None and weight.name in mutable
        return x.type.dtype == float32 and trained and all(map(stays, node.inputs[3:]))

    scaled = {node for node in graph.nodes if is_scaled(node)}
    if not scaled:
        return graph
    convs = {makers[node.inputs[0]] for node in scaled}  # type: ignore[index]
    operands: dict[Value, tuple[Node, list[Value | None]]] = {}  # by what a convolution gives

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if node in convs:
            made = builder.again(node, inputs)
            assert made.outputs[0] is not None
            operands[made.outputs[0]] = node, inputs
            return made.outputs
        if node not in scaled:
            return None
        x, scale, bias, mean, variance = inputs
        assert x is not None and mean is not None and variance is not None
        plain, (image, weight, shift) = operands[x][0], (*operands[x][1], None)[:3]
        assert weight is not None
        factor = mul(scale, reciprocal(sqrt(add(variance, node.attributes["epsilon"]))))
        centre = mean if shift is None else sub(mean, shift)
        column = reshape(factor, shape=(factor.type.sizes[0], *[1] * (weight.type.rank - 1)))
        given = [image, mul(weight, column), sub(bias, mul(centre, factor))]
        names = [None if v is None else v.name for v in node.outputs]
        return builder.add(conv, given, plain.attributes, name=plain.name, output_names=names).outputs

    made = rewrite(graph, replace)
    read = made.readers()
    nodes = tuple(node for node in made.nodes if node.outputs[0] not in operands or node.outputs[0] in read)
    return dataclasses.replace(made, nodes=nodes)
