"""Columns of windows summed back to an image whose sizes may have names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from ...ir.dims import Shape
from ...ir.value import Value
from ..arithmetic import add
from ..shape import reshape, slice_, slice_grad


def image_of_taps(
    x: Value, image: Shape, counts: Shape, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Value:
    """What ``col2im`` gives without pads: a sum of images that are zero but where one tap of all windows lies.

    Args:
        x: (N, C taps, windows).
        image: its sizes.
        counts: the windows along each of its axes.
        kernel: as for ``col2im``.
        strides: likewise.
        dilations: likewise.
    """
    outer, ones = (x.type.shape[0], x.type.shape[1] // math.prod(kernel)), (1,) * len(image)
    by_tap = reshape(x, shape=(*outer, math.prod(kernel), *counts))
    images = []
    for number, tap in enumerate(itertools.product(*map(range, kernel))):
        first = tuple(at * dilation for at, dilation in zip(tap, dilations, strict=True))
        ends = tuple(at + (n - 1) * step + 1 for at, n, step in zip(first, counts, strides, strict=True))
        chosen = slice_(
            by_tap,
            starts=(0, 0, number, *(0 for _ in counts)),
            stops=(*outer, number + 1, *counts),
            steps=(1, 1, 1, *ones),
        )
        ranges: Any = {"starts": (0, 0, *first), "stops": (*outer, *ends), "steps": (1, 1, *strides)}
        images.append(slice_grad(reshape(chosen, shape=(*outer, *counts)), shape=(*outer, *image), **ranges))
    return list(itertools.accumulate(images, add))[-1]
