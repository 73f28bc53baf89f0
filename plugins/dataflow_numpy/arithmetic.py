"""Reference of elementwise ops: floats of two bytes are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]
Code = Callable[..., Any]


def wide(x: Array) -> Array:
    """``x`` in a dtype that NumPy computes well in: two-byte floats become float32."""
    return x.astype(np.float32) if x.dtype.kind in "fV" and x.dtype.itemsize <= 2 else x


def lowest(dtype: np.dtype[Any], sign: int = 1) -> Any:
    """What is below every number of ``dtype``, or its least; with sign -1 what is above, or the largest."""
    if dtype.kind in "fc":
        return -np.inf * sign
    if dtype.kind == "b":
        return sign < 0
    import ml_dtypes

    of_ints: Any = ml_dtypes.iinfo  # neither has types
    of_floats: Any = ml_dtypes.finfo
    least = np.asarray(-np.inf * sign).astype(dtype) if not dtype.name.startswith(("int", "uint")) else None
    if least is not None and np.isinf(least.astype(np.float32)):
        return least
    limits = of_ints(dtype) if least is None else of_floats(dtype)
    return limits.min if sign > 0 else limits.max


def _unary(function: Callable[[Array], Any]) -> Code:
    def code(attributes: Attributes, x: Array) -> Array:
        return np.asarray(function(wide(x))).astype(x.dtype)

    return code


def _binary(function: Callable[[Array, Array], Any]) -> Code:
    def code(attributes: Attributes, a: Array, b: Array) -> Array:
        return np.asarray(function(wide(a), wide(b))).astype(a.dtype)

    return code


def _compare(function: Callable[[Array, Array], Any]) -> Code:
    return lambda attributes, a, b: np.asarray(function(a, b), np.bool_)


_erf_one = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """The error function, element by element in double precision."""
    found: Array = np.asarray(_erf_one(x.astype(np.float64)), np.float64).astype(x.dtype)
    return found


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


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
    return np.asarray(function(wide(a), wide(b))).astype(a.dtype)


def _pow(a: Array, b: Array) -> Array:
    if a.dtype.kind == "i":  # of a negative exponent: the quotient towards zero, 0 for a division by zero
        inverse = np.where(b % 2 == 0, np.abs(a), a) * (np.abs(a) == 1)
        return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))
    return np.power(a, b)


def _cast(attributes: Attributes, x: Array) -> Array:
    to = attributes["to"].numpy
    if x.dtype.kind in "fV" and attributes["to"].is_int:  # out of range: the nearest end, NaN the lower
        x = wide(x)
        if attributes["to"].bits < 8:
            return np.trunc(x).astype(to)
        low, high = np.iinfo(to).min, x.dtype.type(np.iinfo(to).max)
        if int(high) > np.iinfo(to).max:  # rounded up on the way to a float
            high = np.nextafter(high, x.dtype.type(0))
        return np.where(x >= low, np.minimum(x, high), x.dtype.type(low)).astype(to)
    return x.astype(to)


def _is_inf(attributes: Attributes, x: Array) -> Array:
    x = wide(x)
    found = np.zeros(x.shape, np.bool_)
    if attributes["detect_positive"]:
        found |= np.isposinf(x)
    if attributes["detect_negative"]:
        found |= np.isneginf(x)
    return found


def _where(attributes: Attributes, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


def _clip(attributes: Attributes, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    if low is not None:
        x = np.maximum(x, low)
    return np.minimum(x, high) if high is not None else x.copy()


def _relu_grad(attributes: Attributes, dy: Array, y: Array) -> Array:
    return np.where(y > 0, dy, np.zeros((), dy.dtype))


def _gelu(attributes: Attributes, x: Array) -> Array:
    z = wide(x)
    if attributes["approximate"] == "tanh":
        gate = np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
    else:
        gate = erf(z * math.sqrt(0.5))
    return (z * (1 + gate) * 0.5).astype(x.dtype)


def _with(function: Callable[..., Any]) -> Code:
    """An activation with attributes: ``function(x, **attributes)``."""
    return lambda attributes, x: np.asarray(function(wide(x), **attributes)).astype(x.dtype)


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _gelu_grad(attributes: Attributes, dy: Array, x: Array) -> Array:
    z = wide(x)
    if attributes["approximate"] == "tanh":
        factor = np.sqrt(2 / np.pi)
        gate = np.tanh(factor * (z + 0.044715 * z**3))
        slope = 0.5 * (1 + gate) + 0.5 * z * (1 - gate**2) * factor * (1 + 3 * 0.044715 * z**2)
    else:
        slope = 0.5 * (1 + erf(z * np.sqrt(0.5))) + z * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return (wide(dy) * slope).astype(dy.dtype)


KERNELS: dict[str, Code] = {
    "neg": _unary(np.negative),
    "copy": lambda attributes, x: x.copy(),
    "abs": _unary(np.abs),
    "sign": _unary(np.sign),
    "relu": _unary(lambda x: np.maximum(x, 0)),
    "relu_grad": _relu_grad,
    "exp": _unary(np.exp),
    "log": _unary(np.log),
    "sqrt": _unary(np.sqrt),
    "reciprocal": _unary(lambda x: 1 / x),
    "sin": _unary(np.sin),
    "cos": _unary(np.cos),
    "tan": _unary(np.tan),
    "asin": _unary(np.arcsin),
    "acos": _unary(np.arccos),
    "atan": _unary(np.arctan),
    "sinh": _unary(np.sinh),
    "cosh": _unary(np.cosh),
    "tanh": _unary(np.tanh),
    "asinh": _unary(np.arcsinh),
    "acosh": _unary(np.arccosh),
    "atanh": _unary(np.arctanh),
    "sigmoid": _unary(sigmoid),
    "erf": _unary(erf),
    "floor": _unary(np.floor),
    "ceil": _unary(np.ceil),
    "round": _unary(np.rint),
    "softplus": _unary(_softplus),
    "softsign": _unary(lambda x: x / (1 + np.abs(x))),
    "logical_not": lambda attributes, x: np.logical_not(x),
    "bitwise_not": lambda attributes, x: np.invert(x),
    "is_nan": lambda attributes, x: np.isnan(wide(x)),
    "is_inf": _is_inf,
    "cast": _cast,
    "leaky_relu": _with(lambda x, alpha: np.where(x > 0, x, alpha * x)),
    "elu": _with(lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))),
    "selu": _with(_selu),
    "celu": _with(lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))),
    "thresholded_relu": _with(lambda x, alpha: np.where(x > alpha, x, 0)),
    "hard_sigmoid": _with(lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
    "hard_swish": _with(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "mish": _with(lambda x: x * np.tanh(_softplus(x))),
    "gelu": _gelu,
    "gelu_grad": _gelu_grad,
    "clip": _clip,
    "prelu": lambda attributes, x, slope: np.where(x > 0, x, x * slope).astype(x.dtype),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "div": _binary(_divide),
    "pow": _binary(_pow),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "mod": _mod,
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
