"""Reference of activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .arithmetic import erf, unary
from .arrays import Array, Attributes, Code, upcast
from .reduce import KERNELS as REDUCTIONS


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _relu_grad(attributes: Attributes, dy: Array, y: Array) -> Array:
    return np.where(y > 0, dy, np.zeros((), dy.dtype))


def _gelu(attributes: Attributes, x: Array) -> Array:
    z = upcast(x)
    if attributes["approximate"] == "tanh":
        gate = np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
    else:
        gate = erf(z * math.sqrt(0.5))
    return (z * (1 + gate) * 0.5).astype(x.dtype)


def _with(function: Callable[..., Any]) -> Code:
    """An activation with attributes: ``function(x, **attributes)``."""
    return lambda attributes, x: np.asarray(function(upcast(x), **attributes)).astype(x.dtype)


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _gelu_grad(attributes: Attributes, dy: Array, x: Array) -> Array:
    z = upcast(x)
    if attributes["approximate"] == "tanh":
        factor = np.sqrt(2 / np.pi)
        gate = np.tanh(factor * (z + 0.044715 * z**3))
        slope = 0.5 * (1 + gate) + 0.5 * z * (1 - gate**2) * factor * (1 + 3 * 0.044715 * z**2)
    else:
        slope = 0.5 * (1 + erf(z * np.sqrt(0.5))) + z * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return (upcast(dy) * slope).astype(dy.dtype)


def _gelu_grad_sums(attributes: Attributes, dy: Array, x: Array) -> tuple[Array, Array]:
    dx = _gelu_grad(attributes, dy, x)
    axes = {"axes": tuple(range(dx.ndim - 1)), "keepdims": attributes["keepdims"]}
    return dx, np.asarray(REDUCTIONS["reduce_sum"](axes, dx))


KERNELS: dict[str, Code] = {
    "relu": unary(lambda x: np.maximum(x, 0)),
    "relu_grad": _relu_grad,
    "sigmoid": unary(sigmoid),
    "softplus": unary(_softplus),
    "softsign": unary(lambda x: x / (1 + np.abs(x))),
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
    "gelu_grad_sums": _gelu_grad_sums,
    "prelu": lambda attributes, x, slope: np.where(x > 0, x, x * slope).astype(x.dtype),
}
