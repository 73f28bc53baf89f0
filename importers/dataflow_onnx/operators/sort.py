"""Converters of running sums and products, and of the largest elements."""

from __future__ import annotations

from typing import Any

from dataflow import Dim, Value, int64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..dynamic_sizes import size_value
from ..emit import along, iota, number, slice_axis
from ..importer import Importer
from ..shape_eval import axis_in
from ..tensor import Tensor

T = Tensor
operator = Collector()


@operator("CumSum", 11)
def CumSum(c: Importer, x: T, axis: T, *, exclusive: int = 0, reverse: int = 0) -> Any:
    (at,) = c.ints(axis, "the axis")
    return ops.cumsum(c.value(x), axis=at, exclusive=exclusive, reverse=reverse)


@operator("CumProd", 26)
def CumProd(c: Importer, x: T, axis: T, *, exclusive: int = 0, reverse: int = 0) -> Any:
    value = c.value(x)
    at = axis_in(c.ints(axis, "the axis")[0], value.type.rank)
    size = value.type.shape[at]
    if exclusive:  # the element before each one, 1 before the first
        own, none = tuple(int(i == at) for i in range(value.type.rank)), (0,) * value.type.rank
        pads = (*none, *own) if reverse else (*own, *none)
        longer = ops.pad(value, number(c.builder, 1, value.type.dtype), pads=pads)
        value = slice_axis(longer, at, reverse, size + reverse)
    first = number(c.builder, 0, int64) if not reverse else size_value(c, size - 1)
    begins = ops.equal(along(iota(c.builder, size), at, value.type.rank), first)
    terms = ops.where(begins, value, number(c.builder, 0, value.type.dtype))
    return ops.linear_recurrence(value, terms, axis=at, reverse=reverse)


def _topk(value: Value, k: Any, axis: int, largest: int, ordered: int) -> Any:
    at = axis_in(axis, value.type.rank)
    if not isinstance(k, Dim) and k < 0:
        raise ModelError(f"k is {k}; expected at least 0")
    return ops.topk(value, k=k, axis=at, largest=largest, sorted=ordered)


@operator("TopK")
def TopK_1(c: Importer, x: T, *, k: int, axis: int = -1) -> Any:
    return _topk(c.value(x), k, axis, 1, 1)


@operator("TopK", 10)
def TopK(c: Importer, x: T, k: T, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    return _topk(c.value(x), c.sizes(k, "k")[0], axis, largest, sorted)
