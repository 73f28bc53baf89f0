"""Between which numbers a graph's values lie, and whether they sum to 1 along an axis.

It shows that an output is a probability, whatever computes it. What isn't known is taken to be any number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ...ir.graph import Graph, Node
from ...ir.value import Value

Interval = tuple[float, float]
_ANY: Interval = (-math.inf, math.inf)
_UNIT: Interval = (0.0, 1.0)
_DEEPEST = 100  # nodes behind each other that are looked at
_LARGEST = 4096  # elements of a constant that are looked at
_NEAR = 1e-5  # of a sum from 1
_LARGE = 700.0  # of which the exponential is finite

# Ops whose result has elements of their first operand alone.
MOVES = frozenset({"reshape", "transpose", "slice", "gather", "broadcast_to", "copy", "stop_gradient", "cast"})
_FIXED: Mapping[str, Interval] = {
    "sigmoid": _UNIT, "softmax": _UNIT, "hard_sigmoid": _UNIT, "softplus": (0.0, math.inf), "relu": (0.0, math.inf),
    "abs": (0.0, math.inf), "sqrt": (0.0, math.inf), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0), "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0), "log_softmax": (-math.inf, 0.0),
}  # fmt: skip
_KEPT = frozenset({"reduce_max", "reduce_min", "reduce_mean"})


class Intervals:
    """What is known of the values of a graph, worked out when it is asked for.

    Args:
        graph: has the constants' data; parameters, which training changes, are any number.
    """

    def __init__(self, graph: Graph) -> None:
        self._makers = graph.producers()
        self._constants = {
            value: data.array
            for value, data in graph.initializers.items()
            if data.role == "constant" and not data.trainable and data.factor is None and data.array.size <= _LARGEST
        }
        self._known: dict[Value, Interval] = {}
        self._sums: dict[tuple[Value, int], float] = {}

    def is_probability(self, value: Value) -> bool:
        """Whether all elements are from 0 to 1, and not for being all one number."""
        low, high = self.of(value)
        return value.type.dtype.is_float and low >= 0.0 and high <= 1.0 + _NEAR and low < high

    def is_distribution(self, value: Value) -> bool:
        """Whether the elements of each sample are from 0 on and sum to 1 along some axis."""
        return self.of(value)[0] >= 0.0 and any(
            abs(self._sum(value, axis, 0) - 1.0) < _NEAR for axis in range(1, value.type.rank)
        )

    def of(self, value: Value, depth: int = 0) -> Interval:
        """The least and the largest that an element can be; ``depth`` is that of nodes behind it that are looked at."""
        found = self._known.get(value)
        if found is None:
            array = self._constants.get(value)
            node = self._makers.get(value)
            if array is not None:
                found = _of_array(array)
            elif node is None or depth > _DEEPEST or node.outputs[0] is not value:
                found = _ANY
            else:
                found = self._of_node(node, depth + 1)
            self._known[value] = found
        return found

    def _of_node(self, node: Node, depth: int) -> Interval:
        name = node.op.name
        given = [_ANY if v is None else self.of(v, depth) for v in node.inputs]
        if name in _FIXED:
            return _FIXED[name]
        if name == "exp":
            return math.exp(min(given[0][0], _LARGE)), math.exp(given[0][1]) if given[0][1] < _LARGE else math.inf
        if name in MOVES or name in _KEPT:
            return given[0] if keeps_numbers(node) else _ANY
        if name in ("concat", "where"):
            return _hull(given[1:] if name == "where" else given)
        if name in _BINARY:
            return _UNIT if name == "div" and self._is_share(node, depth) else _BINARY[name](given[0], given[1])
        if name == "neg":
            return -given[0][1], -given[0][0]
        if name == "clip":
            x, least, most = (*given, _ANY)[:3]
            low = x if node.inputs[1] is None else _BINARY["maximum"](x, least)
            return low if len(node.inputs) < 3 or node.inputs[2] is None else _BINARY["minimum"](low, most)
        return _ANY

    def _is_share(self, node: Node, depth: int) -> bool:
        """Whether it divides numbers from 0 on by their sum, to which a number from 0 on may be added."""
        share, total = node.inputs[:2]
        maker = self._makers.get(total) if total is not None else None
        if share is None or maker is None or self.of(share, depth)[0] < 0.0:
            return False
        if maker.op.name in ("add", "maximum"):
            for one, other in (maker.inputs[:2], maker.inputs[1::-1]):
                found = self._makers.get(one) if one is not None else None
                if found is not None and other is not None and self.of(other, depth)[0] >= 0.0 and _sums(found, share):
                    return True
        return _sums(maker, share)

    def _sum(self, value: Value, axis: int, depth: int) -> float:
        """What the elements along an axis sum to, nearly; NaN where it isn't known."""
        key = value, axis
        if key not in self._sums:
            node = self._makers.get(value)
            known = node is not None and depth <= _DEEPEST and node.outputs[0] is value
            self._sums[key] = self._sum_of(node, axis, depth + 1) if node is not None and known else math.nan
        return self._sums[key]

    def _sum_of(self, node: Node, axis: int, depth: int) -> float:
        value, name = node.outputs[0], node.op.name
        operands = [v for v in node.inputs if v is not None]
        assert value is not None
        rank = value.type.rank

        def below(operand: Value, at: int = axis) -> float:
            return self._sum(operand, at, depth)

        if name == "softmax":
            return 1.0 if int(node.attributes["axis"]) % rank == axis else math.nan
        if name == "exp":
            maker = self._makers.get(operands[0])
            logarithm = maker is not None and maker.op.name == "log_softmax"
            return 1.0 if logarithm and int(maker.attributes["axis"]) % rank == axis else math.nan  # type: ignore[union-attr]
        if name == "div" and self._is_share(node, depth):
            return self._sum_of_shares(node, axis)
        if name in ("add", "sub", "mul", "div"):
            return self._sum_of_two(node, axis, below)
        if name == "concat" and int(node.attributes["axis"]) % rank == axis and len(operands) == 2:
            single = all(v.type.shape[axis] == 1 for v in operands)
            a, b = operands
            both = self._complement(a, b, depth) or self._complement(b, a, depth)
            return 1.0 if single and both else math.nan
        if name == "concat" and int(node.attributes["axis"]) % rank != axis:
            sums = [below(v) for v in operands]
            return sums[0] if all(abs(found - sums[0]) < _NEAR for found in sums) else math.nan
        if name == "clip":
            ends = [None if v is None else self.of(v, depth) for v in (*node.inputs, None)[1:3]]
            gentle = (ends[0] is None or ends[0][1] <= _NEAR) and (ends[1] is None or ends[1][0] >= 1.0 - _NEAR)
            return below(operands[0]) if gentle and self.is_probability(operands[0]) else math.nan
        if name == "reduce_mean":
            axes = {int(a) % operands[0].type.rank for a in node.attributes["axes"]}
            others = [at for at in range(operands[0].type.rank) if node.attributes["keepdims"] or at not in axes]
            return math.nan if others[axis] in axes else below(operands[0], others[axis])
        if name in MOVES and name != "broadcast_to" and keeps_numbers(node):
            at = axis_before(node, axis)
            return math.nan if at is None or not self._keeps(node, at) else below(operands[0], at)
        return math.nan

    def _sum_of_shares(self, node: Node, axis: int) -> float:
        """1 along the axis of the sum, where what is added to that is small."""
        share, total = node.inputs[:2]
        assert share is not None and total is not None
        maker = self._makers[total]
        if maker.op.name != "reduce_sum":
            others = [v for v in maker.inputs if v is not None]
            maker = next(self._makers[v] for v in others if v in self._makers and _sums(self._makers[v], share))
            if not all(self.of(v)[1] <= _NEAR for v in others if v is not maker.outputs[0]):
                return math.nan
        return 1.0 if [int(a) % share.type.rank for a in maker.attributes["axes"]] == [axis] else math.nan

    def _sum_of_two(self, node: Node, axis: int, below: Callable[[Value], float]) -> float:
        """Of sums and differences of values of one shape, and of a value with a number."""
        a, b = node.inputs[:2]
        assert a is not None and b is not None and node.outputs[0] is not None
        shape, name = node.outputs[0].type.shape, node.op.name
        if name in ("add", "sub") and a.type.shape == b.type.shape:
            return below(a) + (1.0 if name == "add" else -1.0) * below(b)
        if name in ("mul", "add") and a.type.shape != shape:
            a, b = b, a
        low, high = self.of(b)
        size = shape[axis]
        if a.type.shape != shape or low != high:
            return math.nan
        if name in ("add", "sub"):
            return below(a) + (low if name == "add" else -low) * size if isinstance(size, int) else math.nan
        return below(a) * (low if name == "mul" else 1.0 / low if low else math.nan)

    def _keeps(self, node: Node, axis: int) -> bool:
        """Whether all elements along an axis of the operand stay, in whatever order."""
        if node.op.name != "gather" or int(node.attributes["axis"]) % node.inputs[0].type.rank != axis:  # type: ignore[union-attr]
            return True
        indices = self._constants.get(node.inputs[1])  # type: ignore[arg-type]
        size = node.inputs[0].type.shape[axis]  # type: ignore[union-attr]
        return indices is not None and isinstance(size, int) and sorted(np.ravel(indices) % size) == list(range(size))

    def _complement(self, value: Value, of: Value, depth: int) -> bool:
        """Whether ``value`` is 1 less ``of``, both perhaps with an axis of one element more."""
        value, of = self._unmoved(value), self._unmoved(of)
        node = self._makers.get(value)
        if node is None or node.op.name != "sub" or node.inputs[1] is None or node.inputs[0] is None:
            return False
        return self.of(node.inputs[0], depth) == (1.0, 1.0) and self._unmoved(node.inputs[1]) is of

    def _unmoved(self, value: Value) -> Value:
        """What is reshaped by axes of one element alone."""
        node = self._makers.get(value)
        if node is None or node.op.name != "reshape" or node.inputs[0] is None:
            return value
        before, after = ([size for size in v.type.shape if size != 1] for v in (node.inputs[0], value))
        return node.inputs[0] if before == after else value


