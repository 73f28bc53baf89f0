"""Reference of running sums, recurrences and of the largest elements."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, upcast


def _cumsum(attributes: Attributes, x: Array) -> Array:
    axis = attributes["axis"] % x.ndim
    z = np.flip(upcast(x), axis) if attributes["reverse"] else upcast(x)
    total = np.cumsum(z, axis=axis, dtype=np.float64 if z.dtype == np.float32 else None)  # one rounding, not thousands
    if attributes["exclusive"]:
        total = np.roll(total, 1, axis)
        total[tuple(slice(0, 1) if i == axis else slice(None) for i in range(x.ndim))] = 0
    return (np.flip(total, axis) if attributes["reverse"] else total).astype(x.dtype)


def _linear_recurrence(attributes: Attributes, a: Array, b: Array) -> Array:
    factors, terms = (np.moveaxis(upcast(v), attributes["axis"], 0) for v in (a, b))
    y = terms.copy()
    order = range(len(y) - 2, -1, -1) if attributes["reverse"] else range(1, len(y))
    step = 1 if attributes["reverse"] else -1
    for i in order:
        y[i] += factors[i] * y[i + step]
    return np.ascontiguousarray(np.moveaxis(y, 0, attributes["axis"])).astype(b.dtype)


def _topk(attributes: Attributes, x: Array) -> tuple[Array, Array]:
    axis, k = attributes["axis"] % x.ndim, attributes["k"]
    if attributes["largest"]:  # from the end, the first of equals first: NaN counts as the largest
        descending = np.flip(np.argsort(np.flip(upcast(x), axis), axis=axis, kind="stable"), axis)
        order = x.shape[axis] - 1 - descending
    else:
        order = np.argsort(upcast(x), axis=axis, kind="stable")
    indices = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, indices, axis=axis), indices.astype(np.int64)


KERNELS: dict[str, Code] = {
    "cumsum": _cumsum,
    "linear_recurrence": _linear_recurrence,
    "topk": _topk,
}
