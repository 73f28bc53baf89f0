"""Reference of ops that move elements."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code


def ranges(attributes: Attributes) -> tuple[slice, ...]:
    """Python slices for the attributes starts, stops and steps; a stop below 0 is before the first element."""
    bounds = zip(attributes["starts"], attributes["stops"], attributes["steps"], strict=True)
    return tuple(slice(0, 0) if (b - a) * s <= 0 else slice(a, None if b < 0 else b, s) for a, b, s in bounds)


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
    return np.pad(x[crop], grow, mode=attributes["mode"])


KERNELS: dict[str, Code] = {
    "reshape": lambda attributes, x: x.reshape(attributes["shape"]),
    "transpose": lambda attributes, x: x.transpose(attributes["perm"]),
    "broadcast_to": lambda attributes, x: np.broadcast_to(x, attributes["shape"]),
    "slice": _slice,
    "slice_grad": _slice_grad,
    "pad": _pad,
    "concat": lambda attributes, *xs: np.concatenate(xs, axis=attributes["axis"]),
}
