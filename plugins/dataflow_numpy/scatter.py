"""Reference of ops that read and write by tensors of indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array, Attributes, Code, check_indices, wide

_REDUCE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _element_places(attributes: Attributes, shape: tuple[int, ...], indices: Array, what: str) -> tuple[Array, ...]:
    axis = attributes["axis"] % len(shape)
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = check_indices(indices, shape[axis], what)
    return tuple(np.broadcast_arrays(*places))


def _row_places(attributes: Attributes, shape: tuple[int, ...], indices: Array, what: str) -> tuple[Array, ...]:
    shared = attributes["batch_dims"]
    entries = indices.shape[:-1]
    places: list[Array] = list(np.indices(entries, sparse=True))[:shared]
    places += [check_indices(indices[..., i], shape[shared + i], what) for i in range(indices.shape[-1])]
    return tuple(np.broadcast_to(p, entries) for p in places)


def _scattered(data: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """One after the other, in row-major order of the entries."""
    if reduction == "none":
        out = data.copy()
        for entry in np.ndindex(*places[0].shape) if places else [()]:
            out[tuple(p[entry] for p in places)] = updates[entry]
        return out
    total = wide(data).copy()
    if places:
        _REDUCE[reduction].at(total, places, wide(updates))
    else:
        total = _REDUCE[reduction](total, wide(updates))
    return np.asarray(total).astype(data.dtype)


def _gather_elements(attributes: Attributes, x: Array, indices: Array) -> Array:
    return np.asarray(x[_element_places(attributes, x.shape, indices, "gather_elements")]).reshape(indices.shape)


def _scatter_elements(attributes: Attributes, data: Array, indices: Array, updates: Array) -> Array:
    places = _element_places(attributes, data.shape, indices, "scatter_elements")
    return _scattered(data, places, updates, attributes["reduction"])


def _gather_nd(attributes: Attributes, x: Array, indices: Array) -> Array:
    places = _row_places(attributes, x.shape, indices, "gather_nd")
    if not places:
        return np.broadcast_to(x, (*indices.shape[:-1], *x.shape)).copy()
    return np.asarray(x[places])


def _scatter_nd(attributes: Attributes, data: Array, indices: Array, updates: Array) -> Array:
    places = _row_places(attributes, data.shape, indices, "scatter_nd")
    if not places:  # no coordinates: every entry is all of it
        for entry in np.ndindex(*indices.shape[:-1]):
            data = (
                updates[entry]
                if attributes["reduction"] == "none"
                else _scattered(data, (), updates[entry], attributes["reduction"])
            )
        return data.copy()
    return _scattered(data, places, updates, attributes["reduction"])


KERNELS: dict[str, Code] = {
    "gather_elements": _gather_elements,
    "scatter_elements": _scatter_elements,
    "gather_nd": _gather_nd,
    "scatter_nd": _scatter_nd,
}
