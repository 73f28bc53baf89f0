"""``df.straight_through``: gradients go through what quantizes and dequantizes, as training aware of it wants."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..errors import InputError
from ..host import checks
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import Array, float32
from ..ir.value import Value
from ..model import Model
from ..ops.quantized import dequantize, quantize
from ..ops.rules.quantized import limits

_SHOWN = (quantize, dequantize, ops.reshape)


def straight_through(model: Model) -> Model:
    """A model that gives the same results and can be trained through its pairs of QuantizeLinear and DequantizeLinear.

    The gradient of a pair is 1 where x is rounded to a step and 0 where it is kept in the range (arXiv:1308.3432), as
    in PyTorch's fake quantization. Stored floats that are quantized become parameters. Scales and zero points stay. A
    file is saved with the nodes that it had.

    Args:
        model: in QDQ form; it is not changed.

    Raises:
        InputError: it has no such pair.
    """
    checks.instance("model", model, Model)
    graph = model.graph_with_data()
    pairs = _Pairs(graph)
    trained = {v: dataclasses.replace(data, role="parameter", trainable=True) for v, data in pairs.stored.items()}
    changed = rewrite(graph, pairs.replace, initializers=trained)
    if not pairs.count:
        raise InputError("the model has no value that is quantized and then dequantized with the same scale")
    return Model(changed, aliases=model.aliases, source=model.source, metadata=model.metadata)


class _Pairs:
    """Finds pairs while a graph is copied.

    Attributes:
        stored: float initializers that are quantized, with their data.
        count: pairs found.
    """

    def __init__(self, graph: Graph) -> None:
        read = {node.inputs[0] for node in graph.nodes if node.op is quantize}
        self.count = 0
        self._graph, self._makers, self._readers = graph, graph.producers(), graph.readers()
        self.stored = {
            v: data
            for v, data in graph.initializers.items()
            if v in read and v.type.elements > 1 and not self._is_of_groups(v, data.array)
        }
        self._quantized: dict[Value, tuple[Node, Value]] = {}  # by the integers: the node, and its new x

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        """See ``Replace``."""
        result = node.outputs[0] if node.outputs else None
        if node.op is quantize and result is not None and inputs[0] is not None:
            self._quantized[result] = node, inputs[0]
        source = node.inputs[0] if node.op is dequantize else None
        found = None if source is None else self._quantized.get(source)
        if found is None or result is None or not self._alike(found[0], node):
            return None
        self.count += 1
        x, (scale, zero) = found[1], inputs[1:]
        assert scale is not None and zero is not None
        low, high = limits(zero.type.dtype)
        axis = node.attributes["axis"] % x.type.rank if x.type.rank else 0
        along = [_along(v, x, axis) for v in (scale, ops.cast(zero, to=float32))]
        ends = [ops.mul(ops.sub(end, along[1]), along[0]) for end in (low - 0.5, high + 0.5)]
        kept = ops.minimum(ops.maximum(x, ends[0]), ends[1])
        rounded = builder.add(node.op, inputs, node.attributes, name=node.name).outputs[0]
        assert rounded is not None
        y = ops.add(kept, ops.stop_gradient(ops.sub(rounded, kept)))
        builder.rename(y, result.name)
        return (y,)

    def _is_of_groups(self, value: Value, array: Array) -> bool:
        """Whether these are the ones or zeros of an instance norm that an exporter wrote for a group norm.

        Its channels are groups, by a reshape before it; what is learned of the group norm is applied behind it.
        """
        flat = array.reshape(-1)
        if flat[0] not in (0, 1) or (flat != flat[0]).any():
            return False
        last = {value}
        for node in self._graph.nodes:  # in their order
            if node.op in _SHOWN and node.inputs[0] in last:
                last.update(v for v in node.outputs if v is not None)
        users = {node for v in last for node in self._readers.get(v, ()) if node.op not in _SHOWN}
        return bool(users) and all(
            node.op in (ops.mul, ops.add) and any(self._normalizes_groups(v) for v in node.inputs if v not in last)
            for node in users
        )

    def _normalizes_groups(self, value: Value | None) -> bool:
        maker = None if value is None else self._makers.get(value)
        if maker is not None and maker.op is ops.mul:  # by the ones
            return any(self._normalizes_groups(v) for v in maker.inputs)
        if maker is None or maker.op is not ops.layer_norm:
            return False
        source = maker.inputs[0]
        while source is not None and (before := self._makers.get(source)) is not None and before.op in _SHOWN:
            if before.op is ops.reshape:
                return True
            source = before.inputs[0]
        return False

    def _alike(self, first: Node, second: Node) -> bool:
        """Whether two nodes have the same scale and zero point along the same axis."""
        same = all(self._same(a, b) for a, b in zip(first.inputs[1:], second.inputs[1:], strict=True))
        return same and first.attributes["axis"] == second.attributes["axis"]

    def _same(self, a: Value | None, b: Value | None) -> bool:
        """Whether two values are one, or stored and equal, in whatever shape."""
        one, two = self._stored(a), self._stored(b)
        return a is b or (one is not None and two is not None and one.dtype == two.dtype and np.array_equal(one, two))

    def _stored(self, value: Value | None) -> Array | None:
        while value is not None and (maker := self._makers.get(value)) is not None and maker.op is ops.reshape:
            value = maker.inputs[0]
        data = None if value is None else self._graph.initializers.get(value)
        return None if data is None else data.array.reshape(-1)


def _along(vector: Value, x: Value, axis: int) -> Any:
    """A scale or zero point as it broadcasts against x."""
    if vector.type.rank == 0:
        return vector
    count = vector.type.shape[0]
    return ops.reshape(vector, shape=tuple(count if i == axis else 1 for i in range(x.type.rank)))
