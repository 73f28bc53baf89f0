"""Ops that go along an axis in order: running sums, recurrences, and the largest or smallest elements."""

from __future__ import annotations

from ..ir.dims import Dim, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, MultiOp, Op
from ..ir.types import TensorType, int64
from ..ir.value import Value
from .arithmetic import mul
from .infer import alike, need, need_number, normal_axis, operand, result, scalar_like
from .scatter import scatter_elements, zeros_like
from .shape import pad, slice_


def _cumsum_infer(x: TensorType, *, axis: int, exclusive: bool, reverse: bool) -> TensorType:
    need_number("cumsum", x)
    normal_axis("cumsum", axis, x.rank)
    return x


cumsum: Op = Op(
    "cumsum",
    ("x",),
    _cumsum_infer,
    attributes={"axis": REQUIRED, "exclusive": False, "reverse": False},
    gradient=lambda node, dy: cumsum(dy, **{**node.attributes, "reverse": 1 - int(bool(node.attributes["reverse"]))}),
    inplace=((0, 0),),
    doc="the sum of all elements up to each one along axis; exclusive leaves it out, reverse begins at the end",
)


def _recurrence_infer(a: TensorType, b: TensorType, *, axis: int, reverse: bool) -> TensorType:
    need_number("linear_recurrence", a, b)
    normal_axis("linear_recurrence", axis, a.rank)
    return alike("linear_recurrence", a, b)


def shifted(x: Value, axis: int, reverse: bool, first: float = 0) -> Value:
    """The element before each one along an axis, in the order of a recurrence; before the first one ``first``."""
    at, shape = normal_axis("linear_recurrence", axis, x.type.rank), x.type.shape
    own = tuple(int(i == at) for i in range(x.type.rank))
    none = (0,) * x.type.rank
    starts, pads = (own, (*none, *own)) if reverse else (none, (*own, *none))
    padded = pad(x, scalar_like(x, first), pads=pads) if first else pad(x, pads=pads)
    stops = tuple(size + start for size, start in zip(shape, starts, strict=True))
    return slice_(padded, starts=starts, stops=stops, steps=(1,) * x.type.rank)


def _recurrence_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    """db_i = dy_i + a_(i+1) db_(i+1), a recurrence in the other order; da_i = db_i y_(i-1)."""
    axis, reverse = node.attributes["axis"], bool(node.attributes["reverse"])
    db = linear_recurrence(shifted(operand(node), axis, not reverse), dy, axis=axis, reverse=not reverse)
    return mul(db, shifted(result(node), axis, reverse)), db


linear_recurrence: Op = Op(
    "linear_recurrence",
    ("a", "b"),
    _recurrence_infer,
    attributes={"axis": REQUIRED, "reverse": False},
    gradient=_recurrence_gradient,
    inplace=((0, 0), (0, 1)),
    doc="y_i = a_i y_(i-1) + b_i along axis, from y_0 = b_0 on, whatever a_0 is; reverse begins at the end",
)


def _topk_infer(x: TensorType, *, k: Size, axis: int, largest: bool, sorted: bool) -> tuple[TensorType, TensorType]:
    at = normal_axis("topk", axis, x.rank)
    size = x.shape[at]
    fits = isinstance(k, Dim) or (k >= 0 and (isinstance(size, Dim) or k <= size))
    need(fits, f"topk: k is {k}, the axis of {x} has {size} elements")
    shape = (*x.shape[:at], k, *x.shape[at + 1 :])
    return TensorType(x.dtype, shape), TensorType(int64, shape)


def _topk_gradient(node: Node, dy: Value | None, _: Value | None) -> Value | None:
    x, indices = node.inputs[0], node.outputs[1]
    if dy is None:
        return None
    assert x is not None
    return scatter_elements(zeros_like(x), indices, dy, axis=node.attributes["axis"], reduction="add")


topk: MultiOp = MultiOp(
    "topk",
    ("x",),
    _topk_infer,
    outputs=("values", "indices"),
    attributes={"k": REQUIRED, "axis": -1, "largest": True, "sorted": True},
    gradient=_topk_gradient,
    doc="the k largest (or smallest) elements along axis in order, and where they are; of equal ones the first",
)

OPS = (cumsum, linear_recurrence, topk)
