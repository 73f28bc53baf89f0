"""Samples of float64: some of those of float32 again, and products that are larger than a kernel's blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ... import ops
from ...ir.types import float32, float64
from ..sample import Operand, Sample, x
from . import conv, gather, loss, norm, pool, random, softmax

_MOST = 6  # of an op


def _in_double(sample: Sample) -> Sample:
    """The sample with float64 wherever it has float32."""
    inputs = [None if i is None else _double(i) for i in sample.inputs]
    attributes = {name: float64 if value is float32 else value for name, value in sample.attributes.items()}
    return dataclasses.replace(sample, inputs=tuple(inputs), attributes=attributes, gradient=(), tolerance=None)


def _double(operand: Operand) -> Operand:
    return dataclasses.replace(operand, dtype=float64) if operand.dtype is float32 else operand


def _some(rows: Iterable[Sample], *names: str) -> list[Sample]:
    """At most so many of each of these ops, spread over what there is."""
    found: list[Sample] = []
    for name in names:
        of = [row for row in rows if row.op.name == name]
        of = [row for row in of if {i.dtype for i in row.inputs if i is not None and i.dtype.is_float} == {float32}]
        found += [_in_double(row) for row in of[:: max(1, len(of) // _MOST)][:_MOST]]
    return found


def _double_products() -> list[Sample]:
    sizes = [(1, 300, 130), (3, 300, 130), (4, 5, 3), (5, 257, 13), (97, 600, 101), (8, 0, 5), (100, 7, 1)]
    rows = [Sample(ops.matmul, (x(m, k, dtype=float64), x(k, n, dtype=float64))) for m, k, n in sizes]
    rows.append(Sample(ops.matmul, (x(2, 1, 4, 5, dtype=float64), x(3, 5, 6, dtype=float64))))
    rows += [
        Sample(op, (x(4, 5, kind=kind, dtype=float64),))  # type: ignore[arg-type]
        for op, kind in ((ops.softplus, "normal"), (ops.softsign, "normal"), (ops.tan, "unit"), (ops.atanh, "unit"))
    ]
    rows.append(Sample(ops.relu_grad, (x(4, 5, dtype=float64), x(5, dtype=float64))))
    return rows


SAMPLES: list[Sample] = [
    *_double_products(),
    *_some(conv.SAMPLES, "conv", "conv_grad_input", "conv_grad_weight"),
    *_some(pool.SAMPLES, "max_pool", "max_pool_grad", "avg_pool", "avg_pool_grad"),
    *_some(softmax.SAMPLES, "softmax", "softmax_grad", "log_softmax", "log_softmax_grad"),
    *_some(norm.SAMPLES, "layer_norm", "batch_norm_train"),
    *_some(
        loss.SAMPLES, "softmax_cross_entropy", "softmax_cross_entropy_grad", "softmax_cross_entropy_with_grad"
    ),
    *_some(gather.SAMPLES, "index_add"),
    *_some(random.SAMPLES, "dropout"),
]  # fmt: skip
