"""Reference of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import Array, Attributes, Code, lowest, upcast


def _mean(x: Array, axis: tuple[int, ...], keepdims: bool, dtype: Any = None) -> Any:
    """As NumPy's, without its warning where there are no elements, whose mean is NaN."""
    count = math.prod(x.shape[a] for a in axis)
    return np.divide(np.sum(x, axis=axis, keepdims=keepdims, dtype=dtype), count)


def _reduce(function: Callable[..., Any]) -> Code:
    def code(attributes: Attributes, x: Array) -> Array:
        axes = attributes["axes"]
        axes = tuple(range(x.ndim)) if axes is None else tuple(a % x.ndim for a in axes)
        z = upcast(x)
        if z.size == 0 and function in (np.max, np.min):
            extreme = lowest(x.dtype, 1 if function is np.max else -1)
            kept = np.zeros(x.shape, np.bool_).any(axis=axes, keepdims=bool(attributes["keepdims"]))
            return np.full(kept.shape, extreme, x.dtype)
        # NumPy adds in pairs only where elements lie side by side: elsewhere long sums of float32 would err.
        longer = {"dtype": np.float64} if function in (np.sum, _mean) and z.dtype == np.float32 else {}
        found = function(z, axis=axes, keepdims=bool(attributes["keepdims"]), **longer)
        return np.asarray(found).astype(x.dtype)

    return code


def _arg(function: Callable[..., Any]) -> Code:
    def code(attributes: Attributes, x: Array) -> Array:
        axis = attributes["axis"] % x.ndim
        if attributes["select_last_index"]:
            found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
        else:
            found = function(x, axis=axis)
        found = np.asarray(found, np.int64)
        return np.expand_dims(found, axis) if attributes["keepdims"] else found

    return code


def _sum_to(attributes: Attributes, x: Array) -> Array:
    shape = attributes["shape"]
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, s in enumerate(shape) if s == 1 and x.shape[lead + i] != 1))
    return np.asarray(upcast(x).sum(axis=axes, keepdims=True)).astype(x.dtype).reshape(shape)


KERNELS: dict[str, Code] = {
    "reduce_sum": _reduce(np.sum),
    "reduce_mean": _reduce(_mean),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reduce_prod": _reduce(np.prod),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "sum_to": _sum_to,
}
