"""Reference of convolution and pooling: one shifted, strided view of the input per kernel position."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dataflow.errors import InputError

from .arithmetic import Array, Attributes, Code, lowest, wide

_NOWHERE = -1  # index of the maximum of a window that lies in the padding whole


def _positions(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], count: Sequence[int]
) -> Iterator[tuple[Any, Any]]:
    """Each kernel position, and the slices of the padded input that it meets, one element per window."""
    for at in itertools.product(*map(range, kernel)):
        starts = [k * d for k, d in zip(at, dilations, strict=True)]
        parts = zip(starts, strides, count, strict=True)
        yield at, tuple(slice(s, s + (n - 1) * t + 1 if n else s, t) for s, t, n in parts)


def _padded(x: Array, pads: Sequence[int], extra: Sequence[int], fill: Any) -> Array:
    """X with ``pads``, and ``extra`` more behind (for windows that hang over the end)."""
    spatial = x.ndim - 2
    widths = [(0, 0), (0, 0)] + [(pads[i], pads[i + spatial] + extra[i]) for i in range(spatial)]
    return np.pad(x, widths, constant_values=fill)


def _overhang(attributes: Attributes, size: Sequence[int], kernel: Sequence[int], count: Sequence[int]) -> list[int]:
    """How far the last window reaches behind the padded input, per axis."""
    pads, spatial = attributes["pads"], len(size)
    found = []
    for i in range(spatial):
        reach = (count[i] - 1) * attributes["strides"][i] + attributes["dilations"][i] * (kernel[i] - 1) + 1
        found.append(max(0, reach - size[i] - pads[i] - pads[i + spatial]))
    return found


def _count(attributes: Attributes, size: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """Windows per axis; see the ops' declarations."""
    spatial = len(size)
    found = []
    for i in range(spatial):
        before, after, stride = attributes["pads"][i], attributes["pads"][i + spatial], attributes["strides"][i]
        span = size[i] + before + after - (attributes["dilations"][i] * (kernel[i] - 1) + 1)
        ceil = bool(attributes.get("ceil_mode", 0))
        count = (span + (stride - 1 if ceil else 0)) // stride + 1 if span >= 0 else 0
        if ceil and count > 0 and (count - 1) * stride >= size[i] + before:
            count -= 1
        found.append(max(count, 0))
    return tuple(found)


def _cropped(padded: Array, pads: Sequence[int], size: Sequence[int]) -> Array:
    return padded[(slice(None), slice(None), *(slice(p, p + n) for p, n in zip(pads, size, strict=False)))]


