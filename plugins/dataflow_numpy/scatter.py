"""Reference of ops that read and write by tensors of indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array, Attributes, Code, check_indices, upcast

_REDUCE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _element_positions(attributes: Attributes, shape: tuple[int, ...], indices: Array, what: str) -> tuple[Array, ...]:
    axis = attributes["axis"] % len(shape)
    positions: list[Array] = list(np.indices(indices.shape, sparse=True))
    positions[axis] = check_indices(indices, shape[axis], what)
    return tuple(np.broadcast_arrays(*positions))


def _row_positions(attributes: Attributes, shape: tuple[int, ...], indices: Array, what: str) -> tuple[Array, ...]:
    shared = attributes["batch_dims"]
    entries = indices.shape[:-1]
    positions: list[Array] = list(np.indices(entries, sparse=True))[:shared]
    positions += [check_indices(indices[..., i], shape[shared + i], what) for i in range(indices.shape[-1])]
    return tuple(np.broadcast_to(p, entries) for p in positions)


def _scattered(data: Array, positions: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """One after the other, in row-major order of the entries."""
    if reduction == "none":
        out = data.copy()
        for entry in np.ndindex(*positions[0].shape) if positions else [()]:
            out[tuple(p[entry] for p in positions)] = updates[entry]
        return out
    total = upcast(data).copy()
    if positions:
        _REDUCE[reduction].at(total, positions, upcast(updates))
    else:
        total = _REDUCE[reduction](total, upcast(updates))
    return np.asarray(total).astype(data.dtype)


def _gather_elements(attributes: Attributes, x: Array, indices: Array) -> Array:
    return np.asarray(x[_element_positions(attributes, x.shape, indices, "gather_elements")]).reshape(indices.shape)


def _scatter_elements(attributes: Attributes, data: Array, indices: Array, updates: Array) -> Array:
    positions = _element_positions(attributes, data.shape, indices, "scatter_elements")
    return _scattered(data, positions, updates, attributes["reduction"])


def _gather_nd(attributes: Attributes, x: Array, indices: Array) -> Array:
    positions = _row_positions(attributes, x.shape, indices, "gather_nd")
    if not positions:
        return np.broadcast_to(x, (*indices.shape[:-1], *x.shape)).copy()
    return np.asarray(x[positions])


def _scatter_nd(attributes: Attributes, data: Array, indices: Array, updates: Array) -> Array:
    positions = _row_positions(attributes, data.shape, indices, "scatter_nd")
    if not positions:  # no coordinates: every entry is all of it
        for entry in np.ndindex(*indices.shape[:-1]):
            data = (
                updates[entry]
                if attributes["reduction"] == "none"
                else _scattered(data, (), updates[entry], attributes["reduction"])
            )
        return data.copy()
    return _scattered(data, positions, updates, attributes["reduction"])


KERNELS: dict[str, Code] = {
    "gather_elements": _gather_elements,
    "scatter_elements": _scatter_elements,
    "gather_nd": _gather_nd,
    "scatter_nd": _scatter_nd,
}
