"""Ops that read indices, and sources: tensors made of attributes alone."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..ir.dims import Dim, Shape, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import DType, TensorType, float32, int64
from ..ir.value import Value
from .infer import alike, need, need_number, need_shape, normal_axis, same_dtype


def _need_indices(name: str, indices: TensorType) -> None:
    if indices.dtype.name not in ("int32", "int64"):
        raise InputError(f"{name}: indices are {indices}; expected int32 or int64")


def _gather_infer(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    _need_indices("gather", indices)
    at = normal_axis("gather", axis, x.rank)
    return TensorType(x.dtype, x.shape[:at] + indices.shape + x.shape[at + 1 :])


def _gather_gradient(node: Node, dy: Value) -> tuple[None, Value] | tuple[Value, None]:
    x, indices = node.inputs[:2]
    assert x is not None
    axis = normal_axis("gather", node.attributes["axis"], x.type.rank)
    return index_add(indices, dy, size=x.type.shape[axis], axis=axis), None


gather: Op = Op(
    "gather",
    ("x", "indices"),
    _gather_infer,
    attributes={"axis": 0},
    gradient=_gather_gradient,
    doc="y[..., i, ...] = x[..., indices[i], ...]; negative indices count from the end; checked at run time",
)


def _find_infer(x: TensorType, keys: TensorType) -> TensorType:
    if keys.rank != 1:
        raise InputError(f"find: keys are {keys}; expected a list")
    same_dtype("find", x, keys)
    if x.dtype.kind == "c":
        raise InputError(f"find: {x.dtype} has no order")
    return TensorType(int64, x.shape)


find: Op = Op(
    "find",
    ("x", "keys"),
    _find_infer,
    doc="the index in ``keys``, which ascend without equals, of each element of x; their number where none is equal; "
    "NaN counts as equal to NaN and stands last",
)


def _index_add_infer(
    indices: TensorType, updates: TensorType, addend: TensorType | None = None, *, size: Size, axis: int
) -> TensorType:
    _need_indices("index_add", indices)
    need_number("index_add", updates)
    rank = updates.rank - indices.rank + 1
    if not (rank >= 1):
        raise InputError(f"index_add: updates {updates} have fewer axes than indices {indices}")
    at = normal_axis("index_add", axis, rank)
    inner = updates.shape[at : at + indices.rank]
    if not (inner == indices.shape or not (updates.is_bound and indices.is_bound)):
        raise InputError(f"index_add: updates {updates} don't hold a row per index {indices} at axis {axis}")
    y = TensorType(updates.dtype, (*updates.shape[:at], size, *updates.shape[at + indices.rank :]))
    if addend is not None:
        alike("index_add: y and addend", y, addend)
    return y


def _index_add_gradient(node: Node, g: Value) -> tuple[Value | None, ...]:
    rows = gather(g, node.inputs[0], axis=node.attributes["axis"])
    return (None, rows, g)[: len(node.inputs)]


index_add: Op = Op(
    "index_add",
    ("indices", "updates", "addend?"),
    _index_add_infer,
    attributes={"size": REQUIRED, "axis": 0},
    gradient=_index_add_gradient,
    inplace=((0, 2),),
    doc="the addend, or zeros, with updates[..., i, ...] added at [..., indices[i], ...]; the gradient of gather",
)


def _one_hot_infer(indices: TensorType, *, depth: Size, axis: int, dtype: DType) -> TensorType:
    if not indices.dtype.is_int:
        raise InputError(f"one_hot: indices are {indices}; expected integers")
    at = normal_axis("one_hot", axis, indices.rank + 1)
    return TensorType(dtype, (*indices.shape[:at], depth, *indices.shape[at:]))


one_hot: Op = Op(
    "one_hot",
    ("indices",),
    _one_hot_infer,
    attributes={"depth": REQUIRED, "axis": -1, "dtype": float32},
    doc="1 where the new axis has the index, else 0; all 0 for an index outside [-depth, depth)",
)


def _need_number(name: str, dtype: DType, *numbers: Any) -> None:
    """Raises InputError where a number is none of ``dtype``: with integers, one that is not finite or too large."""
    if dtype.kind == "s":
        raise InputError(f"{name}: {dtype} has no numbers")
    if dtype.is_int:
        low, high = (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
        if dtype.kind == "u":
            low, high = 0, (1 << dtype.bits) - 1
        for number in numbers:
            fits = isinstance(number, Dim) or low <= number <= high
            if not fits:
                raise InputError(f"{name}: {number} is no number of {dtype}, which has {low} to {high}")


def _full_infer(*, shape: Shape, value: float, dtype: DType) -> TensorType:
    need_shape("full", shape)
    _need_number("full", dtype, value)
    return TensorType(dtype, tuple(shape))


full: Op = Op(
    "full",
    (),
    _full_infer,
    attributes={"shape": REQUIRED, "value": REQUIRED, "dtype": float32},
    doc="a tensor of one value",
)


def _range_infer(*, start: Any, limit: Any, delta: float, dtype: DType) -> TensorType:
    numbers = [n for n in (start, limit, delta) if not isinstance(n, Dim)]
    need(delta != 0, "range_: delta is 0")
    held = all(-(1 << 63) <= n < 1 << 63 for n in numbers)
    if not held:
        raise InputError(
            f"range_: start {start}, limit {limit} and delta {delta}; expected numbers that fit in 64 bits"
        )
    count = -((start - limit) // delta)  # rounded up; a size where an end is named
    if isinstance(count, float):
        count = int(count)
    return TensorType(dtype, (count if isinstance(count, Dim) or count >= 0 else 0,))


range_: Op = Op(
    "range_",
    (),
    _range_infer,
    attributes={"start": 0, "limit": REQUIRED, "delta": 1, "dtype": int64},
    doc="start, start + delta, ... before limit",
)

OPS = (gather, find, index_add, one_hot, full, range_)
