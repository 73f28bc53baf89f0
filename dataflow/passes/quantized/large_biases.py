"""Graph -> Graph: a bias that 32-bit sums of products can't take is added to floats.

``..._requantized`` adds a bias of floats in units of its operands' scales to the sums of int32. One of so many units
that int32 barely holds them would be cut off, or the sum would wrap: where a row of weights is all but zero, or what it
multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.rewrite import rewrite
from ...ir.types import float32
from ...ir.value import Value
from ...ops.activation import relu
from ...ops.quantized import conv_dequantized, conv_requantized, matmul_dequantized, matmul_requantized, quantize
from ...ops.rules.channels_last import first_perm, last_perm
from ...ops.shape import transpose

MOST_UNITS = 2**30  # of a bias: the other half of an int32 is left to 32,768 products of bytes


def add_large_biases(graph: Graph) -> Graph:
    """The graph with requantized products whose stored bias has more units as ones of floats, which are then rounded.

    Args:
        graph: bound, with constants folded.
    """

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        return (_apart(node, inputs),) if node in large else None

    large = {node for node in graph.nodes if _is_large(graph, node)}
    return rewrite(graph, replace) if large else graph


def _is_large(graph: Graph, node: Node) -> bool:
    if node.op not in (matmul_requantized, conv_requantized) or len(node.inputs) < 9:
        return False
    stored = [graph.initializers.get(v) if v is not None else None for v in (node.inputs[8], *node.inputs[1:5:3])]
    bias, left, right = (None if data is None else data.array.reshape(-1) for data in stored)
    if bias is None or left is None or right is None or bias.dtype != np.float32:
        return False
    units = np.abs(left.astype(np.float32) * right.astype(np.float32)).astype(np.float64)  # as kernels round them
    return not bool((np.abs(bias) <= MOST_UNITS * units).all())


def _apart(node: Node, inputs: Sequence[Value | None]) -> Value:
    """The product in floats with its bias, and what rounds it."""
    x, scale, zero, bias = inputs[0], inputs[6], inputs[7], inputs[8]
    assert x is not None and bias is not None and bias.type.dtype == float32
    attributes = dict(node.attributes)
    rectified, last = attributes.pop("relu"), attributes.pop("channels_last", False)
    op = conv_dequantized if node.op is conv_requantized else matmul_dequantized
    planar = transpose(x, perm=first_perm(x.type.rank)) if last else x
    y: Value = op(planar, *inputs[1:6], bias, **attributes)
    y = quantize(relu(y) if rectified else y, scale, zero, axis=0)
    return transpose(y, perm=last_perm(x.type.rank)) if last else y
