"""Reference of ops whose results' shapes depend on data."""

from __future__ import annotations

import numpy as np

from dataflow.errors import InputError

from .arrays import Array, Attributes, Code, upcast
from .image import decode_image, image_size


def _nonzero(attributes: Attributes, x: Array) -> Array:
    found = np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1) if x.ndim else np.zeros((0, int(bool(x))), np.int64)
    if found.shape[1] != attributes["count"]:
        raise InputError(f"nonzero: {found.shape[1]} elements are not zero; count is {attributes['count']}")
    return found


def _sizes(attributes: Attributes) -> Array:
    return np.array(attributes["values"], attributes["dtype"].numpy).reshape(attributes["shape"])


def _deferred(attributes: Attributes, *operands: Array) -> Array:
    raise InputError(f"deferred: {attributes['why']}")


def _unique(attributes: Attributes, x: Array) -> tuple[Array, Array]:
    rows = upcast(x)
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(len(rows))
    before, after = rows[order[:-1]], rows[order[1:]]
    equal = before == after
    if rows.dtype.kind in "fc":
        equal |= np.isnan(before) & np.isnan(after)
    changes = np.concatenate([[False], ~equal.all(axis=1)]) if len(rows) else np.zeros(0, np.bool_)
    ids = np.empty(len(rows), np.int64)
    ids[order] = np.cumsum(changes)
    count = int(changes.sum()) + bool(len(rows))
    if not attributes["sorted"]:
        first = np.full(count, len(rows))
        np.minimum.at(first, ids, np.arange(len(rows)))
        ids = np.argsort(np.argsort(first))[ids]
    return ids, np.array(count, np.int64)


KERNELS: dict[str, Code] = {
    "deferred": _deferred,
    "sizes": _sizes,
    "read_shape": lambda attributes, x: x.copy(),
    "require": lambda attributes, x: x.copy(),
    "keyed": lambda attributes, x: x.copy(),
    "nonzero": _nonzero,
    "unique": _unique,
    "image_size": image_size,
    "decode_image": decode_image,
}
