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

# Ops whose result has elements of their first operand alone.
MOVES = frozenset({"reshape", "transpose", "slice", "gather", "broadcast_to", "copy", "stop_gradient", "cast"})
_FIXED: Mapping[str, Interval] = {
    "sigmoid": _UNIT, "softmax": _UNIT, "hard_sigmoid": _UNIT, "exp": (0.0, math.inf), "softplus": (0.0, math.inf),
    "relu": (0.0, math.inf), "abs": (0.0, math.inf), "sqrt": (0.0, math.inf), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0),
    "sin": (-1.0, 1.0), "cos": (-1.0, 1.0), "log_softmax": (-math.inf, 0.0),
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

    def is_probability(self, value: Value) -> bool:
        """Whether all elements are from 0 to 1, and not for being all one number."""
        low, high = self.of(value)
        return value.type.dtype.is_float and low >= 0.0 and high <= 1.0 + _NEAR and low < high

    def is_distribution(self, value: Value) -> bool:
        """Whether the elements sum to 1 along some axis, from 0 on."""
        return self.of(value)[0] >= 0.0 and any(
            abs(self._sum(value, axis, 0) - 1.0) < _NEAR for axis in range(value.type.rank)
        )

    def of(self, value: Value, depth: int = 0) -> Interval:
        """The least and the largest that an element can be."""
        found = self._known.get(value)
        if found is None:
            array = self._constants.get(value)
            node = self._makers.get(value)
            if array is not None:
                found = _of_array(array)
            elif node is None or depth > _DEEPEST or node.outputs[0] is not value:
                found = _ANY
            else:
                found = self._of_node(node, lambda operand: self.of(operand, depth + 1))
            self._known[value] = found
        return found

    def _of_node(self, node: Node, of: Callable[[Value], Interval]) -> Interval:
        name = node.op.name
        operands = [v for v in node.inputs if v is not None]
        if name in _FIXED:
            return _FIXED[name]
        if name in MOVES or name in _KEPT:
            return of(operands[0]) if operands[0].type.dtype.is_float else _ANY
        if name in ("concat", "where"):
            return _hull([of(v) for v in (operands[1:] if name == "where" else operands)])
        if name in ("add", "sub", "mul", "div", "maximum", "minimum"):
            if name == "div" and self._is_share(node):
                return _UNIT
            return _BINARY[name](of(operands[0]), of(operands[1]))
        if name == "neg":
            low, high = of(operands[0])
            return -high, -low
        if name == "clip":
            low, high = of(operands[0])
            least = _ANY if node.inputs[1] is None else of(node.inputs[1])
            most = _ANY if len(node.inputs) < 3 or node.inputs[2] is None else of(node.inputs[2])
            return min(max(low, least[0]), most[1]), min(max(high, least[1]), most[1])
        return _ANY

    def _is_share(self, node: Node) -> bool:
        """Whether it divides numbers from 0 on by their sum."""
        share, total = node.inputs[:2]
        maker = None if total is None else self._makers.get(total)
        return share is not None and maker is not None and maker.op.name == "reduce_sum" and (
            maker.inputs[0] is share and self.of(share)[0] >= 0.0
        )  # fmt: skip

    def _sum(self, value: Value, axis: int, depth: int) -> float:
        """What the elements along an axis sum to; NaN where it isn't known."""
        node = self._makers.get(value)
        if node is None or depth > _DEEPEST or node.outputs[0] is not value:
            return math.nan
        operands = [v for v in node.inputs if v is not None]
        name, rank = node.op.name, value.type.rank

        def below(operand: Value, at: int = axis) -> float:
            return self._sum(operand, at, depth + 1)

        if name == "softmax":
            return 1.0 if int(node.attributes["axis"]) % rank == axis else math.nan
        if name == "div" and self._is_share(node):
            (total,) = (self._makers[operands[1]],)
            axes = [int(a) % rank for a in total.attributes["axes"]]
            return 1.0 if axes == [axis] and total.attributes["keepdims"] else math.nan
        if name in ("add", "sub") and operands[0].type.shape == operands[1].type.shape:
            return below(operands[0]) + (1.0 if name == "add" else -1.0) * below(operands[1])
        if name in ("mul", "div"):
            factor = self.of(operands[1])
            if factor[0] == factor[1] != 0.0 and operands[0].type.shape == value.type.shape:
                return below(operands[0]) * (factor[0] if name == "mul" else 1.0 / factor[0])
        if name == "concat" and int(node.attributes["axis"]) % rank == axis and len(operands) == 2:
            return 1.0 if self._complement(*operands) or self._complement(*operands[::-1]) else math.nan
        if name in ("copy", "stop_gradient", "cast"):
            return below(operands[0])
        if name == "transpose":
            return below(operands[0], int(node.attributes["perm"][axis]))
        if name in ("reshape", "slice", "gather"):
            at = axis_before(node, axis)
            return math.nan if at is None or not self._keeps(node, at) else below(operands[0], at)
        return math.nan

    def _keeps(self, node: Node, axis: int) -> bool:
        """Whether all elements along an axis of the operand stay, in whatever order."""
        if node.op.name != "gather" or int(node.attributes["axis"]) % node.inputs[0].type.rank != axis:  # type: ignore[union-attr]
            return True
        indices = self._constants.get(node.inputs[1])  # type: ignore[arg-type]
        size = node.inputs[0].type.shape[axis]  # type: ignore[union-attr]
        return indices is not None and isinstance(size, int) and sorted(np.ravel(indices) % size) == list(range(size))

    def _complement(self, value: Value, of: Value) -> bool:
        """Whether ``value`` is 1 less ``of``."""
        node = self._makers.get(value)
        if node is None or node.op.name != "sub" or node.inputs[1] is None or node.inputs[0] is None:
            return False
        return self.of(node.inputs[0]) == (1.0, 1.0) and node.inputs[1] is of


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
