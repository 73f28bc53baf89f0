"""Converters of operators of opset 1 to 6 whose operands broadcast by attributes, or by rules of their own."""

from __future__ import annotations

from typing import Any

from dataflow import Value, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...file.old_opsets import BEFORE_7
from ...importer import Importer
from ...shape_eval import axis_in
from ...tensor import Tensor

T = Tensor
operator = Collector(BEFORE_7)


def _aligned(a: Value, b: Value, axis: int | None) -> Any:
    """``b`` with axes of one behind its own, so that its first is the axis ``axis`` of ``a``; None: its last the last.

    Raises:
        ModelError: it has more axes than there are from there.
    """
    behind = 0 if axis is None else a.type.rank - axis_in(axis, a.type.rank) - b.type.rank
    if behind < 0 or b.type.rank > a.type.rank:
        raise ModelError(f"{b.type} doesn't broadcast to {a.type} from axis {axis}")
    return ops.reshape(b, shape=(*b.type.shape, *(1,) * behind)) if behind else b


def _binary(name: str, op: Any, learned: bool = False) -> None:
    @operator(name)
    def convert(c: Importer, a: T, b: T, *, axis: int | None = None) -> Any:
        left, right = c.value(a), c.weight(b, single=False) if learned and a.array is None else c.value(b)
        return op(left, _aligned(left, right, axis) if right.type.rank else right)


_binary("Add", ops.add, learned=True)
_binary("Sub", ops.sub)
_binary("Mul", ops.mul, learned=True)
_binary("Div", ops.div)
_binary("Pow", ops.pow)
_binary("And", ops.logical_and)
_binary("Or", ops.logical_or)
_binary("Xor", ops.logical_xor)
_binary("Equal", ops.equal)
_binary("Less", ops.less)
_binary("Greater", ops.greater)


@operator("PRelu")
def PRelu(c: Importer, x: T, slope: T) -> Any:
    """One slope, or one per channel."""
    value, slopes = c.value(x), c.weight(slope)
    if slopes.type.rank == 1 and slopes.type.shape[0] != 1:
        slopes = ops.reshape(slopes, shape=(slopes.type.shape[0], *(1,) * (value.type.rank - 2)))
    return ops.prelu(value, slopes)


@operator("Tile")
def Tile(c: Importer, x: T, tiles: T, axis: T) -> Any:
    value, (count,), (at,) = c.value(x), c.ints(tiles, "tiles"), c.ints(axis, "the axis")
    if not 1 <= count < 1 << 20:
        raise ModelError(f"tiles is {count}; expected 1 or more")
    shape = value.type.shape
    at = axis_in(at, len(shape))
    tiled = ops.broadcast_to(
        ops.reshape(value, shape=(*shape[:at], 1, *shape[at:])), shape=(*shape[:at], count, *shape[at:])
    )
    return ops.reshape(tiled, shape=(*shape[:at], shape[at] * count, *shape[at + 1 :]))
