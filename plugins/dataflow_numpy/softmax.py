"""Reference of softmax and its logarithm."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, upcast


def _softmax(attributes: Attributes, x: Array) -> Array:
    z, axis = upcast(x), attributes["axis"]
    if z.size == 0:
        return x.copy()
    grown = np.exp(z - z.max(axis=axis, keepdims=True))
    return (grown / grown.sum(axis=axis, keepdims=True)).astype(x.dtype)


def _softmax_grad(attributes: Attributes, dy: Array, y: Array) -> Array:
    g, p = upcast(dy), upcast(y)
    return (p * (g - (g * p).sum(axis=attributes["axis"], keepdims=True))).astype(dy.dtype)


def _log_softmax(attributes: Attributes, x: Array) -> Array:
    z, axis = upcast(x), attributes["axis"]
    if not z.size:
        return x.copy()
    below = z - z.max(axis=axis, keepdims=True)  # first: a sum of exponents and maximum would lose digits
    return (below - np.log(np.exp(below).sum(axis=axis, keepdims=True))).astype(x.dtype)


def _log_softmax_grad(attributes: Attributes, dy: Array, y: Array) -> Array:
    g = upcast(dy)
    return (g - np.exp(upcast(y)) * g.sum(axis=attributes["axis"], keepdims=True)).astype(dy.dtype)


KERNELS: dict[str, Code] = {
    "softmax": _softmax,
    "softmax_grad": _softmax_grad,
    "log_softmax": _log_softmax,
    "log_softmax_grad": _log_softmax_grad,
}