def _conv(attributes: Attributes, x: Array, w: Array, bias: Array | None = None) -> Array:
    groups = attributes["groups"]
    count = _count(attributes, x.shape[2:], w.shape[2:])
    padded = _padded(wide(x), attributes["pads"], [0] * len(count), 0)
    B, O, C = x.shape[0], w.shape[0], w.shape[1]
    out = np.zeros((B, groups, O // groups, *count), padded.dtype)
    weight = wide(w).reshape(groups, O // groups, *w.shape[1:])
    for at, where in _positions(w.shape[2:], attributes["strides"], attributes["dilations"], count):
        part = padded[(slice(None), slice(None), *where)].reshape(B, groups, C, *count)
        out += np.einsum(
            "bgc...,goc->bgo...", part, weight[(slice(None), slice(None), slice(None), *at)], optimize=True
        )
    out = out.reshape(B, O, *count)
    if bias is not None:
        out += wide(bias).reshape(1, -1, *[1] * len(count))
    return out.astype(x.dtype)


def _conv_grad_input(attributes: Attributes, dy: Array, w: Array) -> Array:
    groups, shape = attributes["groups"], attributes["input_shape"]
    pads, size, count = attributes["pads"], shape[2:], dy.shape[2:]
    spatial = len(size)
    B, O, C = shape[0], w.shape[0], w.shape[1]
    z = wide(dy)
    padded = np.zeros((B, shape[1], *(n + pads[i] + pads[i + spatial] for i, n in enumerate(size))), z.dtype)
    z = z.reshape(B, groups, O // groups, *count)
    weight = wide(w).reshape(groups, O // groups, *w.shape[1:])
    for at, where in _positions(w.shape[2:], attributes["strides"], attributes["dilations"], count):
        part = np.einsum("bgo...,goc->bgc...", z, weight[(slice(None), slice(None), slice(None), *at)], optimize=True)
        padded[(slice(None), slice(None), *where)] += part.reshape(B, groups * C, *count)
    return _cropped(padded, pads, size).astype(dy.dtype)


def _conv_grad_weight(attributes: Attributes, x: Array, dy: Array) -> Array:
    groups, shape = attributes["groups"], attributes["weight_shape"]
    count = dy.shape[2:]
    padded = _padded(wide(x), attributes["pads"], [0] * len(count), 0)
    B, O, C = x.shape[0], shape[0], shape[1]
    places = int(np.prod(count))
    z = wide(dy).reshape(B, groups, O // groups, places)
    dw = np.zeros((groups, O // groups, *shape[1:]), padded.dtype)
    for at, where in _positions(shape[2:], attributes["strides"], attributes["dilations"], count):
        part = padded[(slice(None), slice(None), *where)].reshape(B, groups, C, places)
        dw[(slice(None), slice(None), slice(None), *at)] = np.einsum("bgcn,bgon->goc", part, z, optimize=True)
    return dw.reshape(shape).astype(x.dtype)


def _max_pool(attributes: Attributes, x: Array) -> tuple[Array, Array]:
    kernel, size = attributes["kernel"], x.shape[2:]
    count = _count(attributes, size, kernel)
    extra = _overhang(attributes, size, kernel, count)
    least = lowest(x.dtype)
    padded = _padded(x, attributes["pads"], extra, least)
    flat = np.arange(int(np.prod(size)), dtype=np.int32).reshape(1, 1, *size)
    places = _padded(flat, attributes["pads"], extra, _NOWHERE)
    best = np.full((*x.shape[:2], *count), least, x.dtype)
    index = np.full(best.shape, _NOWHERE, np.int32)
    for _, where in _positions(kernel, attributes["strides"], attributes["dilations"], count):
        value = padded[(slice(None), slice(None), *where)]
        place = np.broadcast_to(places[(slice(None), slice(None), *where)], best.shape)
        better = (place >= 0) & ((value > best) | (index < 0) | (np.isnan(value) & ~np.isnan(best)))
        best = np.where(better, value, best)
        index = np.where(better, place, index).astype(np.int32)
    return best, index


def _max_pool_grad(attributes: Attributes, dy: Array, indices: Array) -> Array:
    shape, size = attributes["input_shape"], int(np.prod(attributes["input_shape"][2:]))
    out = np.zeros((shape[0] * shape[1], size), wide(dy).dtype)
    planes = np.repeat(np.arange(out.shape[0]), int(np.prod(dy.shape[2:])))
    positions, values = indices.reshape(-1), wide(dy).reshape(-1)
    if ((positions < _NOWHERE) | (positions >= size)).any():
        raise InputError(
            f"max_pool_grad: an index is outside the plane of {size} elements; the indices must be those of max_pool "
            "on an input of this shape"
        )
    inside = positions != _NOWHERE
    np.add.at(out, (planes[inside], positions[inside]), values[inside])
    return out.reshape(shape).astype(dy.dtype)


def _divisor(attributes: Attributes, size: Sequence[int], count: Sequence[int]) -> Array:
    """How many elements each window averages: (1, 1, count...)."""
    kernel = attributes["kernel"]
    extra = _overhang(attributes, size, kernel, count)
    inside = np.ones((1, 1, *size))
    if attributes["count_include_pad"]:
        inside = _padded(inside, attributes["pads"], [0] * len(size), 1)
        padded = _padded(inside, [0] * (2 * len(size)), extra, 0)
    else:
        padded = _padded(inside, attributes["pads"], extra, 0)
    total = np.zeros((1, 1, *count))
    for _, where in _positions(kernel, attributes["strides"], attributes["dilations"], count):
        total += padded[(slice(None), slice(None), *where)]
    return np.maximum(total, 1)


def _avg_pool(attributes: Attributes, x: Array) -> Array:
    kernel, size = attributes["kernel"], x.shape[2:]
    count = _count(attributes, size, kernel)
    padded = _padded(wide(x), attributes["pads"], _overhang(attributes, size, kernel, count), 0)
    total = np.zeros((*x.shape[:2], *count), padded.dtype)
    for _, where in _positions(kernel, attributes["strides"], attributes["dilations"], count):
        total += padded[(slice(None), slice(None), *where)]
    return (total / _divisor(attributes, size, count)).astype(x.dtype)


def _avg_pool_grad(attributes: Attributes, dy: Array) -> Array:
    shape, kernel = attributes["input_shape"], attributes["kernel"]
    size, count = shape[2:], dy.shape[2:]
    extra = _overhang(attributes, size, kernel, count)
    share = wide(dy) / _divisor(attributes, size, count)
    padded = _padded(np.zeros(shape, share.dtype), attributes["pads"], extra, 0)
    for _, where in _positions(kernel, attributes["strides"], attributes["dilations"], count):
        padded[(slice(None), slice(None), *where)] += share
    return _cropped(padded, attributes["pads"], size).astype(dy.dtype)


KERNELS: dict[str, Code] = {
    "conv": _conv,
    "conv_grad_input": _conv_grad_input,
    "conv_grad_weight": _conv_grad_weight,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool_grad,
    "avg_pool": _avg_pool,
    "avg_pool_grad": _avg_pool_grad,
}
