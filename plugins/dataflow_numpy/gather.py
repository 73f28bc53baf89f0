"""Reference of ops that read rows by index, and of sources."""

from __future__ import annotations

import itertools

import numpy as np

from .arrays import Array, Attributes, Code, check_indices, upcast


def _gather(attributes: Attributes, x: Array, indices: Array) -> Array:
    axis = attributes["axis"] % x.ndim
    return np.take(x, check_indices(indices, x.shape[axis], "gather"), axis=axis)


def _find(attributes: Attributes, x: Array, keys: Array) -> Array:
    if keys.dtype == object:
        position = {key: index for index, key in enumerate(keys.tolist())}
        positions = map(position.get, x.reshape(-1).tolist(), itertools.repeat(len(keys)))
        return np.fromiter(positions, np.int64, x.size).reshape(x.shape)
    x, keys = upcast(x), upcast(keys)
    found = np.searchsorted(keys, x).astype(np.int64)
    if len(keys) == 0:
        return found
    at = keys[np.minimum(found, len(keys) - 1)]
    return np.where((at == x) | ((at != at) & (x != x)), found, len(keys))


def _index_add(attributes: Attributes, indices: Array, updates: Array, addend: Array | None = None) -> Array:
    size = attributes["size"]
    rank = updates.ndim - indices.ndim + 1
    axis = attributes["axis"] % rank
    rows = check_indices(indices, size, "index_add").reshape(-1)
    moved = updates.reshape(*updates.shape[:axis], rows.size, *updates.shape[axis + indices.ndim :])
    moved = np.moveaxis(upcast(moved), axis, 0)
    out = np.zeros((size, *moved.shape[1:]), moved.dtype)
    np.add.at(out, rows, moved)
    y = np.moveaxis(out, 0, axis)
    return (y if addend is None else y + upcast(addend)).astype(updates.dtype)


def _one_hot(attributes: Attributes, indices: Array) -> Array:
    depth = attributes["depth"]
    axis = attributes["axis"] % (indices.ndim + 1)
    wrapped = np.where(indices < 0, indices + depth, indices)
    hot = np.expand_dims(wrapped, axis) == np.arange(depth).reshape(
        [depth if i == axis else 1 for i in range(indices.ndim + 1)]
    )
    found: Array = hot.astype(attributes["dtype"].numpy)
    return found


def _range(attributes: Attributes) -> Array:
    start, limit, delta = attributes["start"], attributes["limit"], attributes["delta"]
    count = max(0, int(-(-(limit - start) // delta)))
    found: Array = (start + np.arange(count) * delta).astype(attributes["dtype"].numpy)
    return found


KERNELS: dict[str, Code] = {
    "gather": _gather,
    "find": _find,
    "index_add": _index_add,
    "one_hot": _one_hot,
    "full": lambda attributes: np.full(attributes["shape"], attributes["value"], attributes["dtype"].numpy),
    "range_": _range,
}
