"""Reference of arithmetic: floats of two bytes are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import Array, Attributes, Code, upcast


def unary(function: Callable[[Array], Any]) -> Code:
    """The kernel of ``function``, computed in the dtype of ``upcast`` and rounded once."""

    def code(attributes: Attributes, x: Array) -> Array:
        return np.asarray(function(upcast(x))).astype(x.dtype)

    return code


def _binary(function: Callable[[Array, Array], Any]) -> Code:
    def code(attributes: Attributes, a: Array, b: Array) -> Array:
        return np.asarray(function(upcast(a), upcast(b))).astype(a.dtype)

    return code


_erf_one = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """The error function, element by element in double precision."""
    found: Array = np.asarray(_erf_one(x.astype(np.float64)), np.float64).astype(x.dtype)
    return found


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":  # towards zero; a division by zero gives 0
        safe = np.where(b == 0, 1, b)
        quotient = a // safe  # rounded down; the least number has no absolute value to divide
        if a.dtype.kind == "i":
            quotient += (a != quotient * safe) & ((a < 0) != (b < 0))
        return np.where(b == 0, 0, quotient)
    return a / b


def _mod(attributes: Attributes, a: Array, b: Array) -> Array:
    function = np.fmod if attributes["fmod"] else np.mod
    if a.dtype.kind in "iu":
        safe = np.where(b == 0, 1, b)
        return np.where(b == 0, 0, function(a, safe)).astype(a.dtype)
    return np.asarray(function(upcast(a), upcast(b))).astype(a.dtype)


def _pow(a: Array, b: Array) -> Array:
    if a.dtype.kind == "i":  # of a negative exponent: the quotient towards zero, 0 for a division by zero
        inverse = np.where(b % 2 == 0, np.abs(a), a) * (np.abs(a) == 1)
        return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))
    return np.power(a, b)


def _clip(attributes: Attributes, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    if low is not None:
        x = np.maximum(x, low)
    return np.minimum(x, high) if high is not None else x.copy()


KERNELS: dict[str, Code] = {
    "neg": unary(np.negative),
    "copy": lambda attributes, x: x.copy(),
    "stop_gradient": lambda attributes, x: x.copy(),
    "abs": unary(np.abs),
    "sign": unary(np.sign),
    "exp": unary(np.exp),
    "log": unary(np.log),
    "sqrt": unary(np.sqrt),
    "reciprocal": unary(lambda x: 1 / x),
    "sin": unary(np.sin),
    "cos": unary(np.cos),
    "tan": unary(np.tan),
    "asin": unary(np.arcsin),
    "acos": unary(np.arccos),
    "atan": unary(np.arctan),
    "sinh": unary(np.sinh),
    "cosh": unary(np.cosh),
    "tanh": unary(np.tanh),
    "asinh": unary(np.arcsinh),
    "acosh": unary(np.arccosh),
    "atanh": unary(np.arctanh),
    "erf": unary(erf),
    "floor": unary(np.floor),
    "ceil": unary(np.ceil),
    "round": unary(np.rint),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "div": _binary(_divide),
    "pow": _binary(_pow),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "mod": _mod,
    "clip": _clip,
}
