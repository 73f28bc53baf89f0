"""Converters of operators that choose elements by index."""

from __future__ import annotations

from typing import Any

from dataflow import ops
from dataflow.errors import ModelError
from dataflow.ir.types import bool_, float32, int64

from ..converters import Collector
from ..emit import along, places
from ..importer import Importer, Tensor

T = Tensor
operator = Collector()


@operator("Gather")
def Gather(c: Importer, x: T, indices: T, *, axis: int = 0) -> Any:
    return ops.gather(c.weight(x), c.value(indices), axis=axis)


@operator("OneHot", 9)
def OneHot(c: Importer, indices: T, depth: T, values: T, *, axis: int = -1) -> Any:
    count = c.ints(depth, "depth")[0] if depth.known is not None else int(c.scalar(depth, "depth"))
    pair = c.value(values)
    at = c.value(indices)
    if not at.type.dtype.is_int:
        at = ops.cast(at, to=int64)
    hot = ops.cast(ops.one_hot(at, depth=count, axis=axis, dtype=float32), to=bool_)
    off, on = (ops.reshape(ops.slice(pair, starts=(i,), stops=(i + 1,), steps=(1,)), shape=()) for i in (0, 1))
    return ops.where(hot, on, off)


@operator("ReverseSequence", 10)
def ReverseSequence(c: Importer, x: T, sequence_lens: T, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    value = c.value(x)
    if {batch_axis, time_axis} != {0, 1}:
        raise ModelError(f"batch_axis {batch_axis}, time_axis {time_axis}; expected 0 and 1")
    lengths = c.value(sequence_lens)
    lengths = lengths if lengths.type.dtype == int64 else ops.cast(lengths, to=int64)
    time = along(places(c, value.type.shape[time_axis]), time_axis, 2)
    length = along(lengths, batch_axis, 2)
    turned = ops.sub(ops.sub(length, 1), time)
    index = ops.where(ops.less(time, length), turned, ops.add(time, ops.mul(length, 0)))
    index = ops.reshape(index, shape=(*value.type.shape[:2], *(1,) * (value.type.rank - 2)))
    return ops.gather_elements(value, ops.broadcast_to(index, shape=value.type.shape), axis=time_axis)
