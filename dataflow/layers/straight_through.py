"""``df.straight_through``: gradients go through what quantizes and dequantizes, as training aware of it wants."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..errors import InputError
from ..host import checks
from ..ir.builder import GraphBuilder
from ..ir.edits import in_form
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import Array, float32
from ..ir.value import Value
from ..model import Model
from ..ops import quantized
from ..ops.infer import result as first_result
from ..ops.quantized import dequantize, quantize
from ..ops.rules.quantized import limits
from ..passes.dead_code import eliminate_dead_code

_log = logging.getLogger("dataflow")
_SHOWN = (quantize, dequantize, ops.reshape)
_PRODUCTS = tuple(op for op in quantized.OPS if op not in (quantize, dequantize))
# By integers, which may have the dtype of the first operand.
_CHOOSING = (ops.gather, ops.gather_elements, ops.gather_nd)
_SHIFTING = (
    *(ops.reshape, ops.transpose, ops.slice, *_CHOOSING, ops.concat, ops.copy),
    *(ops.broadcast_to, ops.where, ops.max_pool, ops.maximum, ops.minimum, ops.clip),
)  # give x + c of operands that are each larger by c
_MOVING = (*_SHIFTING, ops.pad, ops.relu)  # give the same numbers of floats as of integers


def straight_through(model: Model) -> Model:
    """A model that gives the same results and can be trained through its pairs of QuantizeLinear and DequantizeLinear.

    The gradient is 1 where a value is rounded to a step and 0 where it is kept in the range (arXiv:1308.3432), as in
    PyTorch's fake quantization; it also passes what only moves or selects integers between the two nodes. Stored floats
    that are quantized become parameters. Scales and zero points stay. A file is saved with the nodes that it had.

    Args:
        model: in QDQ form; it is not changed.

    Raises:
        InputError: it has no such pair.
    """
    checks.instance("model", model, Model)
    graph = model.graph_with_data()
    pairs = _Pairs(graph)
    trained = {v: dataclasses.replace(data, role="parameter", trainable=True) for v, data in pairs.stored.items()}
    copied = rewrite(graph, pairs.replace, initializers=trained)
    changed = eliminate_dead_code(copied, extras=False)
    if not pairs.count:
        raise InputError("the model has no value that is quantized to integers and then dequantized")
    if pairs.ends:
        _log.warning(
            "no gradient passes %d nodes that compute with integers, first %s: those of a file in QDQ form compute "
            "with floats between DequantizeLinear and QuantizeLinear", len(pairs.ends), pairs.ends[0].describe(),
        )  # fmt: skip
    source, changed = in_form(model.source, graph, copied, changed)
    return Model(changed, aliases=model.aliases, source=source, metadata=model.metadata)


@dataclass(frozen=True, slots=True)
class _Rounding:
    """A float in steps, the zero point that was added once it was rounded, that sum, and the ends of the range."""

    scaled: Value
    zero: Value | None
    moved: Value
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class _Steps:
    """Integers as floats that have a gradient: steps from a zero point.

    Attributes:
        steps: float32.
        zero: as a float that broadcasts against them; None where it is zero.
        origin: the zero point as the graph had it, and the axis along which it lies.
    """

    steps: Value
    zero: Value | None
    origin: tuple[Value | None, int]

    @property
    def is_even(self) -> bool:
        """Whether all elements have one zero point, wherever they are moved."""
        return self.zero is None or self.zero.type.rank == 0


class _Pairs:
    """Finds pairs while a graph is copied.

    Those of 8 and 16 bits are two nodes; others, of 4 bits, of scales by block, of floats of 16 bits, are nodes that
    divide, round, keep in the range and cast, and then cast and multiply. Between the two there may be nodes that move
    and select.

    Attributes:
        stored: float initializers that are quantized, with their data.
        count: times that followed integers become floats again.
        ends: nodes that compute with followed integers and have no gradient.
    """

    def __init__(self, graph: Graph) -> None:
        self.count, self.ends = 0, list[Node]()
        self._graph, self._makers, self._readers = graph, graph.producers(), graph.readers()
        self._rounded = {v: found for v in graph.values() if (found := self._rounding(v)) is not None}
        read = {node.inputs[0] for node in graph.nodes if node.op is quantize}
        read |= {self._source(found.scaled) for found in self._rounded.values()}
        self.stored = {
            v: data
            for v, data in graph.initializers.items()
            if v in read and v.type.elements > 1 and not self._is_of_groups(v, data.array)
        }
        self._new: dict[Value, Value] = {}
        self._steps: dict[Value, _Steps] = {}  # by integers that were quantized in one node
        self._floats: dict[Value, Value] = {}  # by others that come of such: the same numbers, with a gradient

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        """See ``Replace``."""
        result = node.outputs[0] if node.outputs else None
        self._new |= {
            old: new for old, new in zip(node.inputs, inputs, strict=True) if old is not None and new is not None
        }
        source = node.inputs[0] if node.inputs else None
        if result is None or source is None:
            return None
        if node.op in _PRODUCTS and any(v in self._steps or v in self._floats for v in node.inputs):
            self.ends.append(node)
        if node.op is quantize:
            return (self._quantized(builder, node, inputs, result),)
        if node.op is dequantize:
            y = self._dequantized(node, source, inputs)
            if y is None:
                return None
            self.count += 1
            builder.rename(y, result.name)
            return (y,)
        if result.type.dtype.is_int:
            self._follow(builder, node, result, inputs)
        elif node.op is ops.cast and result.type.dtype.is_float and (floats := self._numbers(source)) is not None:
            self.count += 1
            return (ops.cast(floats, to=result.type.dtype),)
        return None

    # ---- pairs of two nodes -------------------------------------------------------------------------------

    def _quantized(self, builder: GraphBuilder, node: Node, inputs: Sequence[Value | None], result: Value) -> Value:
        """The integers; enters their steps."""
        integers = builder.add(node.op, inputs, node.attributes, name=node.name, output_names=[result.name]).outputs[0]
        x, scale, origin = inputs
        assert integers is not None and x is not None and scale is not None and origin is not None
        axis = node.attributes["axis"] % x.type.rank if x.type.rank else 0
        zero = self._offset(node.inputs[2], origin, x, axis)
        scaled = ops.div(x, self._scale(node.inputs[1], scale, x, axis))
        exact = ops.cast(integers, to=float32)
        low, high = (float(end) for end in limits(origin.type.dtype))
        ends = (low, high) if zero is None else (ops.sub(low, zero), ops.sub(high, zero))
        steps = _rounded(scaled, ops.round(scaled), ends, exact if zero is None else ops.sub(exact, zero))
        self._steps[result] = _Steps(steps, zero, (node.inputs[2], axis))
        return integers

    def _dequantized(self, node: Node, source: Value, inputs: Sequence[Value | None]) -> Any:
        """The floats of followed integers; None for others."""
        _, scale, origin = inputs
        assert scale is not None and origin is not None
        axis = node.attributes["axis"] % source.type.rank if source.type.rank else 0
        found = self._steps.get(source)
        known = found is not None and self._same(found.origin[0], node.inputs[2])
        if found is not None and known and (found.is_even or found.origin[1] == axis):
            steps: Any = found.steps
        else:
            steps = self._numbers(source)
            if steps is None:
                return None
            zero = self._offset(node.inputs[2], origin, steps, axis)
            steps = steps if zero is None else ops.sub(steps, zero)
        return ops.mul(steps, self._scale(node.inputs[1], scale, steps, axis))

    def _numbers(self, source: Value) -> Any:
        """Followed integers as floats with a gradient; None for others."""
        found = self._steps.get(source)
        if found is None:
            return self._floats.get(source)
        return found.steps if found.zero is None else ops.add(found.steps, found.zero)

    def _offset(self, old: Value | None, zero: Value, x: Value, axis: int) -> Any:
        """A zero point as a float that broadcasts against x; None where it is stored as zero."""
        stored = self._stored(old)
        if stored is not None and not stored.any():
            return None
        return _along(ops.stop_gradient(ops.cast(zero, to=float32)), x, axis)

    def _scale(self, old: Value | None, scale: Value, x: Value, axis: int) -> Any:
        """A scale as it broadcasts against x; no gradient goes through one that is computed of what is quantized."""
        return _along(scale if old in self._graph.initializers else ops.stop_gradient(scale), x, axis)

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
        if scaled is None or moved is None or low is None or high is None:
            return None
        return _Rounding(scaled, zero, moved, low, high)

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
            scaled, moved = self._new[found.scaled], self._new[found.moved]
            shifted = scaled if found.zero is None else ops.add(scaled, self._new[found.zero])
            exact = inputs[0]
            assert exact is not None
            self._floats[result] = _rounded(shifted, moved, (self._new[found.low], self._new[found.high]), exact)
            return
        known = [None if v is None else self._numbers(v) for v in node.inputs]
        if all(floats is None for floats in known):
            return
        first = known[0]
        if node.op is ops.cast and first is not None and result.type.dtype.bits > 8:
            self._floats[result] = first
        elif node.op == ops.sub and first is not None and inputs[1] is not None:
            self._floats[result] = ops.sub(first, ops.cast(inputs[1], to=first.type.dtype))
        elif node.op in _MOVING and not (node.op in _CHOOSING and first is None):
            self._move(builder, node, result, inputs)

    def _move(self, builder: GraphBuilder, node: Node, result: Value, inputs: Sequence[Value | None]) -> None:
        """Enters what a node gives that moves or selects integers: steps, where all have one zero point."""
        moved = {
            index: old
            for index, old in enumerate(node.inputs)
            if old is not None and old.type.dtype == result.type.dtype and not (index and node.op in _CHOOSING)
        }
        steps = {index: found for index, old in moved.items() if (found := self._steps.get(old)) is not None}
        first = next(iter(steps.values()), None)
        alike = len(steps) == len(moved) and all(
            found.is_even and first is not None and self._same(found.origin[0], first.origin[0])
            for found in steps.values()
        )
        operands = [*inputs]
        if first is not None and alike and node.op in _SHIFTING:
            for index, found in steps.items():
                operands[index] = found.steps
            self._steps[result] = _Steps(_only(builder, node, operands), first.zero, first.origin)
            return
        floats = {index: self._numbers(old) for index, old in moved.items()}
        like = next(found for found in floats.values() if found is not None).type.dtype
        for index, found in floats.items():
            new = inputs[index]
            assert new is not None
            operands[index] = ops.cast(new, to=like) if found is None else found
        self._floats[result] = _only(builder, node, operands)

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

    def _same(self, a: Value | None, b: Value | None) -> bool:
        """Whether two values are one, or stored and equal, in whatever shape."""
        one, two = self._stored(a), self._stored(b)
        return a is b or (one is not None and two is not None and one.dtype == two.dtype and np.array_equal(one, two))

    def _stored(self, value: Value | None) -> Array | None:
        while value is not None and (maker := self._makers.get(value)) is not None and maker.op is ops.reshape:
            value = maker.inputs[0]
        data = None if value is None else self._graph.initializers.get(value)
        return None if data is None else data.array.reshape(-1)


def _rounded(scaled: Value, steps: Value, ends: tuple[Any, Any], exact: Value) -> Any:
    """``exact``, with the gradient of ``scaled`` where the steps to which that was rounded lie between the ends.

    The difference of a float and the integer it is rounded to is exact, so the sum is that integer.
    """
    inside = ops.logical_and(ops.greater_equal(steps, ends[0]), ops.less_equal(steps, ends[1]))
    kept = ops.where(inside, scaled, 0.0)
    return ops.add(kept, ops.stop_gradient(ops.sub(exact, kept)))


def _only(builder: GraphBuilder, node: Node, inputs: Sequence[Value | None]) -> Value:
    """The first result of a node of the same op for other inputs."""
    return first_result(builder.add(node.op, inputs, node.attributes))


def _along(vector: Value, x: Value, axis: int) -> Any:
    """A scale or zero point as it broadcasts against x."""
    if vector.type.rank == 0:
        return vector
    count = vector.type.shape[0]
    return ops.reshape(vector, shape=tuple(count if i == axis else 1 for i in range(x.type.rank)))
