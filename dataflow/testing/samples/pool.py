"""Samples of pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.types import Array, float32, int8, int32, uint8
from ..sample import Operand, Sample, i, in_double, x

_BYTES = (uint8, 0), (int8, -128)


def _pools() -> list[Sample]:
    rows = []
    windows: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 3, 8, 8), (2, 2), {"strides": (2, 2)}),
        ((2, 3, 7, 9), (3, 2), {"strides": (2, 1), "pads": (1, 0, 1, 1)}),
        ((1, 2, 7, 7), (3, 3), {"strides": (2, 2), "ceil_mode": 1}),
        ((1, 2, 8, 8), (3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1}),
        ((1, 2, 9, 9), (2, 3), {"dilations": (2, 2)}),
        ((2, 3, 11), (3,), {"strides": (2,), "pads": (1, 1)}),
        ((1, 2, 4, 5, 6), (2, 2, 3), {}),
        ((0, 2, 4, 4), (2, 2), {}),
        ((1, 1, 1, 1), (1, 1), {}),
        ((2, 70, 24, 24), (2, 2), {"strides": (2, 2)}),
        ((2, 1, 7, 8, 5), (3, 2, 1), {"strides": (2, 2, 1), "pads": (1, 0, 0, 1, 1, 0)}),
    )  # fmt: skip
    for image, kernel, given in windows:
        n = len(kernel)
        ones = (1,) * n
        a = {"kernel": kernel, "strides": ones, "pads": (0,) * (2 * n), "dilations": ones, "ceil_mode": 0, **given}
        small = (0,) if np.prod(image) < 800 else ()
        rows.append(Sample(ops.max_pool, (x(*image, kind="distinct"),), a, gradient=small))
        rows += [Sample(ops.max_pool, (i(*image, low=low, high=low + 256, dtype=dtype),), a) for dtype, low in _BYTES]
        g = GraphBuilder()
        out = ops.max_pool(g.input("x", float32, image), **a).type.sizes
        indices = Operand(out, int32, value=_indices(image, out, a))
        rows.append(Sample(ops.max_pool_grad, (x(*out), indices), {"input_shape": image}, gradient=small))
        for count in (0, 1):
            rows.append(Sample(ops.avg_pool, (x(*image),), {**a, "count_include_pad": count}, gradient=small))
            back = {"input_shape": image, **a, "count_include_pad": count}
            rows.append(Sample(ops.avg_pool_grad, (x(*out),), back, gradient=small))
    return rows


def _indices(image: tuple[int, ...], out: tuple[int, ...], a: Mapping[str, Any]) -> Array:
    """Some element inside each window: valid indices for max_pool_grad."""
    found = np.zeros(out, np.int32)
    for axis in range(len(a["kernel"])):
        size, before, stride = image[2 + axis], a["pads"][axis], a["strides"][axis]
        at = np.clip(np.arange(out[2 + axis]) * stride - before, 0, max(size - 1, 0))
        found = found * size + at.reshape([-1 if i == 2 + axis else 1 for i in range(len(out))]).astype(np.int32)
    return found


def _long() -> list[Sample]:
    """Windows that share their maximum."""
    positions = np.array([[k * 13 % 6400 for k in range(1600)], [k // 5 * 20 for k in range(1600)]], np.int32)
    indices = Operand((1, 2, 40, 40), int32, value=positions.reshape(1, 2, 40, 40))
    rows = [Sample(ops.max_pool_grad, (x(1, 2, 40, 40), indices), {"input_shape": (1, 2, 80, 80)})]
    # Rows of channels as a plane: windows of three positions by two, of one channel.
    image, out = (2, 1, 20, 23, 32), (2, 1, 10, 12, 32)
    window = {"kernel": (3, 3, 1), "strides": (2, 2, 1), "pads": (1, 1, 0, 1, 1, 0)}
    indices = Operand(out, int32, value=_indices(image, out, window))
    return [*rows, Sample(ops.max_pool_grad, (x(*out), indices), {"input_shape": image})]


SAMPLES: list[Sample] = _pools() + _long()
SAMPLES += in_double(SAMPLES, "max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad")