def keeps_numbers(node: Node) -> bool:
    """Whether a move's result has the operand's numbers, if rounded: not those of casts to or from integers."""
    operand, result = node.inputs[0], node.outputs[0]
    return operand is not None and result is not None and operand.type.dtype.is_float and result.type.dtype.is_float


def _sums(node: Node, value: Value) -> bool:
    return node.op.name == "reduce_sum" and node.inputs[0] is value and bool(node.attributes["keepdims"])


def axis_before(node: Node, axis: int) -> int | None:
    """The operand's axis that a move leaves as this one of its result, with the same elements, or None."""
    operand, result = node.inputs[0], node.outputs[0]
    assert operand is not None and result is not None
    before, after = operand.type.shape, result.type.shape
    name = node.op.name
    if name in ("copy", "stop_gradient", "cast"):
        return axis
    if name == "transpose":
        return int(node.attributes["perm"][axis])
    if name == "slice":
        starts, steps = node.attributes["starts"], node.attributes["steps"]
        return axis if before[axis] == after[axis] and starts[axis] == 0 and steps[axis] == 1 else None
    if name == "gather":
        at = int(node.attributes["axis"]) % len(before)
        count = len(after) - len(before) + 1  # axes of the indices
        if count == 1 and at == axis:
            return axis
        return axis if axis < at else axis - count + 1 if axis >= at + count else None
    if name == "reshape":
        lead = [size for size in after[:axis] if size != 1]
        for at in range(len(before)):
            if before[at] == after[axis] and [size for size in before[:at] if size != 1] == lead:
                return at if before[at] != 1 else None
    return None


def _of_array(array: np.ndarray) -> Interval:
    if array.dtype.kind not in "fiub" or not array.size or not np.isfinite(array).all():
        return _ANY
    return float(array.min()), float(array.max())


def _hull(found: list[Interval]) -> Interval:
    return min(low for low, _ in found), max(high for _, high in found)


def _product(a: Interval, b: Interval) -> Interval:
    ends = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def _quotient(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0.0 <= b[1]:
        return _ANY
    return _product(a, (1.0 / b[1], 1.0 / b[0]))


_BINARY: Mapping[str, Callable[[Interval, Interval], Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "div": _quotient,
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
