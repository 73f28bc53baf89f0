"""Reference of pooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.errors import InputError

from .arrays import Array, Attributes, Code, lowest, upcast
from .windows import cropped, overhang, padded_input, positions, window_count

_NONE = -1  # index of the maximum of a window of padding only


def max_pool(attributes: Attributes, x: Array) -> tuple[Array, Array]:
    """The maximum of each window and its index in the plane; the first of equals, NaN the largest."""
    kernel, size = attributes["kernel"], x.shape[2:]
    count = window_count(attributes, size, kernel)
    extra = overhang(attributes, size, kernel, count)
    least = lowest(x.dtype)
    padded = padded_input(x, attributes["pads"], extra, least)
    flat = np.arange(int(np.prod(size)), dtype=np.int32).reshape(1, 1, *size)
    plane = padded_input(flat, attributes["pads"], extra, _NONE)
    best = np.full((*x.shape[:2], *count), least, x.dtype)
    indices = np.full(best.shape, _NONE, np.int32)
    for _, index in positions(attributes, kernel, count):
        value = padded[index]
        position = np.broadcast_to(plane[index], best.shape)
        better = (position >= 0) & ((value > best) | (indices < 0) | (np.isnan(value) & ~np.isnan(best)))
        best = np.where(better, value, best)
        indices = np.where(better, position, indices).astype(np.int32)
    return best, indices


def _max_pool_grad(attributes: Attributes, dy: Array, indices: Array) -> Array:
    shape, size = attributes["input_shape"], int(np.prod(attributes["input_shape"][2:]))
    out = np.zeros((shape[0] * shape[1], size), upcast(dy).dtype)
    planes = np.repeat(np.arange(out.shape[0]), int(np.prod(dy.shape[2:])))
    targets, values = indices.reshape(-1), upcast(dy).reshape(-1)
    if ((targets < _NONE) | (targets >= size)).any():
        raise InputError(
            f"max_pool_grad: an index is outside the plane of {size} elements; the indices must be those of max_pool "
            "on an input of this shape"
        )
    inside = targets != _NONE
    np.add.at(out, (planes[inside], targets[inside]), values[inside])
    return out.reshape(shape).astype(dy.dtype)


def _divisor(attributes: Attributes, size: Sequence[int], count: Sequence[int]) -> Array:
    """The number of elements that each window averages, of shape (1, 1, *count)."""
    kernel = attributes["kernel"]
    extra = overhang(attributes, size, kernel, count)
    inside = np.ones((1, 1, *size))
    if attributes["count_include_pad"]:
        inside = padded_input(inside, attributes["pads"], [0] * len(size), 1)
        padded = padded_input(inside, [0] * (2 * len(size)), extra, 0)
    else:
        padded = padded_input(inside, attributes["pads"], extra, 0)
    total = np.zeros((1, 1, *count))
    for _, index in positions(attributes, kernel, count):
        total += padded[index]
    return np.maximum(total, 1)


def _avg_pool(attributes: Attributes, x: Array) -> Array:
    kernel, size = attributes["kernel"], x.shape[2:]
    count = window_count(attributes, size, kernel)
    padded = padded_input(upcast(x), attributes["pads"], overhang(attributes, size, kernel, count), 0)
    total = np.zeros((*x.shape[:2], *count), padded.dtype)
    for _, index in positions(attributes, kernel, count):
        total += padded[index]
    return (total / _divisor(attributes, size, count)).astype(x.dtype)


def _avg_pool_grad(attributes: Attributes, dy: Array) -> Array:
    shape, kernel = attributes["input_shape"], attributes["kernel"]
    size, count = shape[2:], dy.shape[2:]
    extra = overhang(attributes, size, kernel, count)
    share = upcast(dy) / _divisor(attributes, size, count)
    padded = padded_input(np.zeros(shape, share.dtype), attributes["pads"], extra, 0)
    for _, index in positions(attributes, kernel, count):
        padded[index] += share
    return cropped(padded, attributes["pads"], size).astype(dy.dtype)


KERNELS: dict[str, Code] = {
    "max_pool": max_pool,
    "max_pool_grad": _max_pool_grad,
    "avg_pool": _avg_pool,
    "avg_pool_grad": _avg_pool_grad,
}
