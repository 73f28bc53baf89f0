"""Windows of convolutions and pools: one shifted, strided view of the input per kernel position."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .arrays import Array, Attributes


def positions(attributes: Attributes, kernel: Sequence[int], count: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    """Each kernel position, and the index of the padded input's elements that it reads, one per window."""
    for position in itertools.product(*map(range, kernel)):
        starts = [k * d for k, d in zip(position, attributes["dilations"], strict=True)]
        axes = zip(starts, attributes["strides"], count, strict=True)
        slices = [slice(start, start + (n - 1) * stride + 1 if n else start, stride) for start, stride, n in axes]
        yield position, (slice(None), slice(None), *slices)


def padded_input(x: Array, pads: Sequence[int], extra: Sequence[int], fill: Any) -> Array:
    """The input with ``pads``, and ``extra`` more at the end of each axis, for windows that overhang."""
    spatial = x.ndim - 2
    widths = [(0, 0), (0, 0)] + [(pads[i], pads[i + spatial] + extra[i]) for i in range(spatial)]
    return np.pad(x, widths, constant_values=fill)


def overhang(attributes: Attributes, size: Sequence[int], kernel: Sequence[int], count: Sequence[int]) -> list[int]:
    """How far the last window extends beyond the padded input, per axis."""
    pads, spatial = attributes["pads"], len(size)
    found = []
    for i in range(spatial):
        reach = (count[i] - 1) * attributes["strides"][i] + attributes["dilations"][i] * (kernel[i] - 1) + 1
        found.append(max(0, reach - size[i] - pads[i] - pads[i + spatial]))
    return found


def window_count(attributes: Attributes, size: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """Windows per axis, as the ops' shape rules say."""
    spatial = len(size)
    found = []
    for i in range(spatial):
        before, after, stride = attributes["pads"][i], attributes["pads"][i + spatial], attributes["strides"][i]
        span = size[i] + before + after - (attributes["dilations"][i] * (kernel[i] - 1) + 1)
        ceil = bool(attributes.get("ceil_mode", 0))
        count = (span + (stride - 1 if ceil else 0)) // stride + 1
        if ceil and count > 0 and (count - 1) * stride >= size[i] + before:
            count -= 1
        found.append(max(count, 0))
    return tuple(found)


def cropped(padded: Array, pads: Sequence[int], size: Sequence[int]) -> Array:
    """The input without its padding."""
    return padded[(slice(None), slice(None), *(slice(p, p + n) for p, n in zip(pads, size, strict=False)))]
