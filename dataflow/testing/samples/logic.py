"""Samples of comparisons, logic, and choices by them."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import bool_, float32, int32, int64
from ..sample import PAIRS, SHAPES, Operand, Sample, i, x


def _flags() -> list[Sample]:
    rows = [Sample(ops.logical_not, (Operand(shape, bool_),)) for shape in SHAPES]
    rows += [Sample(ops.bitwise_not, (i(5, 3, low=-9, high=9, dtype=d),)) for d in (int32, int64)]
    special = Operand((6,), float32, value=[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
    rows += [Sample(ops.is_nan, (special,)), Sample(ops.is_inf, (special,)), Sample(ops.is_nan, (x(0, 4),))]
    rows += [Sample(ops.is_inf, (special,), {"detect_negative": 0})]
    return rows


def _comparisons() -> list[Sample]:
    rows = []
    for name in ("equal", "less", "less_equal", "greater", "greater_equal"):
        op = getattr(ops, name)
        rows += [
            Sample(op, (i(*a, high=3, dtype=d), i(*b, high=3, dtype=d))) for a, b in PAIRS[:7] for d in (int64, int32)
        ]
        rows += [Sample(op, (x(*a), x(*b))) for a, b in PAIRS]
    for name in ("logical_and", "logical_or", "logical_xor"):
        rows += [Sample(getattr(ops, name), (Operand(a, bool_), Operand(b, bool_))) for a, b in PAIRS[:8]]
    rows += [Sample(ops.equal, (Operand((4, 3), bool_), Operand((3,), bool_)))]
    return rows


def _choices() -> list[Sample]:
    rows = [
        Sample(ops.where, (Operand(c, bool_), x(*a), x(*b)), gradient=(1, 2) if c == (3, 5) else ())
        for c, a, b in (((3, 5), (3, 5), (5,)), ((5,), (3, 5), ()), ((0,), (1,), (0,)), ((70001,), (70001,), (1,)))
    ]
    rows += [Sample(ops.where, (Operand((3,), bool_), i(3, high=9), i(3, high=9)))]
    return rows


SAMPLES: list[Sample] = _flags() + _comparisons() + _choices()
