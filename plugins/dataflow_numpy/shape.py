"""Reference of ops that reduce, move and index."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dataflow.errors import InputError

from .arithmetic import Array, Attributes, Code, lowest, wide


def _mean(x: Array, axis: tuple[int, ...], keepdims: bool, dtype: Any = None) -> Any:
    """As numpy's, which warns of no elements; their mean is NaN."""
    count = math.prod(x.shape[a] for a in axis)
    return np.divide(np.sum(x, axis=axis, keepdims=keepdims, dtype=dtype), count)


def _reduce(function: Callable[..., Any]) -> Code:
    def code(attributes: Attributes, x: Array) -> Array:
        axes = attributes["axes"]
        axes = tuple(range(x.ndim)) if axes is None else tuple(a % x.ndim for a in axes)
        z = wide(x)
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
    return np.asarray(wide(x).sum(axis=axes, keepdims=True)).astype(x.dtype).reshape(shape)


def ranges(attributes: Attributes) -> tuple[slice, ...]:
    """Python slices for the attributes starts, stops and steps; a stop below 0 is before the first element."""
    parts = zip(attributes["starts"], attributes["stops"], attributes["steps"], strict=True)
    return tuple(slice(0, 0) if a < 0 else slice(a, None if b < 0 else b, s) for a, b, s in parts)


def _slice_grad(attributes: Attributes, dy: Array) -> Array:
    out = np.zeros(attributes["shape"], dy.dtype)
    if dy.size:
        out[ranges(attributes)] = dy
    return out


def _slice(attributes: Attributes, x: Array) -> Array:
    return x[ranges(attributes)]


def _pad(attributes: Attributes, x: Array, value: Array | None = None) -> Array:
    pads, rank = attributes["pads"], x.ndim
    crop = tuple(slice(max(-pads[i], 0), x.shape[i] - max(-pads[i + rank], 0)) for i in range(rank))
    grow = [(max(pads[i], 0), max(pads[i + rank], 0)) for i in range(rank)]
    if attributes["mode"] == "constant":
        fill = np.zeros((), x.dtype) if value is None else value
        out = np.full([c.stop - c.start + a + b for c, (a, b) in zip(crop, grow, strict=True)], fill, x.dtype)
        inner = tuple(slice(a, a + c.stop - c.start) for c, (a, _) in zip(crop, grow, strict=True))
        out[inner] = x[crop]
        return out
    return np.pad(x, grow, mode=attributes["mode"])[
        tuple(slice(max(-pads[i], 0), None if pads[i + rank] >= 0 else pads[i + rank]) for i in range(rank))
    ]


def check_indices(indices: Array, size: int, what: str) -> Array:
    """Indices counted from the front.

    Raises:
        InputError: one is outside [-size, size); says where.
    """
    wrong = (indices < -size) | (indices >= size)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"{what}: index {int(indices[at])} at {list(at)} is outside [{-size}, {size})")
    return np.where(indices < 0, indices + size, indices)


def _gather(attributes: Attributes, x: Array, indices: Array) -> Array:
    axis = attributes["axis"] % x.ndim
    return np.take(x, check_indices(indices, x.shape[axis], "gather"), axis=axis)


def _index_add(attributes: Attributes, indices: Array, updates: Array) -> Array:
    size = attributes["size"]
    rank = updates.ndim - indices.ndim + 1
    axis = attributes["axis"] % rank
    rows = check_indices(indices, size, "index_add").reshape(-1)
    moved = updates.reshape(*updates.shape[:axis], rows.size, *updates.shape[axis + indices.ndim :])
    moved = np.moveaxis(wide(moved), axis, 0)
    out = np.zeros((size, *moved.shape[1:]), moved.dtype)
    np.add.at(out, rows, moved)
    return np.moveaxis(out, 0, axis).astype(updates.dtype)


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


def _matmul(attributes: Attributes, a: Array, b: Array) -> Array:
    return np.matmul(wide(a), wide(b)).astype(a.dtype)


def _nonzero(attributes: Attributes, x: Array) -> Array:
    found = np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1) if x.ndim else np.zeros((0, int(bool(x))), np.int64)
    if found.shape[1] != attributes["count"]:
        raise InputError(f"nonzero: {found.shape[1]} elements are not zero; count is {attributes['count']}")
    return found


KERNELS: dict[str, Code] = {
    "measure": lambda attributes, x: x.copy(),
    "require": lambda attributes, x: x.copy(),
    "nonzero": _nonzero,
    "reduce_sum": _reduce(np.sum),
    "reduce_mean": _reduce(_mean),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reduce_prod": _reduce(np.prod),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "sum_to": _sum_to,
    "reshape": lambda attributes, x: x.reshape(attributes["shape"]),
    "transpose": lambda attributes, x: x.transpose(attributes["perm"]),
    "broadcast_to": lambda attributes, x: np.broadcast_to(x, attributes["shape"]),
    "slice": _slice,
    "slice_grad": _slice_grad,
    "pad": _pad,
    "concat": lambda attributes, *xs: np.concatenate(xs, axis=attributes["axis"]),
    "gather": _gather,
    "index_add": _index_add,
    "one_hot": _one_hot,
    "full": lambda attributes: np.full(attributes["shape"], attributes["value"], attributes["dtype"].numpy),
    "range_": _range,
    "matmul": _matmul,
}
