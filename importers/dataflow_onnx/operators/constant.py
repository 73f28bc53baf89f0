"""Converters of operators that make tensors: of stored numbers, a size or a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, float64, int64, ops
from dataflow.errors import ModelError
from dataflow.plugin import dtype as as_dtype

from ..converters import Collector
from ..dynamic_sizes import range_of_data, size_value
from ..emit import along, full, iota, number
from ..file.records import Array
from ..importer import Importer
from ..shape_eval import product
from ..tensor import Tensor
from .cast import dtype_of

T = Tensor
operator = Collector()


@operator("Constant")
def Constant(
    c: Importer,
    *,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Any:
    if value is not None:
        return value
    if value_float is not None:
        return np.asarray(value_float, np.float32)
    if value_floats is not None:
        return np.asarray(value_floats, np.float32)
    if value_int is not None:
        return np.asarray(value_int, np.int64)
    if value_ints is not None:
        return np.asarray(value_ints, np.int64)
    raise ModelError("a constant of strings, or without a value, is not supported")


@operator("ConstantOfShape")
def ConstantOfShape(c: Importer, shape: T, *, value: Array | None = None) -> Any:
    fill = np.zeros(1, np.float32) if value is None else value
    if fill.size != 1:
        raise ModelError(f"its value has {fill.size} elements; expected one")
    sizes = c.sizes(shape, "the shape")
    if any(isinstance(n, Dim) for n in sizes):
        number = fill.item()
        if isinstance(number, int) and number >= 1 << 63:  # more than an attribute holds
            return ops.broadcast_to(c.builder.constant(fill.reshape(())), shape=tuple(sizes))
        return full(c.builder, sizes, number, as_dtype(fill))
    if any(n < 0 for n in sizes) or product(sizes) >= 1 << 48:
        raise ModelError(f"shape {sizes} can't be: a size is negative or the product overflows")
    return np.broadcast_to(fill.reshape(()), tuple(int(n) for n in sizes))


def _end(c: Importer, tensor: T, what: str) -> Any:
    """A stored number, or a size, which may be named."""
    known = tensor.known
    if known is not None and known.numbers.size == 1 and isinstance(known.numbers.reshape(())[()], Dim):
        return known.numbers.reshape(())[()]
    return c.scalar(tensor, what)


@operator("Range", 11)
def Range(c: Importer, start: T, limit: T, delta: T, *, stash_type: int = 1) -> Any:
    if any(t.known is None and c.constant(t) is None for t in (start, limit, delta)):
        return range_of_data(c, *(c.value(t) for t in (start, limit, delta)))
    first, last, step = _end(c, start, "start"), _end(c, limit, "limit"), c.scalar(delta, "delta")
    dtype = start.type.dtype
    attributes = {"start": first, "limit": last, "delta": step, "dtype": dtype}
    if dtype.is_int:
        attributes = {key: int(v) if isinstance(v, float) else v for key, v in attributes.items()}
    return c.builder.add(ops.range_, (), attributes).outputs[0]


@operator("EyeLike", 9)
def EyeLike(c: Importer, x: T, *, dtype: int | None = None, k: int = 0) -> Any:
    shape = x.type.shape
    if len(shape) != 2:
        raise ModelError(f"its input is {x.type}; expected a matrix")
    row, column = (along(iota(c.builder, n), i, 2) for i, n in enumerate(shape))
    hits = ops.equal(ops.sub(column, row), number(c.builder, k, int64))
    return ops.cast(hits, to=x.type.dtype if dtype is None else dtype_of(dtype))


_FAR = 1 << 48  # a diagonal farther from the main one than there are elements


def _cosine_window(name: str, factors: Sequence[int]) -> None:
    """A window of cosines by whole factors, divided by the sum of their magnitudes: exactly 0 and 1 at its ends."""

    @operator(name, 17)
    def window(c: Importer, size: T, *, output_datatype: int = 1, periodic: int = 1) -> Any:
        count = c.sizes(size, "the size")[0]
        span = ops.cast(size_value(c, count if periodic else count - 1), to=float64)
        angle = ops.div(ops.mul(iota(c.builder, count, float64), 2 * math.pi), span)
        y: Any = None
        for order, factor in enumerate(factors):
            term = ops.mul(ops.cos(ops.mul(angle, float(order))), float(factor))
            y = term if y is None else ops.add(y, term)
        return ops.cast(ops.div(y, float(sum(map(abs, factors)))), to=dtype_of(output_datatype))


_cosine_window("HannWindow", (1, -1))
_cosine_window("HammingWindow", (25, -21))
_cosine_window("BlackmanWindow", (42, -50, 8))


@operator("Trilu", 14)
def Trilu(c: Importer, x: T, k: T | None = None, *, upper: int = 1) -> Any:
    value = c.value(x)
    if value.type.rank < 2:
        raise ModelError(f"its input is {value.type}; expected a matrix, or several")
    offset = 0 if k is None else max(-_FAR, min(c.ints(k, "k")[0], _FAR))
    rows, columns = value.type.shape[-2:]
    indices = iota(c.builder, rows, start=offset), iota(c.builder, columns)
    row, column = (along(index, axis, 2) for axis, index in enumerate(indices))
    kept = ops.less_equal(row, column) if upper else ops.less_equal(column, row)
    if value.type.dtype.name == "bool":
        return ops.logical_and(kept, value)
    return ops.where(kept, value, number(c.builder, 0, value.type.dtype))
