"""Samples of softmax and its logarithm."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import float32
from ..sample import LONG_SUM, Operand, Sample, in_double, x


def _rows() -> list[Sample]:
    shape: tuple[int, ...]
    rows = []
    for shape, axis in (
        ((3, 5), -1),
        ((3, 5, 7), 1),
        ((17,), 0),
        ((1, 1), 1),
        ((0, 4), 1),
        ((64, 1000), 1),
        ((3, 33, 4), 1),
    ):
        small = (0,) if np.prod(shape) < 200 else ()
        for name in ("softmax", "log_softmax"):
            rows.append(Sample(getattr(ops, name), (x(*shape),), {"axis": axis}, gradient=small))
            y = x(*shape, kind="unit")
            rows.append(
                Sample(getattr(ops, f"{name}_grad"), (x(*shape), y), {"axis": axis}, gradient=(0, 1)[: 2 * len(small)])
            )
    rows.append(Sample(ops.softmax, (Operand((2, 3), float32, value=[1000, 999, -1000, -5, -5, -5]),)))
    return rows


def _long() -> list[Sample]:
    """Long axes, along which devices partition the work."""
    rows = []
    for shape, axis in (((1, 9001), 1), ((2, 700, 3), 1), ((5, 384), 1), ((3, 768), 1)):
        for name in ("softmax", "log_softmax"):
            grad = getattr(ops, f"{name}_grad")
            rows.append(Sample(getattr(ops, name), (x(*shape),), {"axis": axis}, tolerance=LONG_SUM))
            rows.append(Sample(grad, (x(*shape), x(*shape)), {"axis": axis}, tolerance=LONG_SUM))
    rows.append(Sample(ops.softmax, (x(130, 8200),), {"axis": 1}, tolerance=LONG_SUM))
    return rows


SAMPLES: list[Sample] = _rows() + _long()
SAMPLES += in_double(SAMPLES, "softmax", "softmax_grad", "log_softmax", "log_softmax_grad")
