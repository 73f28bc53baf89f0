"""Reference of quantized integers: sums in integers, what follows them in float32, as the definitions have it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array, Attributes, Code
from .conv import conv


def _along(vector: Array, rank: int, axis: int) -> Array:
    """A vector with one element per index of an axis; one element broadcasts."""
    if vector.size == 1:
        return vector.reshape(())
    shape = [1] * rank
    shape[axis] = vector.size
    return vector.reshape(shape)


def _rounded(steps: Array, zero: Array, least: int | None = None) -> Array:
    """Whole steps from the zero point, half to even, within the type of it; NaN gives the least."""
    limits = np.iinfo(zero.dtype)
    moved = np.rint(steps) + zero.astype(steps.dtype)
    low = limits.min if least is None else least
    return np.where(moved > low, np.minimum(moved, limits.max), low).astype(zero.dtype)


def _quantize(attributes: Attributes, x: Array, scale: Array, zero: Array) -> Array:
    axis = attributes["axis"]
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = x / _along(scale, x.ndim, axis)
    return _rounded(steps, np.asarray(_along(zero, x.ndim, axis)))


def _dequantize(attributes: Attributes, x: Array, scale: Array, zero: Array) -> Array:
    axis = attributes["axis"]
    shifted = x.astype(np.int64) - _along(zero, x.ndim, axis)
    return np.asarray(shifted.astype(scale.dtype) * _along(scale, x.ndim, axis))


def _dynamic(attributes: Attributes, x: Array) -> tuple[Array, Array, Array]:
    x = x.astype(np.float32)  # the zero point is one of float32
    high, low = np.float32(x.max(initial=0)), np.float32(x.min(initial=0))
    span = high - low
    scale = np.asarray(np.float32(1) if span == 0 else span / np.float32(255))
    zero = np.asarray(np.clip(np.rint(-(low / scale)), 0, 255).astype(np.uint8))
    return _quantize({"axis": 0}, x, scale, zero), scale, zero


def _less_zero(x: Array, zero: Array | None, axis: int) -> Array:
    """Whole numbers in float64, which holds all sums of their products that memory has space for."""
    y = x.astype(np.float64)
    return y if zero is None else y - _along(np.asarray(zero), x.ndim, axis).astype(np.float64)


def _wrapped(sums: Array) -> Array:
    return sums.astype(np.int64).astype(np.int32)


def _matmul_integer(
    attributes: Attributes, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    return _wrapped(np.matmul(_less_zero(a, a_zero, -2), _less_zero(b, b_zero, -1)))


def _conv_integer(
    attributes: Attributes, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Array:
    return _wrapped(conv(attributes, _less_zero(x, x_zero, 0), _less_zero(w, w_zero, 0)))


def _dequantized(sums: Array, left: Array, right: Array, axis: int, bias: Array | None) -> Array:
    """Sums in float32 by the product of the scales of both operands; ``axis`` is that of the second's and the bias."""
    y = sums.astype(left.dtype) * (left.reshape(()) * _along(right, sums.ndim, axis))
    return y if bias is None else np.asarray(y + _along(bias, sums.ndim, axis))


def _requantized(
    sums: Array, left: Array, right: Array, axis: int, scale: Array, zero: Array, bias: Array | None, relu: bool
) -> Array:
    """Sums with their bias in steps of a scale from a zero point."""
    unit = left.reshape(()) * _along(right, sums.ndim, axis)
    if bias is not None:
        added = _along(bias, sums.ndim, axis)
        if bias.dtype.kind == "f":
            added = np.clip(np.rint(added.astype(np.float64) / unit), -(2**31), 2**31 - 1)
        sums = _wrapped(sums.astype(np.int64) + added.astype(np.int64))
    steps = sums.astype(left.dtype) * (unit / scale.reshape(()))
    return _rounded(steps, zero.reshape(()), int(zero.reshape(())) if relu else None)


def _matmul_dequantized(attributes: Attributes, *operands: Any) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, bias = (*operands, None)[:7]
    return _dequantized(_matmul_integer(attributes, a, b, a_zero, b_zero), a_scale, b_scale, -1, bias)


def _matmul_requantized(attributes: Attributes, *operands: Any) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero, bias = (*operands, None)[:9]
    sums = _matmul_integer(attributes, a, b, a_zero, b_zero)
    return _requantized(sums, a_scale, b_scale, -1, scale, zero, bias, attributes["relu"])


def _conv_dequantized(attributes: Attributes, *operands: Any) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, bias = (*operands, None)[:7]
    return _dequantized(_conv_integer(attributes, x, w, x_zero.reshape(()), w_zero), x_scale, w_scale, 1, bias)


def _conv_requantized(attributes: Attributes, *operands: Any) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias = (*operands, None)[:9]
    last = attributes["channels_last"]
    sums = _conv_integer(attributes, np.moveaxis(x, -1, 1) if last else x, w, x_zero.reshape(()), w_zero)
    y = _requantized(sums, x_scale, w_scale, 1, scale, zero, bias, attributes["relu"])
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if last else y


def _add_requantized(attributes: Attributes, *operands: Any) -> Array:
    y = _dequantize({"axis": 0}, *operands[:3]) + _dequantize({"axis": 0}, *operands[3:6])
    return _quantize({"axis": 0}, np.maximum(y, 0) if attributes["relu"] else y, *operands[6:])


def _matmul_blocks(attributes: Attributes, a: Array, b: Array, scale: Array, zero: Array | None = None) -> Array:
    bits, rows = attributes["bits"], len(b)
    elements = _halves(b) if bits == 4 else b
    origin: Array | int = 1 << (bits - 1)
    if zero is not None:
        origin = (_halves(zero) if bits == 4 else zero)[:, : scale.shape[1], None].astype(np.float32)
    blocks = (elements.astype(np.float32) - origin) * scale[:, :, None]
    weight = blocks.reshape(rows, blocks.shape[1] * blocks.shape[2])[:, : attributes["size"]]
    return np.asarray(a @ (weight if attributes["transposed"] else weight.T))


def _halves(x: Array) -> Array:
    """The lower and upper halves of bytes, side by side along the last axis."""
    return np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], 2 * x.shape[-1])


def _lookup(attributes: Attributes, x: Array, table: Array) -> Array:
    return np.asarray(table[x.astype(np.int64) - np.iinfo(x.dtype).min])


KERNELS: dict[str, Code] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "dynamic_quantize": _dynamic,
    "matmul_integer": _matmul_integer,
    "conv_integer": _conv_integer,
    "matmul_dequantized": _matmul_dequantized,
    "matmul_requantized": _matmul_requantized,
    "conv_dequantized": _conv_dequantized,
    "conv_requantized": _conv_requantized,
    "add_requantized": _add_requantized,
    "lookup": _lookup,
    "matmul_blocks": _matmul_blocks,
}
