"""Reference of comparisons, logic, bits, and choices by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import Array, Attributes, Code, upcast


def _compare(function: Callable[[Array, Array], Any]) -> Code:
    return lambda attributes, a, b: np.asarray(function(a, b), np.bool_)


def _is_inf(attributes: Attributes, x: Array) -> Array:
    x = upcast(x)
    found = np.zeros(x.shape, np.bool_)
    if attributes["detect_positive"]:
        found |= np.isposinf(x)
    if attributes["detect_negative"]:
        found |= np.isneginf(x)
    return found


def _bits(function: Callable[[Array, Array], Any]) -> Code:
    return lambda attributes, a, b: np.asarray(function(a, b))


def _bit_shift(attributes: Attributes, a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    within = (b >= 0) & (b < bits)
    by = np.where(within, b, 0).astype(a.dtype)
    if attributes["left"]:
        return np.where(within, np.left_shift(a, by), 0).astype(a.dtype)
    return np.where(within, np.right_shift(a, by), -(a < 0).astype(a.dtype))


def _where(attributes: Attributes, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


KERNELS: dict[str, Code] = {
    "logical_not": lambda attributes, x: np.logical_not(x),
    "bitwise_not": lambda attributes, x: np.invert(x),
    "bitwise_and": _bits(np.bitwise_and),
    "bitwise_or": _bits(np.bitwise_or),
    "bitwise_xor": _bits(np.bitwise_xor),
    "bit_shift": _bit_shift,
    "is_nan": lambda attributes, x: np.isnan(upcast(x)),
    "is_inf": _is_inf,
    "equal": _compare(np.equal),
    "less": _compare(np.less),
    "less_equal": _compare(np.less_equal),
    "greater": _compare(np.greater),
    "greater_equal": _compare(np.greater_equal),
    "logical_and": _compare(np.logical_and),
    "logical_or": _compare(np.logical_or),
    "logical_xor": _compare(np.logical_xor),
    "where": _where,
}
