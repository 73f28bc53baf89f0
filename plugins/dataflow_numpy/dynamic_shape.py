"""Reference of ops whose results' shapes depend on data."""

from __future__ import annotations

import numpy as np

from dataflow.errors import InputError

from .arrays import Array, Attributes, Code


def _nonzero(attributes: Attributes, x: Array) -> Array:
    found = np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1) if x.ndim else np.zeros((0, int(bool(x))), np.int64)
    if found.shape[1] != attributes["count"]:
        raise InputError(f"nonzero: {found.shape[1]} elements are not zero; count is {attributes['count']}")
    return found


def _sizes(attributes: Attributes) -> Array:
    return np.array(attributes["values"], attributes["dtype"].numpy).reshape(attributes["shape"])


def _deferred(attributes: Attributes, *operands: Array) -> Array:
    raise InputError(f"deferred: {attributes['why']}")


KERNELS: dict[str, Code] = {
    "deferred": _deferred,
    "sizes": _sizes,
    "read_shape": lambda attributes, x: x.copy(),
    "require": lambda attributes, x: x.copy(),
    "nonzero": _nonzero,
}
