"""Reference of casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow import DType
from dataflow.plugin import dtype

from .arrays import Array, Attributes, Code, upcast
from .strings import numbers_of_strings, strings_of_numbers


def _to_powers(x: Array, saturate: bool, round_mode: str) -> Array:
    """Magnitudes as codes of float8_e8m0fnu: the exponent of a power of two and 127, of which 255 is NaN."""
    fraction, exponent = np.frexp(np.abs(x))  # fraction in [0.5, 1); 0, infinity and NaN as they are
    up = {"up": fraction > 0.5, "down": np.zeros_like(fraction, bool), "nearest": fraction >= 0.75}[round_mode]
    power = np.where(fraction == 0, -1, np.where(np.isinf(fraction), 255, exponent + 126 + up))
    code = np.clip(power, 0, 254) if saturate else np.where((power < 0) | (power > 254), 255, power)
    found: Array = np.where(np.isnan(fraction), 255, code).astype(np.uint8)
    return found


def _narrow_to_odd(x: Array) -> Array:
    """float64 to float32 so that rounding once more is right: where bits are lost, the last that is kept is 1."""
    nearest = np.atleast_1d(x.astype(np.float32))
    toward_zero = np.where(np.abs(nearest) > np.abs(x), np.nextafter(nearest, np.float32(0)), nearest)
    inexact = (nearest != x) & (np.abs(x) < 2.0**128)
    return np.where(inexact, (toward_zero.view(np.int32) | 1).view(np.float32), nearest).reshape(x.shape)


def _to_small(x: Array, to: DType, saturate: bool, round_mode: str) -> Array:
    """float32 to floats of 8 bits and fewer."""
    if to.name == "float8_e8m0fnu":
        return _to_powers(x, saturate, round_mode).view(to.numpy)
    if to.bits < 8:  # without NaN
        return np.where(np.isnan(x), np.copysign(np.float32(0), x), x).astype(to.numpy)
    if saturate:
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo  # it isn't typed
        limits = finfo(to.numpy)
        x = np.clip(x, np.float32(limits.min), np.float32(limits.max))
    return x.astype(to.numpy)


def cast_array(x: Array, to: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """``x`` in another dtype, as the op ``cast`` defines it."""
    if x.dtype == object:
        return x if to.kind == "s" else cast_array(numbers_of_strings(x, to), to, saturate, round_mode)
    if to.kind == "s":
        return strings_of_numbers(upcast(x))
    is_float = dtype(x).is_float
    if is_float:
        x = upcast(x)
    if to.is_float and to.bits <= 16 and x.dtype == np.float64:  # ml_dtypes would round twice
        x = _narrow_to_odd(x)
    if to.is_float and to.bits <= 8:
        return _to_small(x.astype(np.float32), to, saturate, round_mode)
    if to.is_int and is_float:  # out of range: the nearest end, NaN the lower
        held = to.numpy if to.bits >= 8 else np.dtype(np.int32)
        low, high = np.iinfo(held).min, x.dtype.type(np.iinfo(held).max)
        if int(high) > np.iinfo(held).max:  # rounded up when converted to a float
            high = np.nextafter(high, x.dtype.type(0))
        return np.where(x >= low, np.minimum(x, high), x.dtype.type(low)).astype(held).astype(to.numpy)
    if to.is_int and to.bits < 8:  # ml_dtypes has no casts between its own types
        x = x.astype(np.int8)
    return x.astype(to.numpy)


def _cast(attributes: Attributes, x: Array) -> Array:
    return cast_array(x, attributes["to"], attributes["saturate"], attributes["round_mode"])


def _bitcast(attributes: Attributes, x: Array) -> Array:
    to = attributes["to"]
    if x.dtype == np.float64 and to.bits == 32:  # the kit computes float32 in float64
        x = x.astype(np.float32)
    return x.view(to.numpy)


KERNELS: dict[str, Code] = {
    "cast": _cast,
    "bitcast": _bitcast,
}
