"""Converters of operators that choose elements by index."""

from __future__ import annotations

from typing import Any

from dataflow import Dim, Value, bool_, float32, int64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import along, cast_to, iota, slice_axis
from ..file.records import Array
from ..importer import Importer
from ..tensor import Tensor

T = Tensor
operator = Collector()


@operator("Gather")
def Gather(c: Importer, x: T, indices: T, *, axis: int = 0) -> Any:
    single = None if x.array is not None else _single(c.value(x), c.constant(indices), axis)
    if single is not None:
        return single
    rows, at = c.weight(x), c.value(indices)
    return ops.gather(rows, at if c.freed is None else c.freed.indexed(c, rows, axis, at), axis=axis)


def _single(x: Value, index: Array | None, axis: int) -> Value | None:
    """What a gather of one index that is known gives, as a view; None where it takes several or may be out of range.

    As exporters write q, k and v of one product: a gather would copy each, and its gradient be as large as all.
    """
    if index is None or index.ndim or not x.type.dtype.is_float or not -x.type.rank <= axis < x.type.rank:
        return None
    axis %= x.type.rank
    size, at = x.type.shape[axis], int(index)
    if isinstance(size, Dim) or not -size <= at < size:
        return None
    at %= size
    shape = (*x.type.shape[:axis], *x.type.shape[axis + 1 :])
    found: Value = ops.reshape(slice_axis(x, axis, at, at + 1), shape=shape)
    return found


@operator("OneHot", 9)
def OneHot(c: Importer, indices: T, depth: T, values: T, *, axis: int = -1) -> Any:
    count = c.ints(depth, "depth")[0] if depth.known is not None else int(c.scalar(depth, "depth"))
    pair = c.value(values)
    at = c.value(indices)
    at = at if at.type.dtype.is_int else ops.cast(at, to=int64)
    hot = ops.cast(ops.one_hot(at, depth=count, axis=axis, dtype=float32), to=bool_)
    off, on = (ops.reshape(slice_axis(pair, 0, i, i + 1), shape=()) for i in (0, 1))
    return ops.where(hot, on, off)


@operator("ReverseSequence", 10)
def ReverseSequence(c: Importer, x: T, sequence_lens: T, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    value = c.value(x)
    if {batch_axis, time_axis} != {0, 1}:
        raise ModelError(f"batch_axis {batch_axis}, time_axis {time_axis}; expected 0 and 1")
    time = along(iota(c.builder, value.type.shape[time_axis]), time_axis, 2)
    length = along(cast_to(c.value(sequence_lens), int64), batch_axis, 2)
    from_end = ops.sub(ops.sub(length, 1), time)
    index = ops.where(ops.less(time, length), from_end, ops.add(time, ops.mul(length, 0)))
    if value.type.rank == 2:
        return ops.gather_elements(value, index, axis=time_axis)
    sample = along(iota(c.builder, value.type.shape[batch_axis]), batch_axis, 2)
    rows = [ops.broadcast_to(at, shape=value.type.shape[:2]) for at in (index, sample)]
    pairs = ops.concat(*(ops.reshape(at, shape=(*at.type.shape, 1)) for at in rows[:: 1 - 2 * time_axis]), axis=-1)
    return ops.gather_nd(value, pairs)
