"""Samples of pooled regions and of boxes that don't overlap."""

from __future__ import annotations

import itertools

import numpy as np

from ... import ops
from ...ir.types import int64
from ..sample import Operand, Sample, i, x


def _regions(count: int, width: float, height: float) -> Operand:
    """Corners inside and a little outside of an image, the second behind the first."""
    random = np.random.default_rng(count)
    first = random.uniform(-0.1, 0.6, (count, 2)) * (width, height)
    length = random.uniform(0.1, 0.6, (count, 2)) * (width, height)
    return Operand((count, 4), value=np.concatenate([first, first + length], axis=1).astype(np.float32))


def _pools() -> list[Sample]:
    rows = []
    maps, regions, batch = x(2, 3, 7, 9, kind="distinct"), _regions(4, 18, 14), i(4, high=2)
    dy = x(4, 3, 2, 3)
    for mode, half_pixel, ratio in itertools.product(("avg", "max"), (True, False), (0, 2)):
        how = {"size": (2, 3), "sampling_ratio": ratio, "spatial_scale": 0.5, "mode": mode, "half_pixel": half_pixel}
        rows.append(Sample(ops.roi_align, (maps, regions, batch), how, gradient=(0,)))
        read = maps if mode == "max" else None
        back = {"input_shape": (2, 3, 7, 9), **how}
        rows.append(Sample(ops.roi_align_grad, (dy, regions, batch, read), back, gradient=(0,)))
        if read is not None:
            rows.append(Sample(ops.roi_align, (maps, regions, batch, maps), how, gradient=(3,)))
    large = {"size": (2, 1), "sampling_ratio": 20}
    rows.append(Sample(ops.roi_align, (x(1, 40, 30, 30), _regions(9, 30, 30), i(9, high=1)), large))
    # as many bins as make it worth to have the channels last, and samples of a bin in several tables
    several, of = _regions(12, 9, 8), i(12, high=2)
    for half_pixel, ratio in itertools.product((True, False), (0, 3, 17)):
        how = {"size": (3, 2), "sampling_ratio": ratio, "half_pixel": half_pixel}
        rows.append(Sample(ops.roi_align, (x(2, 21, 7, 9), several, of), how))
    rows.append(Sample(ops.roi_align, (x(1, 2, 3, 3), x(0, 4), i(0, high=1)), {"size": (2, 2)}))
    reversed_ = Operand((2, 4), value=[5.0, 4.0, 1.0, 1.0, -30.0, -30.0, -20.0, -20.0])
    for half_pixel in (True, False):
        how = {"size": (2, 2), "half_pixel": half_pixel}
        rows += [Sample(ops.roi_align, (x(1, c, 6, 6), reversed_, i(2, high=1)), how) for c in (2, 9)]
        operands = (x(1, 2, 6, 6), reversed_, i(2, high=1), x(1, 2, 6, 6))
        rows.append(Sample(ops.roi_align, operands, {**how, "mode": "max", "sampling_ratio": 20}))
    plain = {"size": (2, 3), "spatial_scale": 0.5}
    rows.append(Sample(ops.max_roi_pool, (maps, regions, batch), plain, gradient=(0,)))
    rows.append(Sample(ops.max_roi_pool, (maps, regions, batch, maps), plain, gradient=(3,)))
    rows.append(Sample(ops.max_roi_pool_grad, (dy, maps, regions, batch), plain, gradient=(0,)))
    for other in (None, x(1, 2, 6, 6)):
        rows.append(
            Sample(
                ops.max_roi_pool,
                (x(1, 2, 6, 6), reversed_, i(2, high=1), other),
                {"size": (4, 4)},
                gradient=() if other else (0,),
            )
        )
    return rows


def _boxes() -> list[Sample]:
    rows = []
    random = np.random.default_rng(0)
    corners = random.uniform(0, 3, (2, 60, 4)).astype(np.float32)
    corners[..., 2:] += corners[..., :2] - 1.5  # some with their corners exchanged
    ties = np.round(random.uniform(0, 1, (2, 3, 60)), 1).astype(np.float32)
    for center, most, least in ((False, 5, 0.3), (True, 60, 0.3), (False, 60, None), (False, 0, None)):
        threshold = None if least is None else Operand((), value=least)
        limits = (Operand((), int64, value=most), Operand((), value=0.4), threshold)
        inputs = (Operand(corners.shape, value=corners), Operand(ties.shape, value=ties), *limits)
        rows.append(Sample(ops.non_max_suppression, inputs, {"rows": 360, "center": center}))
    same = Operand((1, 4, 4), value=np.tile([0.0, 0.0, 1.0, 1.0], (1, 4, 1)))
    plain = (Operand((), int64, value=3), Operand((), value=0.5))
    rows.append(Sample(ops.non_max_suppression, (same, x(1, 2, 4), *plain), {"rows": 2}))
    rows.append(Sample(ops.non_max_suppression, (x(1, 0, 4), x(1, 2, 0), *plain), {"rows": 0}))
    return rows


SAMPLES: list[Sample] = _pools() + _boxes()
