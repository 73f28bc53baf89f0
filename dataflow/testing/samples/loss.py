"""Samples of losses."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import int32, int64
from ..sample import LONG_SUM, Sample, i, x


def _cross_entropy() -> list[Sample]:
    shape: tuple[int, ...]
    rows = []
    for shape, axis in (((6, 5), 1), ((3, 4, 7), 1), ((1, 1), 1), ((0, 4), 1), ((33, 1000), 1), ((2, 5, 3), 2)):
        labels = shape[:axis] + shape[axis + 1 :]
        for smoothing in (0.0, 0.1):
            for dtype in (int64, int32):
                a = {"axis": axis, "label_smoothing": smoothing, "ignore_index": 0}
                given = (x(*shape), i(*labels, high=shape[axis], dtype=dtype))
                small = (0,) if np.prod(shape) < 200 else ()
                rows.append(Sample(ops.softmax_cross_entropy, given, a, gradient=small))
                lse = x(*labels, kind="positive")
                rows.append(Sample(ops.softmax_cross_entropy_grad, (x(*labels), *given, lse), a))
    return rows


def _long() -> list[Sample]:
    """Long axes, along which devices partition the work."""
    rows = []
    for shape, axis in (((1, 9001), 1), ((2, 700, 3), 1)):
        labels = shape[:axis] + shape[axis + 1 :]
        given = (x(*shape), i(*labels, low=0, high=shape[axis]))
        a = {"axis": axis, "label_smoothing": 0.1}
        rows.append(Sample(ops.softmax_cross_entropy, given, a, tolerance=LONG_SUM))
        rows.append(Sample(ops.softmax_cross_entropy_grad, (x(*labels), *given, x(*labels)), a, tolerance=LONG_SUM))
    return rows


SAMPLES: list[Sample] = _cross_entropy() + _long()
