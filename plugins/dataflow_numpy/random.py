"""Reference of random ops: Philox4x32-10 (Salmon et al. 2011), and one with NumPy's own generator of old."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .arrays import Array, Attributes, Code, upcast

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)


def philox(counter: Array, key: tuple[int, int]) -> Array:
    """The random words of each counter.

    Args:
        counter: (N, 4) uint32.
        key: two 32-bit words.

    Returns:
        (N, 4) uint32.
    """
    c = counter.astype(np.uint64).T
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c[0] * _MULTIPLIERS[0], c[2] * _MULTIPLIERS[1]
        c = np.stack(
            [
                (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
                p1 & _LOW,
                (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
                p0 & _LOW,
            ]
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.ascontiguousarray(c.T).astype(np.uint32)


def _words(key: Array, stream: int, count: int) -> Array:
    """``count`` words of 24 bits, as float32 whole numbers."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    seed, step = int(key[0]), int(key[1])
    counter = np.empty((blocks.size, 4), np.uint32)
    counter[:, 0] = blocks & _LOW
    counter[:, 1] = blocks >> np.uint64(32)
    counter[:, 2] = stream & 0xFFFFFFFF
    counter[:, 3] = step & 0xFFFFFFFF
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return (words.reshape(-1) >> np.uint32(8)).astype(np.float32)


def _uniform(key: Array, stream: int, count: int) -> Array:
    return _words(key, stream, count)[:count] * np.float32(2.0**-24)


def _shaped(values: Array, attributes: Attributes) -> Array:
    return values.reshape(attributes["shape"]).astype(attributes["dtype"].numpy)


def _count(shape: Any) -> int:
    return math.prod(shape)


def _random_uniform(attributes: Attributes, key: Array) -> Array:
    low, high = attributes["low"], attributes["high"]
    u = _uniform(key, attributes["stream"], _count(attributes["shape"]))
    return _shaped(np.float32(low) + u * np.float32(high - low), attributes)


def _random_normal(attributes: Attributes, key: Array) -> Array:
    count = _count(attributes["shape"])
    words = _words(key, attributes["stream"], count).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((words[:, 0] + 1) * 2.0**-24))
    angle = 2 * math.pi * words[:, 1] * 2.0**-24
    z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:count]
    return _shaped(attributes["mean"] + attributes["scale"] * z, attributes)


def _mersenne_uniform(attributes: Attributes) -> Array:
    return np.asarray(np.random.RandomState(attributes["seed"]).random_sample(attributes["shape"]))


def _dropout(attributes: Attributes, x: Array, key: Array | None = None) -> Array:
    if key is None:
        return x.copy()
    ratio = attributes["ratio"]
    keep = _uniform(key, attributes["stream"], x.size).reshape(x.shape) >= np.float32(ratio)
    return np.where(keep, upcast(x) * (1 / (1 - ratio)), 0).astype(x.dtype)


KERNELS: dict[str, Code] = {
    "random_uniform": _random_uniform,
    "random_normal": _random_normal,
    "mersenne_uniform": _mersenne_uniform,
    "dropout": _dropout,
}
