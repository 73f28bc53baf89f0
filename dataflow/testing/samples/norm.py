"""Samples of normalizations of each example by itself."""

from __future__ import annotations

from ... import ops
from ..sample import Sample, x


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
            whole = (x(*shape), x(*row), x(*row))
            rows.append(Sample(ops.layer_norm, whole, attributes, gradient=(0, 1, 2) if checked else ()))
            rows.append(Sample(ops.layer_norm, (x(*shape), x(*row)), attributes, gradient=(0, 1) if checked else ()))
            rows.append(Sample(ops.layer_norm, (x(*shape),), attributes, gradient=(0,) if checked else ()))
            given = (x(*shape), x(*shape), x(*row), x(*before), x(*before, kind="positive"))
            rows.append(Sample(ops.layer_norm_grad, given, attributes, tolerance=1e-4))  # it sums over rows
            rows.append(Sample(ops.layer_norm_grad, (*given[:2], None, *given[3:]), attributes, tolerance=1e-4))
    return rows


NORMS: list[Sample] = _layer_norm()
