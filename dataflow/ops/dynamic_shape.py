"""Ops around sizes that depend on data: reading a size off a tensor, and what has as many results as there are hits."""

from __future__ import annotations

from ..ir.dims import Dim, Shape, Size
from ..ir.op import REQUIRED, Op, View
from ..ir.types import TensorType, int64
from .infer import need


def _read_shape_infer(x: TensorType, *, sizes: Shape) -> TensorType:
    need(x.dtype.name in ("int32", "int64"), f"read_shape: {x} holds no sizes; expected int32 or int64")
    need(not x.is_bound or x.elements == len(sizes), f"read_shape: {x} has not {len(sizes)} elements")
    return x


read_shape: Op = Op(
    "read_shape",
    ("x",),
    _read_shape_infer,
    attributes={"sizes": REQUIRED},
    effects="host",
    gradient=lambda node, dy: None,
    cheap=True,
    view=lambda node, strides: View(0, strides),
    doc="says that the named ``sizes`` are the elements of x; the graph is cut behind it, and what has these sizes is "
    "planned once they are known. y is x",
)


def _require_infer(x: TensorType, *, left: Size, right: Size, equal: bool, text: str) -> TensorType:
    known = not isinstance(left, Dim) and not isinstance(right, Dim)
    need(not known or (left == right) == bool(equal), text)
    return x


require: Op = Op(
    "require",
    ("x",),
    _require_infer,
    attributes={"left": REQUIRED, "right": REQUIRED, "equal": True, "text": REQUIRED},
    gradient=lambda node, dy: dy,
    cheap=True,
    view=lambda node, strides: View(0, strides),
    doc="y = x; once their names are known, sizes ``left`` and ``right`` must be equal, or differ with equal = 0; else "
    "it is an error, ``text``",
)


def _nonzero_infer(x: TensorType, *, count: Size) -> TensorType:
    return TensorType(int64, (x.rank, count))


nonzero: Op = Op(
    "nonzero",
    ("x",),
    _nonzero_infer,
    attributes={"count": REQUIRED},
    doc="(rank, count): the indices of the elements that are not zero, in row-major order; ``count`` is how many they "
    "are, and another number of them is an error",
)

OPS = (read_shape, require, nonzero)
