"""Samples of losses."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import int32, int64
from ..sample import LONG_SUM, Operand, Sample, i, in_double, x


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
                kept = (x(*labels, kind="positive"), x(*labels, kind="unit"))
                rows.append(Sample(ops.softmax_cross_entropy_grad, (x(*labels), *given, *kept), a, gradient=small))
                rows.append(Sample(ops.softmax_cross_entropy_with_grad, (x(*labels), *given), a))
    return rows


def _fewer_classes() -> list[Sample]:
    """Rows that are longer than there are classes."""
    rows = []
    for shape, classes, axis in (((5, 16), 13, 1), ((3, 8, 5), 6, 1), ((2, 9008), 9001, 1)):
        labels = shape[:axis] + shape[axis + 1 :]
        given = (x(*shape), i(*labels, high=classes))
        small = (0,) if np.prod(shape) < 200 else ()
        for smoothing in (0.0, 0.1):
            a = {"axis": axis, "label_smoothing": smoothing, "ignore_index": 0, "classes": classes}
            kept = (x(*labels, kind="positive"), x(*labels, kind="unit"))
            rows.append(Sample(ops.softmax_cross_entropy, given, a, gradient=small, tolerance=LONG_SUM))
            rows.append(Sample(ops.softmax_cross_entropy_grad, (x(*labels), *given, *kept), a, gradient=small))
            rows.append(Sample(ops.softmax_cross_entropy_with_grad, (x(*labels), *given), a, tolerance=LONG_SUM))
    return rows


def _long() -> list[Sample]:
    """Long axes, along which devices partition the work."""
    rows = []
    for shape, axis in (((1, 9001), 1), ((2, 700, 3), 1)):
        labels = shape[:axis] + shape[axis + 1 :]
        given = (x(*shape), i(*labels, low=0, high=shape[axis]))
        a = {"axis": axis, "label_smoothing": 0.1}
        rows.append(Sample(ops.softmax_cross_entropy, given, a, tolerance=LONG_SUM))
        kept = (x(*labels), x(*labels, kind="unit"))
        rows.append(Sample(ops.softmax_cross_entropy_grad, (x(*labels), *given, *kept), a, tolerance=LONG_SUM))
        rows.append(Sample(ops.softmax_cross_entropy_with_grad, (x(*labels), *given), a, tolerance=LONG_SUM))
    return rows


def _ctc() -> list[Sample]:
    """Batches with short samples, without labels, with equal neighbours, and with labels that don't fit the time."""
    rows = []
    for labels, lengths, counts, shape, dtype in (
        ([[1, 2, 2], [3, 0, 0], [0, 0, 0]], (7, 4, 3), (3, 1, 0), (3, 7, 4), int64),
        ([[2, 2, 2, 2], [1, 2, 1, 3]], (5, 9), (4, 4), (2, 9, 4), int32),
        ([[1]], (1,), (1,), (1, 1, 2), int64),
        ([[], []], (3, 0), (0, 0), (2, 3, 3), int64),
        ([[1, 2]] * 5, (40, 0, 39, 1, 2), (2, 0, 1, 2, 2), (5, 40, 30), int64),
        (np.zeros((0, 2), int), (), (), (0, 4, 3), int64),
    ):
        read = (
            Operand(np.shape(labels), dtype, value=labels),
            Operand(shape[:1], dtype, value=lengths),
            Operand(shape[:1], dtype, value=counts),
        )
        feasible = shape in ((3, 7, 4), (1, 1, 2))
        rows.append(Sample(ops.ctc_loss, (x(*shape), *read), gradient=(0,) if feasible else ()))
        rows.append(Sample(ops.ctc_loss_grad, (x(shape[0]), x(*shape), *read), gradient=(0, 1) if feasible else ()))
        rows.append(Sample(ops.ctc_loss_product, (x(*shape), x(*shape), *read)))
    last = (Operand((1, 2), int64, value=[[0, 1]]), *(Operand((1,), int64, value=[n]) for n in (5, 2)))
    rows.append(Sample(ops.ctc_loss, (x(1, 5, 4), *last), {"blank": 3}, gradient=(0,)))
    rows.append(Sample(ops.ctc_loss_grad, (x(1), x(1, 5, 4), *last), {"blank": 3}, gradient=(0, 1)))
    rows.append(Sample(ops.ctc_loss_product, (x(1, 5, 4), x(1, 5, 4), *last), {"blank": 3}))
    return rows


SAMPLES: list[Sample] = _cross_entropy() + _fewer_classes() + _long() + _ctc()
SAMPLES += in_double(SAMPLES, "softmax_cross_entropy", "softmax_cross_entropy_grad", "softmax_cross_entropy_with_grad")
