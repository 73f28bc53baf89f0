"""Samples of sampling between elements."""

from __future__ import annotations

import itertools
from typing import Any

from ... import ops
from ...ops.grid_sample import PADDINGS, TAPS
from ..sample import Operand, Sample, x


def _grids() -> list[Sample]:
    rows = []
    cases: list[tuple[tuple[int, ...], tuple[int, ...], str, str, bool]] = []
    for mode, padding, corners in itertools.product(TAPS, PADDINGS, (False, True)):
        cases.append(((2, 3, 5, 6), (2, 4, 3, 2), mode, padding, corners))
    cases += [((2, 2, 3, 4, 5), (2, 2, 3, 1, 3), mode, "reflection", False) for mode in TAPS]
    cases += [((1, 2, 7), (1, 9, 1), "linear", padding, False) for padding in PADDINGS]
    cases += [((1, 2, 1, 4), (1, 3, 2, 2), mode, "reflection", True) for mode in TAPS]
    cases += [((2, 40, 17, 19), (2, 33, 31, 2), mode, "zeros", False) for mode in ("linear", "cubic")]
    for image, positions, mode, padding, corners in cases:
        rows += _three(image, positions, {"mode": mode, "padding": padding, "align_corners": corners})
    rows += _three((2, 3, 5, 6), (2, 4, 3, 2), {"normalized": False})
    infinite = [[9e30, 0], [0, -9e30], [-1e9, 1e9], [float("inf"), 0], [1e5, -1], [5, 3.1]]
    far = Operand((1, 2, 3, 2), value=infinite)
    near = Operand((1, 2, 3, 2), value=[[40.25, 0], [0, -100.5], [-10, 1e3], [float("inf"), 0], [33, -1], [5, 3.1]])
    for padding, grid in (("zeros", far), ("border", far), ("reflection", near)):
        rows.append(Sample(ops.grid_sample, (x(1, 2, 4, 4), grid), {"padding": padding}))
    rows += [Sample(ops.grid_sample, (x(n, 2, 4, 4), x(n, m, 3, 2))) for n, m in ((0, 3), (1, 0))]
    return rows


def _three(image: tuple[int, ...], positions: tuple[int, ...], how: dict[str, Any]) -> list[Sample]:
    """The op and both of its gradients."""
    small = (0, 1) if max(image) < 17 and how.get("mode") != "nearest" else ()
    grid, dy = x(*positions), x(*image[:2], *positions[1:-1])
    return [
        Sample(ops.grid_sample, (x(*image), grid), how, gradient=small),
        Sample(ops.grid_sample_grad_input, (dy, grid), {"input_shape": image, **how}, gradient=small),
        Sample(ops.grid_sample_grad_grid, (dy, x(*image), grid), how, gradient=(*small, 2) if small else ()),
    ]


def _affine() -> list[Sample]:
    rows = []
    for corners in (False, True):
        plane, volume = ({"size": size, "align_corners": corners} for size in ((2, 3, 4, 5), (1, 1, 2, 1, 3)))
        rows.append(Sample(ops.affine_grid, (x(2, 2, 3),), plane, gradient=(0,)))
        rows.append(Sample(ops.affine_grid, (x(1, 3, 4),), volume))
    return rows


def _deformable() -> list[Sample]:
    plain = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    more = {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "groups": 2, "offset_groups": 2}
    inputs = (x(2, 4, 5, 6), x(6, 2, 3, 2), x(2, 24, 3, 5), x(6), x(2, 12, 3, 5))
    return [
        Sample(ops.deform_conv, (x(1, 2, 4, 5), x(3, 2, 2, 2), x(1, 8, 3, 4)), plain, gradient=(0, 1, 2)),
        Sample(ops.deform_conv, inputs, more, gradient=(0, 1, 2, 3, 4)),
        Sample(ops.deform_conv, (x(1, 2, 4, 5), x(3, 2, 2, 2), x(1, 8, 3, 4), None, x(1, 4, 3, 4)), plain),
    ]


SAMPLES: list[Sample] = _grids() + _affine() + _deformable()
