"""Reference of running sums and of the largest elements."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, wide


def _cumsum(attributes: Attributes, x: Array) -> Array:
    axis = attributes["axis"] % x.ndim
    z = np.flip(wide(x), axis) if attributes["reverse"] else wide(x)
    total = np.cumsum(z, axis=axis)
    if attributes["exclusive"]:
        total = np.roll(total, 1, axis)
        total[tuple(slice(0, 1) if i == axis else slice(None) for i in range(x.ndim))] = 0
    return (np.flip(total, axis) if attributes["reverse"] else total).astype(x.dtype)


def _topk(attributes: Attributes, x: Array) -> tuple[Array, Array]:
    axis, k = attributes["axis"] % x.ndim, attributes["k"]
    if attributes["largest"]:  # from the end, the first of equals first: NaN counts as the largest
        back = np.flip(np.argsort(np.flip(wide(x), axis), axis=axis, kind="stable"), axis)
        order = x.shape[axis] - 1 - back
    else:
        order = np.argsort(wide(x), axis=axis, kind="stable")
    places = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, places, axis=axis), places.astype(np.int64)


KERNELS: dict[str, Code] = {
    "cumsum": _cumsum,
    "topk": _topk,
}
