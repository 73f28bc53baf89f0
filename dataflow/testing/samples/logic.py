"""Samples of comparisons, logic, bits, and choices by them."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import bool_, float32, int8, int16, int32, int64, uint8, uint16, uint32, uint64
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
    narrow = (int8, int16, uint8, uint16, uint32, uint64)
    for name in ("equal", "less", "less_equal", "greater", "greater_equal"):
        op = getattr(ops, name)
        rows += [Sample(op, (i(5, 1, low=-(d.kind == "i"), high=3, dtype=d), i(7, high=3, dtype=d))) for d in narrow]
    for name in ("logical_and", "logical_or", "logical_xor"):
        rows += [Sample(getattr(ops, name), (Operand(a, bool_), Operand(b, bool_))) for a, b in PAIRS[:8]]
    rows += [Sample(ops.equal, (Operand((4, 3), bool_), Operand((3,), bool_)))]
    return rows


def _bits() -> list[Sample]:
    rows = []
    types = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        rows += [Sample(getattr(ops, name), (i(*a, high=99), i(*b, high=99))) for a, b in PAIRS[:8]]
        rows += [Sample(getattr(ops, name), (i(17, high=99, dtype=d), i(17, high=99, dtype=d))) for d in types]
    for left in (0, 1):
        for dtype in types:
            low = -99 if dtype.kind == "i" else 0
            by = Operand((5, 1), dtype, value=[0, 1, dtype.bits - 1, dtype.bits, -1 % (1 << dtype.bits - 1) | 64])
            rows.append(Sample(ops.bit_shift, (i(3, 5, 7, low=low, high=99, dtype=dtype), by), {"left": left}))
            large = Operand((5,), dtype, value=[(1 << dtype.bits - 1) - 3, (1 << dtype.bits - 2) + 1, 0, 1, 77])
            rows.append(Sample(ops.bit_shift, (large, i(5, high=3, dtype=dtype)), {"left": left}))
        by = i(17, low=-3, high=70)
        rows.append(Sample(ops.bit_shift, (i(17, low=-99, high=99), by), {"left": left}))
    return rows


def _choices() -> list[Sample]:
    rows = [
        Sample(ops.where, (Operand(c, bool_), x(*a), x(*b)), gradient=(1, 2) if c == (3, 5) else ())
        for c, a, b in (((3, 5), (3, 5), (5,)), ((5,), (3, 5), ()), ((0,), (1,), (0,)), ((70001,), (70001,), (1,)))
    ]
    rows += [Sample(ops.where, (Operand((3,), bool_), i(3, high=9), i(3, high=9)))]
    return rows


SAMPLES: list[Sample] = _flags() + _comparisons() + _bits() + _choices()
