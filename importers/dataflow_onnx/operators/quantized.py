"""Converters of quantized operators: numbers with a scale and a zero point, computed in floats that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, DType, Value, float32, float64, int32, ops, uint8
from dataflow.errors import ModelError

from ..converters import Collector
from ..dynamic_sizes import within
from ..emit import cast_to, number, slice_axis
from ..importer import Importer
from ..shape_eval import axis_in, product
from ..tensor import Tensor
from .cast import dtype_of
from .conv import window_of

T = Tensor
operator = Collector()
_EXACT = 1 << 24  # float32 holds every integer up to here


def _broadcast(vector: Value, value: Value, axis: int, block: int) -> Any:
    """A scale or zero point, broadcast to the elements: one for all, per index of an axis, or per block of indices."""
    shape, rank = vector.type.shape, value.type.rank
    if all(not isinstance(n, Dim) and n == 1 for n in shape):
        return ops.reshape(vector, shape=())
    at = axis_in(0 if rank == 1 else axis, rank)
    if not block:
        if vector.type.rank != 1:
            raise ModelError(
                f"a scale or zero point is {vector.type}; expected one number, or one per index of the axis"
            )
        along = ops.reshape(vector, shape=tuple(shape[0] if i == at else 1 for i in range(rank)))
        return within(along, value.type.shape)
    if block < 0 or vector.type.rank != rank:
        raise ModelError(
            f"a scale or zero point is {vector.type} for {value.type} and block_size={block}; expected one for each "
            "block of that many elements"
        )
    opened = (*shape[: at + 1], 1, *shape[at + 1 :])
    repeated = (*shape[: at + 1], block, *shape[at + 1 :])
    flat = (*shape[:at], shape[at] * block, *shape[at + 1 :])
    found = ops.reshape(ops.broadcast_to(ops.reshape(vector, shape=opened), shape=repeated), shape=flat)
    if flat[at] == value.type.shape[at]:
        return within(found, value.type.shape)
    return within(slice_axis(found, at, 0, value.type.shape[at]), value.type.shape)


def _offset(c: Importer, zero: T | None, value: Value, axis: int, block: int) -> Any:
    """A zero point, broadcast to the elements; None where it is zero everywhere."""
    if zero is None or (zero.array is not None and not np.any(zero.array.astype(np.float32))):
        return None
    return _broadcast(c.value(zero), value, axis, block)


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
    dtype = dtype_of(output_dtype) if output_dtype else factor.type.dtype
    if not dtype.is_float or dtype.bits < 16:
        raise ModelError(f"the result would be {dtype}; give output_dtype, a float of 16 bits or more")
    offset = _offset(c, zero_point, value, axis, block_size)
    if offset is not None:  # exact: in floats it would be joined with the product, x * scale - offset * scale
        exact = int32 if value.type.dtype.is_int else float32
        value = ops.sub(cast_to(value, exact), cast_to(offset, exact))
    return cast_to(
        ops.mul(cast_to(value, float32), cast_to(_broadcast(factor, value, axis, block_size), float32)), dtype
    )


def _limits(dtype: DType) -> tuple[int, int]:
    """The least and the largest integer of a type."""
    if dtype.kind == "u":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def _quantized(c: Importer, scaled: Value, zero: Value | None, dtype: DType) -> Any:
    """Rounded, moved by the zero point and kept in the type's range."""
    y = ops.round(scaled)
    if zero is not None:
        y = ops.add(y, cast_to(zero, y.type.dtype))
    bounds = [number(c.builder, n, y.type.dtype) for n in _limits(dtype)]
    return ops.cast(ops.clip(y, *bounds), to=dtype)


def _precision(value: DType, scale: DType, given: int) -> DType:
    """The dtype whose rounding a division has: that of both operands, or float32 where they differ or are no floats."""
    if given:
        return dtype_of(given)
    return scale if value == scale and scale.is_float else float32


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
    dtype = dtype_of(output_dtype) if output_dtype else uint8 if zero_point is None else zero_point.type.dtype
    if zero_point is not None and zero_point.type.dtype != dtype:
        raise ModelError(f"output_dtype is {dtype}, the zero point {zero_point.type}; expected one type")
    rounded = _precision(value.type.dtype, factor.type.dtype, precision)
    upcast = float64 if rounded == float64 else float32
    operands = (cast_to(cast_to(v, rounded), upcast) for v in (value, _broadcast(factor, value, axis, block_size)))
    scaled = cast_to(cast_to(ops.div(*operands), rounded), upcast)
    offset = _offset(c, zero_point, value, axis, block_size)
    if dtype.is_int:
        return _quantized(c, scaled, offset, dtype)
    if offset is not None:
        scaled = ops.add(scaled, cast_to(offset, upcast))
    return ops.cast(scaled, to=dtype, saturate=bool(saturate))


@operator("DynamicQuantizeLinear", 11)
def DynamicQuantizeLinear(c: Importer, x: T) -> Any:
    value = c.value(x)
    axes = tuple(range(value.type.rank))
    zero = number(c.builder, 0, float32)
    high = ops.maximum(ops.reduce_max(value, axes=axes, keepdims=0), zero)
    low = ops.minimum(ops.reduce_min(value, axes=axes, keepdims=0), zero)
    span = ops.sub(high, low)
    scale = ops.where(ops.equal(span, zero), number(c.builder, 1, float32), ops.div(span, 255.0))
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
    a, b, result = (cast_to(s, y.type.dtype) for s in scales)
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
        weight = ops.sub(weight, _broadcast(ops.cast(c.value(w_zero), to=dtype), weight, 0, 0))
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
        y = ops.add(y, _broadcast(ops.cast(c.value(bias), to=y.type.dtype), y, 1, 0))
    scales = (c.value(x_scale), _broadcast(c.value(w_scale), y, 1, 0), c.value(y_scale))
    return _rescaled(c, y, scales, c.value(y_zero))
