"""Ops that go along an axis in order: running sums, and the largest or smallest elements."""

from __future__ import annotations

from ..ir.dims import Dim, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, MultiOp, Op
from ..ir.types import TensorType, int64
from ..ir.value import Value
from .infer import need, normal_axis
from .scatter import scatter_elements, zeros_like


def _cumsum_infer(x: TensorType, *, axis: int, exclusive: bool, reverse: bool) -> TensorType:
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

OPS = (cumsum, topk)
