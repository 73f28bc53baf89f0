"""Samples that are long along one axis: devices cut the work on them into parts."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import float64, int32
from ..sample import Operand, Sample, i, x

_LOOSE = 1e-4  # sums of thousands of elements of either sign


def _reductions() -> list[Sample]:
    rows = [Sample(ops.reduce_sum, (x(9001, dtype=float64),), {"axes": (0,)})]
    for op in (ops.reduce_sum, ops.reduce_max):
        rows.append(Sample(op, (i(9001, low=-99, high=99),), {"axes": (0,)}))
        rows += [
            Sample(op, (x(*shape),), {"axes": axes}, tolerance=_LOOSE)
            for shape, axes in (((9001,), (0,)), ((2000, 12), (0,)), ((1100, 3, 5), (0, 2)))
        ]
    rows.append(Sample(ops.reduce_mean, (x(2, 9001),), {"axes": (1,)}, tolerance=_LOOSE))
    for last in (0, 1):
        a = {"axis": -1, "select_last_index": last}
        rows.append(Sample(ops.argmax, (x(33001),), a))
        rows.append(Sample(ops.argmin, (i(33001, low=-9, high=9),), a))
    return rows


def _rows() -> list[Sample]:
    rows = []
    for shape, axis in (((1, 9001), 1), ((2, 700, 3), 1)):
        for name in ("softmax", "log_softmax"):
            grad = getattr(ops, f"{name}_grad")
            rows.append(Sample(getattr(ops, name), (x(*shape),), {"axis": axis}, tolerance=_LOOSE))
            rows.append(Sample(grad, (x(*shape), x(*shape)), {"axis": axis}, tolerance=_LOOSE))
        labels = shape[:axis] + shape[axis + 1 :]
        given = (x(*shape), i(*labels, low=0, high=shape[axis]))
        a = {"axis": axis, "label_smoothing": 0.1}
        rows.append(Sample(ops.softmax_cross_entropy, given, a, tolerance=_LOOSE))
        rows.append(Sample(ops.softmax_cross_entropy_grad, (x(*labels), *given, x(*labels)), a, tolerance=_LOOSE))
    rows.append(Sample(ops.softmax, (x(130, 8200),), {"axis": 1}, tolerance=_LOOSE))
    for count, n in ((1, 9001), (33, 8200), (300, 24)):
        moments = (x(count), x(count, kind="positive"))
        if n != 8200:
            rows.append(Sample(ops.layer_norm, (x(count, n), x(n), x(n)), tolerance=_LOOSE))
        rows.append(Sample(ops.layer_norm_grad, (x(count, n), x(count, n), x(n), *moments), tolerance=_LOOSE))
    return rows


def _channels() -> list[Sample]:
    rows = []
    shapes: tuple[tuple[int, ...], ...] = ((36, 2, 15, 16), (600, 3), (30, 1, 17, 19))
    for shape in shapes:
        c = shape[1]
        vectors = (x(c), x(c), x(c), x(c, kind="positive"))
        rows.append(Sample(ops.batch_norm_train, (x(*shape), *vectors), {"momentum": 0.8}, tolerance=_LOOSE))
        vectors = (x(*shape), x(c), x(c), x(c, kind="positive"))
        rows.append(Sample(ops.batch_norm_train_grad, (x(*shape), *vectors), tolerance=_LOOSE))
    return rows


def _lines() -> list[Sample]:
    rows = []
    for shape, axis, reverse in (((1, 17001), 1, 0), ((9000, 2), 0, 1), ((9, 4, 1000), 1, 1)):
        a = {"axis": axis, "exclusive": reverse, "reverse": reverse}
        rows.append(Sample(ops.cumsum, (x(*shape),), a, tolerance=_LOOSE))
    for k, largest in ((5, 1), (900, 0), (2100, 1)):
        rows.append(Sample(ops.topk, (x(4100, kind="distinct"),), {"k": k, "axis": 0, "largest": largest}))
    hits = (np.arange(9001) * 7919 % 11 < 3).astype(np.int32)
    rows.append(Sample(ops.nonzero, (Operand(hits.shape, int32, value=hits),), {"count": int(hits.sum())}))
    places = np.array([[k * 13 % 6400 for k in range(1600)], [k // 5 * 20 for k in range(1600)]], np.int32)
    indices = Operand((1, 2, 40, 40), int32, value=places.reshape(1, 2, 40, 40))
    rows.append(Sample(ops.max_pool_grad, (x(1, 2, 40, 40), indices), {"input_shape": (1, 2, 80, 80)}))
    return rows


def _products() -> list[Sample]:
    rows = []
    for m, k, n in ((31, 800, 130), (14, 385, 60), (440, 390, 70)):  # few rows and many, sums in parts
        rows.append(Sample(ops.matmul, (x(m, k), x(k, n)), tolerance=_LOOSE))
        rows.append(Sample(ops.matmul_bias_relu, (x(m, k), x(k, n), x(n)), tolerance=_LOOSE))
    return rows


LONG: list[Sample] = _reductions() + _rows() + _channels() + _lines() + _products()
