"""Graph -> Graph: a bias that 32-bit sums of products can't take is added to floats.

``..._requantized`` adds a bias of floats in units of its operands' scales to the sums of int32. One of so many units
that int32 barely holds them would be cut off, or the sum would wrap: where a row of weights is all but zero, or what it
multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Initializer, Node
from ...ir.kernel import Kernel
from ...ir.rewrite import rewrite
from ...ir.types import Array, float32
from ...ir.value import Value
from ...ops.activation import relu
from ...ops.quantized import conv_dequantized, conv_requantized, matmul_dequantized, matmul_requantized, quantize
from ...ops.rules.channels_last import first_perm, last_perm
from ...ops.shape import transpose

_REQUANTIZED, _BIAS = (matmul_requantized, conv_requantized), 8  # where the bias is among the inputs
MOST_UNITS = 2**30  # of a bias: the other half of an int32 is left to 32,768 products of bytes


def add_large_biases(graph: Graph, kernels: Mapping[str, tuple[Kernel, ...]]) -> Graph:
    """The graph with requantized products whose stored bias has more units as ones of floats, which are then rounded.

    Args:
        graph: bound, with constants folded.
        kernels: the reference's, by op: of views of constants, which aren't folded.
    """

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        return (_apart(node, inputs),) if node in large else None

    with_bias = [node for node in graph.nodes if node.op in _REQUANTIZED and len(node.inputs) > _BIAS]
    if not with_bias:
        return graph
    known = _Stored(graph, kernels)
    large = {node for node in with_bias if _is_large(node, known)}
    return rewrite(graph, replace) if large else graph


class _Stored:
    """The data of constants and of views of them."""

    def __init__(self, graph: Graph, kernels: Mapping[str, tuple[Kernel, ...]]) -> None:
        self._graph, self._kernels, self._makers = graph, kernels, graph.producers()

    def array(self, value: Value | None) -> Array | None:
        """What a value holds; None where that isn't known."""
        if value is None:
            return None
        data, node = self._graph.initializers.get(value), self._makers.get(value)
        if isinstance(data, Initializer):
            return data.array
        if node is None or node.op.view is None or len(node.inputs) != 1 or node.op.name not in self._kernels:
            return None
        source = self.array(node.inputs[0])
        return None if source is None else np.asarray(self._kernels[node.op.name][0].code(node.attributes, source))


def _is_large(node: Node, known: _Stored) -> bool:
    bias, left, right = (known.array(node.inputs[index]) for index in (_BIAS, 1, 4))
    if bias is None or left is None or right is None or bias.dtype != np.float32:
        return False
    units = np.abs(left.reshape(-1) * right.reshape(-1)).astype(np.float64)  # in float32, as kernels compute them
    return not bool((np.abs(bias.reshape(-1)) <= MOST_UNITS * units).all())


def _apart(node: Node, inputs: Sequence[Value | None]) -> Value:
    """The product in floats with its bias, and what rounds it."""
    x, scale, zero, bias = inputs[0], inputs[6], inputs[7], inputs[_BIAS]
    assert x is not None and bias is not None and bias.type.dtype == float32
    attributes = dict(node.attributes)
    rectified, last = attributes.pop("relu"), attributes.pop("channels_last", False)
    op = conv_dequantized if node.op is conv_requantized else matmul_dequantized
    planar = transpose(x, perm=first_perm(x.type.rank)) if last else x
    y: Value = op(planar, *inputs[1:6], bias, **attributes)
    y = quantize(relu(y) if rectified else y, scale, zero, axis=0)
    return transpose(y, perm=last_perm(x.type.rank)) if last else y
