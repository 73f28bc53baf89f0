"""Samples of resizing."""

from __future__ import annotations

from ... import ops
from ...ir.types import int64
from ...ops.resize import COORDINATES, ROUNDINGS, taps
from ..sample import Operand, Sample, x


def _tables() -> list[Sample]:
    rows = []
    shapes = (((2, 3, 5, 7), 2, 8), ((2, 3, 5, 7), 3, 4), ((6,), 0, 13), ((1, 1), -1, 1), ((0, 4), 1, 9),
              ((3, 40, 600), 1, 70), ((5, 0, 3), 2, 5), ((3, 20), 1, 45), ((2, 40), -1, 21))  # fmt: skip
    for shape, axis, result in shapes:
        for mode in ("nearest", "linear", "cubic"):
            index, weight = taps(shape[axis], result, result / shape[axis], mode=mode, coordinates="half_pixel")
            indices = Operand(index.shape, int64, value=index)
            weights = Operand(weight.shape, value=weight)
            back = tuple(result if a == axis % len(shape) else n for a, n in enumerate(shape))
            small = (0,) if 0 not in shape and len(shape) < 5 and max(shape) < 20 else ()
            rows.append(Sample(ops.resample, (x(*shape), indices, weights), {"axis": axis}, gradient=small))
            attributes = {"axis": axis, "size": shape[axis]}
            rows.append(Sample(ops.resample_grad, (x(*back), indices, weights), attributes, gradient=small))
    return rows


def _resize() -> list[Sample]:
    rows = [Sample(ops.resize, (x(1, 2, 4, 5),), {"sizes": (1, 2, 8, 3), "mode": m}, gradient=(0,))
            for m in ("nearest", "linear", "cubic")]  # fmt: skip
    for how in COORDINATES:
        attributes = {"sizes": (2, 7, 4), "mode": "linear", "coordinates": how, "roi": (0.0, 0.2, 0.1, 1.0, 0.9, 0.7)}
        rows.append(Sample(ops.resize, (x(2, 5, 6),), attributes))
    rows += [Sample(ops.resize, (x(3, 8),), {"sizes": (3, 5), "nearest": name}) for name in ROUNDINGS]
    for more in ({"exclude_outside": 1}, {"antialias": 1}, {"antialias": 1, "exclude_outside": 1}, {"cubic_a": -0.5}):
        rows.append(Sample(ops.resize, (x(2, 9),), {"sizes": (2, 4), "mode": "cubic", **more}))
    rows.append(Sample(ops.resize, (x(2, 9),), {"sizes": (2, 4), "scales": (1.0, 0.5), "mode": "linear"}))
    rows.append(Sample(ops.resize, (x(3, 4),), {"sizes": (3, 4)}))
    rows.append(Sample(ops.resize, (x(0, 4),), {"sizes": (0, 8)}))
    return rows


SAMPLES: list[Sample] = _tables() + _resize()
