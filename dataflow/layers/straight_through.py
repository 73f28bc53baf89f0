"""``df.straight_through``: gradients go through what quantizes and dequantizes, as training aware of it wants."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
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
from ..passes.dead_code import eliminate_dead_code

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
    changed = eliminate_dead_code(rewrite(graph, pairs.replace, initializers=trained))
    if not pairs.count:
        raise InputError(
            "the model has no value that is quantized to integers and then dequantized with the same scale"
        )
    return Model(changed, aliases=model.aliases, source=model.source, metadata=model.metadata)


@dataclass(frozen=True, slots=True)
class _Rounding:
    """A float in steps, the zero point that was added to it once it was rounded, and the ends of the range."""

    scaled: Value
    zero: Value | None
    low: Value
    high: Value


class _Pairs:
    """Finds pairs while a graph is copied.

    Those of 8 and 16 bits are two nodes; others, of 4 bits, of scales by block, of floats of 16 bits, are nodes that
    divide, round, keep in the range and cast, and then cast and multiply.

    Attributes:
        stored: float initializers that are quantized, with their data.
        count: pairs found.
    """

    def __init__(self, graph: Graph) -> None:
        self.count = 0
        self._graph, self._makers, self._readers = graph, graph.producers(), graph.readers()
        self._rounded = {v: found for v in graph.values() if (found := self._rounding(v)) is not None}
        read = {node.inputs[0] for node in graph.nodes if node.op is quantize}
        read |= {self._source(found.scaled) for found in self._rounded.values()}
        self.stored = {
            v: data
            for v, data in graph.initializers.items()
            if v in read and v.type.elements > 1 and not self._is_of_groups(v, data.array)
        }
        self._quantized: dict[Value, tuple[Node, Value]] = {}  # by the integers: the node, and its new x
        self._new: dict[Value, Value] = {}
        self._floats: dict[Value, Value] = {}  # by integers: the same numbers as floats, with a gradient

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        """See ``Replace``."""
        result = node.outputs[0] if node.outputs else None
        self._new |= {
            old: new for old, new in zip(node.inputs, inputs, strict=True) if old is not None and new is not None
        }
        if result is not None and result.type.dtype.is_int:
            self._follow(builder, node, result, inputs)
        source = node.inputs[0] if node.op is ops.cast else None
        if result is not None and result.type.dtype.is_float and source is not None and source in self._floats:
            self.count += 1
            return (ops.cast(self._floats[source], to=result.type.dtype),)
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

    # ---- pairs of several nodes ---------------------------------------------------------------------------

    def _rounding(self, value: Value) -> _Rounding | None:
        """What was rounded, where a value is a cast to integers of what was kept in their range."""
        made = self._makers.get(value)
        kept = None if made is None or made.op is not ops.cast or not value.type.dtype.is_int else made.inputs[0]
        clip = None if kept is None else self._makers.get(kept)
        if kept is None or clip is None or clip.op is not ops.clip or len(clip.inputs) < 3:
            return None
        moved, low, high = clip.inputs
        maker, zero = None if moved is None else self._makers.get(moved), None
        if maker is not None and maker.op is ops.add:
            first, zero = maker.inputs
            maker = None if first is None else self._makers.get(first)
        scaled = maker.inputs[0] if maker is not None and maker.op is ops.round else None
        return None if scaled is None or low is None or high is None else _Rounding(scaled, zero, low, high)

    def _source(self, value: Value | None) -> Value | None:
        """What was divided by a scale."""
        maker = None if value is None else self._makers.get(value)
        while maker is not None and maker.op in (ops.cast, ops.div):
            value = maker.inputs[0]
            maker = None if value is None else self._makers.get(value)
        return value

    def _follow(self, builder: GraphBuilder, node: Node, result: Value, inputs: Sequence[Value | None]) -> None:
        """Enters the floats of integers that are a pair's, or come of them."""
        if result in self._rounded:
            found = self._rounded[result]
            scaled, low, high = (self._new[v] for v in (found.scaled, found.low, found.high))
            moved = scaled if found.zero is None else ops.add(scaled, self._new[found.zero])
            kept = ops.minimum(ops.maximum(moved, ops.sub(low, 0.5)), ops.add(high, 0.5))
            rounded = inputs[0]
            assert rounded is not None
            self._floats[result] = ops.add(kept, ops.stop_gradient(ops.sub(rounded, kept)))
        source = node.inputs[0] if node.inputs else None
        floats = None if source is None else self._floats.get(source)
        if floats is None:
            return
        if node.op is ops.cast and result.type.dtype.bits > 8:
            self._floats[result] = floats
        elif node.op == ops.sub and inputs[1] is not None:
            self._floats[result] = ops.sub(floats, ops.cast(inputs[1], to=floats.type.dtype))
        elif node.op in (ops.reshape, ops.transpose):
            view = builder.add(node.op, [floats, *inputs[1:]], node.attributes).outputs[0]
            assert view is not None
            self._floats[result] = view

    # ---- which stored floats become parameters ------------------------------------------------------------

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
