"""Samples of normalizations: by batch, by neighbouring channels, by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ..sample import LONG_SUM, Sample, in_double, x


def _channels() -> list[Sample]:
    shape: tuple[int, ...]
    rows = []
    for shape in ((2, 3, 4, 5), (0, 3, 4), (1, 1), (6, 17), (3, 8, 33), (8, 40, 16, 16)):
        c = shape[1]
        vectors = (x(c), x(c), x(c), x(c, kind="positive"))
        checked = (0, 1, 2) if 0 < np.prod(shape) < 200 else ()
        rows.append(Sample(ops.batch_norm, (x(*shape), *vectors), gradient=checked))
        operands = (x(*shape), x(*shape), x(c), x(c), x(c, kind="positive"))
        rows.append(Sample(ops.batch_norm_grad, operands, gradient=(0, 1, 2) if checked else (), tolerance=1e-4))
        if 0 in shape:
            continue
        # the statistics of one element have no spread: its normalized value is rounding only
        if np.prod(shape) // c > 1:
            every = (*checked, 3, 4) if checked else ()
            known = (x(*shape), *vectors, x(c), x(c, kind="positive"))
            for op in (ops.batch_norm_train, ops.batch_norm_train_relu):
                options: dict[str, Any] = {"attributes": {"momentum": 0.8}, "tolerance": 1e-4}
                rows += [Sample(op, (x(*shape), *vectors), gradient=every, **options), Sample(op, known, **options)]
            moments = (x(c), x(c, kind="positive"))
            first = (x(*shape), x(*shape), x(c))
            for op, given in ((ops.batch_norm_train_grad, first), (ops.batch_norm_train_relu_grad, (*first, x(c)))):
                by = tuple(range(len(given) + 2)) if checked else ()
                rows.append(Sample(op, (*given, *moments), gradient=by, tolerance=1e-4))
    for shape, size in (((2, 7, 3, 3), 5), ((1, 4, 2), 4), ((1, 1, 1, 1), 3), ((0, 3, 2, 2), 3), ((2, 33, 5, 5), 3)):
        a = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.2}
        rows.append(Sample(ops.lrn, (x(*shape),), a, gradient=(0,) if np.prod(shape) < 200 else ()))
        data = (x(*shape), x(*shape), x(*shape), x(*shape, kind="positive"))
        rows.append(Sample(ops.lrn_grad, data, a, gradient=(0, 1, 2, 3) if np.prod(shape) < 200 else ()))
    return rows


def _layer_norm() -> list[Sample]:
    rows = []
    shapes = (((3, 5), -1), ((2, 3, 4), 1), ((2, 3, 4), 0), ((1, 1), -1), ((0, 4), -1), ((3, 0), -1), ((5,), 0),
              ((130, 33), -1), ((2, 2100), 1), ((7, 16, 64), -1))  # fmt: skip
    for shape, axis in shapes:
        row = shape[axis:]
        checked = shape[0] in (2, 3) and 0 not in shape and len(shape) < 4 and shape[-1] < 100
        for center in (0, 1):
            attributes = {"axis": axis, "epsilon": 1e-3, "center": center}
            before = shape[: axis % len(shape)]
            operands = (x(*shape), x(*row), x(*row))
            rows.append(Sample(ops.layer_norm, operands, attributes, gradient=(0, 1, 2) if checked else ()))
            rows.append(Sample(ops.layer_norm, (x(*shape), x(*row)), attributes, gradient=(0, 1) if checked else ()))
            rows.append(Sample(ops.layer_norm, (x(*shape),), attributes, gradient=(0,) if checked else ()))
            given = (x(*shape), x(*shape), x(*row), x(*before), x(*before, kind="positive"))
            for data in (given, (*given[:2], None, *given[3:]), (*given, x(*shape))):
                by = tuple(i for i, o in enumerate(data) if o is not None) if checked else ()
                # it sums over rows
                rows.append(Sample(ops.layer_norm_grad, data, attributes, gradient=by, tolerance=1e-4))
            more = {**attributes, "keepdims": center}
            rows.append(Sample(ops.layer_norm_grad_sums, given, more, gradient=by[:-1], tolerance=1e-4))
    return rows


def _long() -> list[Sample]:
    """Long axes, along which devices partition the work."""
    rows = []
    shapes: tuple[tuple[int, ...], ...] = ((36, 2, 15, 16), (600, 3), (30, 1, 17, 19))
    for shape in shapes:
        c = shape[1]
        vectors = (x(c), x(c), x(c), x(c, kind="positive"))
        rows.append(Sample(ops.batch_norm_train, (x(*shape), *vectors), {"momentum": 0.8}, tolerance=LONG_SUM))
        vectors = (x(*shape), x(c), x(c), x(c, kind="positive"))
        rows.append(Sample(ops.batch_norm_train_grad, (x(*shape), *vectors), tolerance=LONG_SUM))
        behind_relu = (x(c), x(c), *vectors[2:])
        rows.append(Sample(ops.batch_norm_train_relu_grad, (x(*shape), x(*shape), *behind_relu), tolerance=LONG_SUM))
        rows.append(Sample(ops.batch_norm_grad, (x(*shape), *vectors), tolerance=LONG_SUM))
    for count, n in ((1, 9001), (33, 8200), (300, 24), (5, 384), (7, 768), (9, 1000)):
        moments = (x(count), x(count, kind="positive"))
        if n != 8200:
            rows.append(Sample(ops.layer_norm, (x(count, n), x(n), x(n)), tolerance=LONG_SUM))
        operands = (x(count, n), x(count, n), x(n), *moments)
        rows.append(Sample(ops.layer_norm_grad, operands, tolerance=LONG_SUM))
        if n < 4096:  # of longer ones a card doesn't sum results
            rows.append(Sample(ops.layer_norm_grad_sums, (*operands, x(count, n)), tolerance=LONG_SUM))
    return rows


SAMPLES: list[Sample] = _channels() + _layer_norm() + _long()
SAMPLES += in_double(SAMPLES, "layer_norm", "batch_norm_train")
