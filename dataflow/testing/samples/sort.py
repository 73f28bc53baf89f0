"""Samples of running sums, recurrences and of the largest elements."""

from __future__ import annotations

from ... import ops
from ...ir.types import DType, float32, float64, int8, int16, int32, int64, uint8
from ..sample import LONG_SUM, Operand, Sample, i, x


def _ordering() -> list[Sample]:
    rows = []
    sums: tuple[tuple[tuple[int, ...], int], ...] = (
        ((3, 5), 0),
        ((3, 5), 1),
        ((2, 3, 4), 1),
        ((1,), 0),
        ((0, 3), 1),
        ((3, 0), 1),
        ((300, 200), 0),
    )
    for shape, axis in sums:
        checked = (0,) if 0 not in shape and len(shape) > 1 and shape[0] < 9 else ()
        for exclusive in (0, 1):
            for reverse in (0, 1):
                a = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
                rows.append(Sample(ops.cumsum, (x(*shape),), a, gradient=checked))
    backwards = {"axis": 1, "exclusive": 1, "reverse": 1}
    rows += [Sample(ops.cumsum, (i(3, 4, 5, dtype=dtype, high=9),), backwards) for dtype in (int32, int64)]
    kinds: tuple[tuple[tuple[int, ...], int, int, DType], ...] = (
        ((3, 7), -1, 3, float32), ((5, 2, 3), 0, 5, float32), ((4, 6), 1, 1, float32), ((4, 6), 1, 0, float32),
        ((1, 1), 0, 1, float32), ((30, 2000), 1, 40, float32), ((3, 7), 1, 4, int64),
    )  # fmt: skip
    for shape, axis, k, dtype in kinds:
        checked = (0,) if shape[0] < 9 and k and dtype == float32 else ()
        for largest in (0, 1):
            operand = x(*shape, kind="distinct") if dtype == float32 else i(*shape, high=5)
            rows.append(Sample(ops.topk, (operand,), {"k": k, "axis": axis, "largest": largest}, gradient=checked))
    for d in (float64, int8, int16, int32, uint8):
        rows += [Sample(ops.topk, (i(3, 9, high=7, dtype=d),), {"k": 4, "axis": 1, "largest": n}) for n in (0, 1)]
    rows.append(Sample(ops.cumsum, (x(3, 9, dtype=float64),), {"axis": 1}))
    equal = Operand((2, 6), float32, value=[1, 3, 3, 0, 3, 1, 2, 2, 2, 2, 2, 2])
    rows += [Sample(ops.topk, (equal,), {"k": 4, "largest": largest}) for largest in (0, 1)]
    return rows


def _long() -> list[Sample]:
    """Long axes, along which devices partition the work."""
    rows = []
    shapes = (((1, 17001), 1, 0), ((9000, 2), 0, 1), ((9, 4, 1000), 1, 1), ((3, 40, 257), 1, 0), ((70, 3, 300), 0, 0))
    for shape, axis, reverse in shapes:
        a = {"axis": axis, "exclusive": reverse, "reverse": reverse}
        rows.append(Sample(ops.cumsum, (x(*shape),), a, tolerance=LONG_SUM))
    for k, largest in ((5, 1), (900, 0), (2100, 1)):
        rows.append(Sample(ops.topk, (x(4100, kind="distinct"),), {"k": k, "axis": 0, "largest": largest}))
    return rows


def _recurrences() -> list[Sample]:
    rows = []
    for shape, axis in (((3, 5), 0), ((3, 5), 1), ((2, 3, 4), -2), ((1,), 0), ((0, 3), 1), ((3, 0), 1), ((300, 70), 0)):
        checked = (0, 1) if 0 not in shape and len(shape) > 1 and shape[0] < 9 else ()
        for reverse in (0, 1):
            a = {"axis": axis, "reverse": reverse}
            rows.append(Sample(ops.linear_recurrence, (x(*shape, kind="unit"), x(*shape)), a, gradient=checked))
    for d in (float64, int32, int64):
        operands = (Operand((3, 9), d, "range", -3, 4), Operand((3, 9), d, "range", -3, 4))
        rows.append(Sample(ops.linear_recurrence, operands, {"axis": 1}))
    return rows


SAMPLES: list[Sample] = _ordering() + _long() + _recurrences()
