"""Nodes that converters of several families emit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import DType, Value, bfloat16, float16, float32, int64, ops
from dataflow.plugin import Builder, Size


def full(g: Builder, shape: Sequence[Size], number: float, dtype: DType) -> Any:
    """A tensor of one number; its shape may have named sizes."""
    return g.add(ops.full, (), {"shape": tuple(shape), "value": number, "dtype": dtype}).outputs[0]


def iota(g: Builder, count: Size, dtype: DType = int64, start: Size = 0) -> Any:
    """``count`` numbers from ``start`` on: start, start + 1, ..."""
    numbers = {"start": start, "limit": start + count, "delta": 1, "dtype": dtype}
    return g.add(ops.range_, (), numbers).outputs[0]


def number(g: Builder, value: float, dtype: DType) -> Value:
    """A stored scalar; -inf and what overflows the dtype are allowed."""
    return g.constant(np.asarray(value).astype(dtype.numpy))


def cast_to(value: Value, dtype: DType) -> Any:
    """``value`` in a dtype; itself where it has it."""
    return value if value.type.dtype == dtype else ops.cast(value, to=dtype)


def upcast(value: Value) -> Any:
    """``value`` in float32 where it has 16 bits, whose squares overflow and vanish; else itself."""
    return cast_to(value, float32) if value.type.dtype in (float16, bfloat16) else value


def along(vector: Value, axis: int, rank: int) -> Any:
    """A vector reshaped to broadcast along an axis."""
    return ops.reshape(vector, shape=tuple(vector.type.shape[0] if i == axis else 1 for i in range(rank)))


def slice_axis(value: Value, axis: int, start: Any, stop: Any, step: int = 1) -> Any:
    """A slice along one axis, counted from the front or from the end; the other axes are kept."""
    rank = value.type.rank
    chosen = [i == axis % rank for i in range(rank)]
    return ops.slice(
        value,
        starts=tuple(start if own else 0 for own in chosen),
        stops=tuple(stop if own else size for own, size in zip(chosen, value.type.shape, strict=True)),
        steps=tuple(step if own else 1 for own in chosen),
    )


def stack(values: Sequence[Value]) -> Any:
    """Tensors of one type along a new first axis."""
    ones = [ops.reshape(value, shape=(1, *value.type.shape)) for value in values]
    return ones[0] if len(ones) == 1 else ops.concat(*ones, axis=0)


def moved(value: Value, source: int, target: int) -> Any:
    """With an axis moved to another index."""
    order = list(range(value.type.rank))
    order.insert(target, order.pop(source))
    return value if source == target else ops.transpose(value, perm=tuple(order))


def merged(rows: Value, axis: int) -> Any:
    """Tensors that are stacked along the first axis, one behind the other along an axis of theirs."""
    count, shape = rows.type.shape[0], rows.type.shape[1:]
    along_axis = (*shape[:axis], count * shape[axis], *shape[axis + 1 :])
    return ops.reshape(moved(rows, 0, axis), shape=along_axis)


def equal_slices(value: Value, axis: int, count: int) -> tuple[Any, ...]:
    """``count`` slices of equal size along an axis."""
    size = int(value.type.shape[axis]) // count
    return tuple(slice_axis(value, axis, i * size, (i + 1) * size) for i in range(count))
