"""Converters of quantized operators: numbers with a scale and a zero point.

What ops of the family quantized take becomes one of them; other types and scales by block are computed in floats that
hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, DType, TensorType, Value, float32, float64, int8, int16, int32, ops, uint8, uint16
from dataflow.errors import ModelError

from ..block_weights import block_weight
from ..converters import Collector
from ..dynamic_sizes import within
from ..emit import cast_to, number, slice_axis
from ..importer import Importer
from ..shape_eval import axis_in
from ..tensor import Tensor
from .cast import dtype_of
from .conv import window_of
from .linalg import product_of

T = Tensor
operator = Collector()
_EXACT = 1 << 24  # float32 holds every integer up to here
_BYTES = (int8, uint8)
_STORED = (*_BYTES, int16, uint16)


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


def _single(vector: Value) -> bool:
    """Whether a scale or zero point is known to be one number."""
    return all(not isinstance(n, Dim) and n == 1 for n in vector.type.shape)


def _flat(vector: Value) -> Any:
    """One number without axes; others as they are."""
    return ops.reshape(vector, shape=()) if vector.type.rank and _single(vector) else vector


def _pair(c: Importer, scale: Value, zero: Value | None, dtype: DType) -> tuple[Value, Value] | None:
    """Scale and zero point as ops take them: one number each or vectors of equal length; None where they are else."""
    one = _flat(scale)
    if zero is None:
        if one.type.rank == 1 and isinstance(one.type.shape[0], Dim):
            return None
        none = np.zeros([int(n) for n in one.type.shape], dtype.numpy)
        return one, c.builder.constant(none)
    origin = _flat(zero)
    fits = one.type.rank <= 1 and one.type.shape == origin.type.shape
    return (one, origin) if fits else None


def _axis_with_scales(x: TensorType, scale: TensorType, axis: int) -> int:
    """``axis``, or the only axis of more than one element where that has one and there are several scales.

    ONNX Runtime's quantizer gives a bias of shape (1, N) that is quantized by channel the axis 0, and its products
    take it as it is meant.
    """
    if scale.rank != 1 or scale.shape[0] == 1 or not -x.rank <= axis < x.rank or x.shape[axis] != 1:
        return axis
    long = [found for found, size in enumerate(x.shape) if size != 1]
    return long[0] if len(long) == 1 and x.shape[long[0]] == scale.shape[0] else axis


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
    axis = axis if block_size else _axis_with_scales(x.type, scale.type, axis)
    y = _dequantized(c, x, scale, zero_point, axis, block_size, output_dtype)
    zero = None if zero_point is None else zero_point.array
    if x.array is not None and scale.array is not None and (zero is None) == (zero_point is None):
        found = None
        if x.array.ndim == 2:
            found = block_weight(x.array, x.type.dtype, scale.array, zero, axis_in(axis, 2), block_size)
        if found is not None:
            c.blocks[y] = found
    return y


def _dequantized(
    c: Importer, x: T, scale: T, zero_point: T | None, axis: int, block_size: int, output_dtype: int
) -> Any:
    value, factor = c.value(x), c.value(scale)
    if (
        value.type.dtype in (*_STORED, int32)
        and factor.type.dtype == float32
        and output_dtype in (0, 1)
        and not block_size
    ):
        pair = _pair(c, factor, None if zero_point is None else c.value(zero_point), value.type.dtype)
        if pair is not None:
            return ops.dequantize(value, *pair, axis=axis_in(axis, value.type.rank) if pair[0].type.rank else 0)
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
    plain = dtype in _STORED and factor.type.dtype == float32 and value.type.dtype == float32
    if plain and not block_size and precision in (0, 1):
        pair = _pair(c, factor, None if zero_point is None else c.value(zero_point), dtype)
        if pair is not None:
            return ops.quantize(value, *pair, axis=axis_in(axis, value.type.rank) if pair[0].type.rank else 0)
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
    return ops.dynamic_quantize(c.value(x))


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


def _vector(c: Importer, zero: T | None) -> Any:
    """A zero point as one number or a vector."""
    return None if zero is None else _flat(c.value(zero))


def _matmul(c: Importer, a: T, b: T, a_zero: T | None, b_zero: T | None) -> Any:
    """Sums of products in int32."""
    zeros = [_vector(c, zero) for zero in (a_zero, b_zero)]
    if all(zero is None or zero.type.rank <= 1 for zero in zeros):
        return product_of(c, c.value(a), c.value(b), lambda left, right: ops.matmul_integer(left, right, *zeros))
    dtype = _exact(a.type.shape[-1])
    y = product_of(c, _shifted(c, a, a_zero, dtype, False), _shifted(c, b, b_zero, dtype, True), ops.matmul)
    return ops.cast(y, to=int32)


@operator("MatMulInteger", 10)
def MatMulInteger(c: Importer, a: T, b: T, a_zero: T | None = None, b_zero: T | None = None) -> Any:
    return _matmul(c, a, b, a_zero, b_zero)


def _rescaled(c: Importer, y: Value, scales: Sequence[Value], zero: Value) -> Any:
    """Sums of products by the two scales of their factors, in a third."""
    a, b, result = scales
    return _quantized(c, ops.mul(ops.cast(y, to=float32), ops.div(ops.mul(a, b), result)), zero, zero.type.dtype)


@operator("QLinearMatMul", 10)
def QLinearMatMul(c: Importer, a: T, a_scale: T, a_zero: T, b: T, b_scale: T, b_zero: T, y_scale: T, y_zero: T) -> Any:
    left, right = (_flat(c.value(scale)) for scale in (a_scale, b_scale))
    zeros = [_flat(c.value(zero)) for zero in (a_zero, b_zero)]
    result = _flat(c.value(y_scale)), _flat(c.value(y_zero))
    ones = (left, zeros[0], *result)
    floats = all(s.type.dtype == float32 for s in (left, right, result[0]))
    if floats and all(v.type.rank == 0 for v in ones) and right.type.rank <= 1 and zeros[1].type.rank <= 1:
        return ops.matmul_requantized(c.value(a), left, zeros[0], c.value(b), right, zeros[1], *result)
    y = _matmul(c, a, b, a_zero, b_zero)
    left, right, scale = (cast_to(s, float32) for s in (left, right, result[0]))
    if left.type.rank == 1:
        left = ops.reshape(left, shape=(left.type.shape[0], 1))
    return _rescaled(c, y, (left, right, scale), result[1])


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
    given: Any = {"auto_pad": auto_pad, "dilations": dilations, "pads": pads, "strides": strides}
    window = window_of(x.type.shape, [int(n) for n in w.type.shape[2:]], **given)
    zeros = [_vector(c, zero) for zero in (x_zero, w_zero)]
    return ops.conv_integer(c.value(x), c.value(w), *zeros, **window, groups=group)


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
    given: Any = {"auto_pad": auto_pad, "dilations": dilations, "pads": pads, "strides": strides}
    window = window_of(x.type.shape, [int(n) for n in w.type.shape[2:]], **given)
    left, right, result = (
        (_flat(c.value(s)), _flat(c.value(z))) for s, z in ((x_scale, x_zero), (w_scale, w_zero), (y_scale, y_zero))
    )
    added = None if bias is None else c.value(bias)
    return ops.conv_requantized(c.value(x), *left, c.value(w), *right, *result, added, **window, groups=group)
