"""Converters of quantized operators: integers with a scale and a zero point, computed in floats that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Value, ops
from dataflow.errors import ModelError
from dataflow.ir.dims import Dim
from dataflow.ir.types import DType, float32, float64, int32, uint8

from ..converters import Collector
from ..dynamic_sizes import within
from ..importer import Importer, Tensor
from ..shape_eval import axis_in, product
from .cast import dtype_of
from .conv import window_of

T = Tensor
operator = Collector()
_EXACT = 1 << 24  # whole numbers up to here are float32's


def _spread(vector: Value, value: Value, axis: int, block: int) -> Any:
    """A scale or zero point for all elements, for each place along an axis, or for each block of places."""
    shape, rank = vector.type.shape, value.type.rank
    if all(not isinstance(n, Dim) and n == 1 for n in shape):
        return ops.reshape(vector, shape=())
    at = axis_in(axis, rank)
    if not block:
        if vector.type.rank != 1:
            raise ModelError(f"a scale or zero point is {vector.type}; expected one number, or one for each place")
        along = ops.reshape(vector, shape=tuple(shape[0] if i == at else 1 for i in range(rank)))
        return within(along, value.type.shape)
    if vector.type.rank != rank:
        raise ModelError(f"a scale or zero point is {vector.type} for {value.type}; expected one for each block")
    opened = (*shape[: at + 1], 1, *shape[at + 1 :])
    wide = (*shape[: at + 1], block, *shape[at + 1 :])
    flat = (*shape[:at], shape[at] * block, *shape[at + 1 :])
    spread = ops.reshape(ops.broadcast_to(ops.reshape(vector, shape=opened), shape=wide), shape=flat)
    if flat[at] == value.type.shape[at]:
        return within(spread, value.type.shape)
    stops = tuple(value.type.shape[i] if i == at else n for i, n in enumerate(flat))
    return within(ops.slice(spread, starts=(0,) * rank, stops=stops, steps=(1,) * rank), value.type.shape)


def _bytes(dtype: DType) -> DType:
    """The type, where its elements are not packed."""
    if dtype.bits < 8:
        raise ModelError(f"elements of type {dtype} are packed and not supported")
    return dtype


def _as(value: Value, dtype: DType) -> Any:
    return value if value.type.dtype == dtype else ops.cast(value, to=dtype)


@operator("DequantizeLinear", 10)
def DequantizeLinear(
    c: Importer,
    x: T,
    scale: T,
    zero_point: T | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Any:
    value, factor = c.value(x), c.value(scale)
    _bytes(value.type.dtype)
    dtype = dtype_of(output_dtype) if output_dtype else factor.type.dtype
    wide = float32 if factor.type.dtype.nbytes(1) < 4 else factor.type.dtype
    y = _as(value, wide)
    if zero_point is not None:
        y = ops.sub(y, _as(_spread(c.value(zero_point), value, axis, block_size), wide))
    return _as(ops.mul(y, _as(_spread(factor, value, axis, block_size), wide)), dtype)


def _quantized(c: Importer, scaled: Value, zero: Value | None, dtype: DType) -> Any:
    """Rounded, moved by the zero point and kept in the type's range."""
    if not _bytes(dtype).is_int:
        raise ModelError(f"quantizing to {dtype} is not supported; only to integers")
    y = ops.round(scaled)
    if zero is not None:
        y = ops.add(y, _as(zero, y.type.dtype))
    low, high = (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    if dtype.name.startswith("u"):
        low, high = 0, (1 << dtype.bits) - 1
    ends = [c.builder.constant(np.asarray(n, y.type.dtype.numpy)) for n in (low, high)]
    return ops.cast(ops.clip(y, *ends), to=dtype)


@operator("QuantizeLinear", 10)
def QuantizeLinear(
    c: Importer,
    x: T,
    scale: T,
    zero_point: T | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Any:
    value, factor = c.value(x), c.value(scale)
    zero = None if zero_point is None else c.value(zero_point)
    dtype = _bytes(zero.type.dtype if zero is not None else dtype_of(output_dtype) if output_dtype else uint8)
    wide = float64 if factor.type.dtype == float64 or value.type.dtype == float64 else float32
    scaled = ops.div(_as(value, wide), _as(_spread(factor, value, axis, block_size), wide))
    return _quantized(c, scaled, None if zero is None else _spread(zero, value, axis, block_size), dtype)


@operator("DynamicQuantizeLinear", 11)
def DynamicQuantizeLinear(c: Importer, x: T) -> Any:
    value = c.value(x)
    axes = tuple(range(value.type.rank))
    zero = c.builder.constant(np.float32(0))
    high = ops.maximum(ops.reduce_max(value, axes=axes, keepdims=0), zero)
    low = ops.minimum(ops.reduce_min(value, axes=axes, keepdims=0), zero)
    span = ops.sub(high, low)
    scale = ops.where(ops.equal(span, zero), c.builder.constant(np.float32(1)), ops.div(span, 255.0))
    point = _quantized(c, ops.neg(ops.div(low, scale)), None, uint8)
    return _quantized(c, ops.div(value, scale), point, uint8), scale, point


def _shifted(c: Importer, x: T, zero_point: T | None, dtype: DType, column: bool) -> Any:
    """A matrix of integers less its zero points: one, or one for each row or column."""
    value = ops.cast(c.value(x), to=dtype)
    if zero_point is None:
        return value
    zero = ops.cast(c.value(zero_point), to=dtype)
    if zero.type.rank == 1 and not column:
        zero = ops.reshape(zero, shape=(zero.type.shape[0], 1) if zero.type.shape[0] != 1 else ())
    return ops.sub(value, zero)


def _exact(count: Any) -> DType:
    """Floats that hold a sum of ``count`` products of bytes."""
    return float32 if not isinstance(count, Dim) and count * 255 * 255 < _EXACT else float64


def _matmul(c: Importer, a: T, b: T, a_zero: T | None, b_zero: T | None) -> Any:
    if len(a.type.shape) < 2 or len(b.type.shape) < 2:
        raise ModelError(f"operands {a.type} and {b.type} need two axes or more")
    dtype = _exact(a.type.shape[-1])
    return ops.matmul(_shifted(c, a, a_zero, dtype, False), _shifted(c, b, b_zero, dtype, True))


@operator("MatMulInteger", 10)
def MatMulInteger(c: Importer, a: T, b: T, a_zero: T | None = None, b_zero: T | None = None) -> Any:
    return ops.cast(_matmul(c, a, b, a_zero, b_zero), to=int32)


def _rescaled(c: Importer, y: Value, scales: Sequence[Value], zero: Value) -> Any:
    """Sums of products by the two scales of their factors, in a third."""
    a, b, result = (_as(s, y.type.dtype) for s in scales)
    return _quantized(c, ops.div(ops.mul(y, ops.mul(a, b)), result), zero, zero.type.dtype)


@operator("QLinearMatMul", 10)
def QLinearMatMul(c: Importer, a: T, a_scale: T, a_zero: T, b: T, b_scale: T, b_zero: T, y_scale: T, y_zero: T) -> Any:
    y = _matmul(c, a, b, a_zero, b_zero)
    left = c.value(a_scale)
    if left.type.rank == 1 and left.type.shape[0] != 1:
        left = ops.reshape(left, shape=(left.type.shape[0], 1))
    return _rescaled(c, y, (left, c.value(b_scale), c.value(y_scale)), c.value(y_zero))


def _convolved(c: Importer, x: T, w: T, x_zero: T | None, w_zero: T | None, group: int, **given: Any) -> Any:
    kernel = w.type.shape[2:]
    dtype = _exact(product(w.type.shape[1:]))
    value, weight = (ops.cast(c.value(t), to=dtype) for t in (x, w))
    if x_zero is not None:
        value = ops.sub(value, ops.reshape(ops.cast(c.value(x_zero), to=dtype), shape=()))
    if w_zero is not None:
        weight = ops.sub(weight, _spread(ops.cast(c.value(w_zero), to=dtype), weight, 0, 0))
    window = window_of(value.type.shape, [int(n) for n in kernel], **given)
    return ops.conv(value, weight, **window, groups=group)


@operator("ConvInteger", 10)
def ConvInteger(
    c: Importer,
    x: T,
    w: T,
    x_zero: T | None = None,
    w_zero: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    given = {"auto_pad": auto_pad, "dilations": dilations, "pads": pads, "strides": strides}
    return ops.cast(_convolved(c, x, w, x_zero, w_zero, group, **given), to=int32)


@operator("QLinearConv", 10)
def QLinearConv(
    c: Importer,
    x: T,
    x_scale: T,
    x_zero: T,
    w: T,
    w_scale: T,
    w_zero: T,
    y_scale: T,
    y_zero: T,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    given = {"auto_pad": auto_pad, "dilations": dilations, "pads": pads, "strides": strides}
    y = _convolved(c, x, w, x_zero, w_zero, group, **given)
    if bias is not None:
        y = ops.add(y, _spread(ops.cast(c.value(bias), to=y.type.dtype), y, 1, 0))
    scales = (c.value(x_scale), _spread(c.value(w_scale), y, 1, 0), c.value(y_scale))
    return _rescaled(c, y, scales, c.value(y_zero))
