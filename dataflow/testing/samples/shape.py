"""Samples of ops that move elements."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import float32, float64, int8, int64
from ..sample import Operand, Sample, i, x


def _moves() -> list[Sample]:
    shape: tuple[int, ...]
    rows = [Sample(ops.reshape, (x(3, 4),), {"shape": s}, gradient=(0,)) for s in ((12,), (2, 6), (3, 1, 4))]
    rows += [Sample(ops.reshape, (x(0, 4),), {"shape": (2, 0)}), Sample(ops.reshape, (x(1),), {"shape": ()})]
    rows += [
        Sample(ops.transpose, (x(3, 5, 7),), {"perm": p}, gradient=(0,)) for p in ((2, 0, 1), (0, 2, 1), (0, 1, 2))
    ]
    rows += [
        Sample(ops.transpose, (x(0, 3),), {"perm": (1, 0)}),
        Sample(ops.transpose, (i(3, 4, high=9),), {"perm": (1, 0)}),
    ]
    rows += [Sample(ops.broadcast_to, (x(3, 1),), {"shape": s}, gradient=(0,)) for s in ((3, 5), (2, 3, 5), (3, 1))]
    rows += [Sample(ops.broadcast_to, (x(),), {"shape": (4, 0)})]
    ranges_of: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((5, 7), (1, 0), (4, 7), (1, 2)), ((5, 7), (4, 6), (-1, -1), (-1, -3)), ((5, 7), (2, 3), (2, 5), (1, 1)),
    )  # fmt: skip
    for shape, starts, stops, steps in ranges_of:
        ranges = {"starts": starts, "stops": stops, "steps": steps}
        rows.append(Sample(ops.slice, (x(*shape),), ranges, gradient=(0,)))
        size = np.zeros(shape)[
            tuple(slice(a, None if b < 0 else b, s) for a, b, s in zip(starts, stops, steps, strict=True))
        ].shape
        rows.append(Sample(ops.slice_grad, (x(*size),), {"shape": shape, **ranges}, gradient=(0,)))
    for pads in ((1, 2, 0, 3), (0, 0, 0, 0), (-1, 1, 2, -2)):
        rows.append(Sample(ops.pad, (x(4, 5), Operand((), float32, value=1.5)), {"pads": pads}, gradient=(0, 1)))
        rows.append(Sample(ops.pad, (x(4, 5),), {"pads": pads}))
    for mode in ("reflect", "edge", "wrap"):
        for pads in ((1, 2, 0, 3), (2, -1, -1, 3)):
            rows.append(Sample(ops.pad, (x(4, 5),), {"pads": pads, "mode": mode}, gradient=(0,)))
    rows.append(Sample(ops.pad, (x(2, 1, 3),), {"pads": (0, 2, 7, 5, 1, 8), "mode": "wrap"}, gradient=(0,)))
    # axes that aren't padded, inside, outside and between, such as channels that lie last; rows of several tasks
    for mode in ("constant", "reflect", "edge", "wrap"):
        rows.append(Sample(ops.pad, (x(2, 3, 4, 3),), {"pads": (0, 2, 1, 0, 0, 1, 2, 0), "mode": mode}, gradient=(0,)))
        rows.append(
            Sample(ops.pad, (x(2, 3, 1, 5, 2, 2),), {"pads": (0, 0, 0, -1, 0, 0, 0, 2, 0, 3, 0, 0), "mode": mode})
        )
        rows.append(Sample(ops.pad, (x(3, 2, 4, 5),), {"pads": (1, 0, 0, -1, 1, 0, 0, 0), "mode": mode}))
        rows.append(Sample(ops.pad, (x(3, 211, 157),), {"pads": (1, 0, 0, 2, 0, 0), "mode": mode}))
    for mode in ("edge", "wrap"):  # several times what the axis has, and of one element
        rows.append(Sample(ops.pad, (x(3, 4),), {"pads": (1, 9, 1, 14), "mode": mode}, gradient=(0,)))
        rows.append(Sample(ops.pad, (x(3, 1),), {"pads": (1, 2, 0, 3), "mode": mode}, gradient=(0,)))
    for mode in ("reflect", "edge", "wrap"):  # as much as reflecting can
        rows.append(Sample(ops.pad, (x(2, 30, dtype=float64),), {"pads": (0, 29, 0, 20), "mode": mode}))
        rows.append(Sample(ops.pad, (i(2, 3, high=9, dtype=int8),), {"pads": (1, 2, 1, 2), "mode": mode}))
    rows.append(Sample(ops.pad, (i(2, 3, 2, high=9), Operand((), int64, value=7)), {"pads": (0, 1, 0, 1, 0, 0)}))
    rows += [Sample(ops.pad, (x(0, 5),), {"pads": (1, 0, 1, 0)}), Sample(ops.pad, (x(1),), {"pads": (3, 3)})]
    for shapes, axis in (
        (((3, 5), (3, 2)), 1),
        (((3, 5), (1, 5), (0, 5)), 0),
        (((2, 3, 4), (2, 3, 4)), -1),
        (((7,),), 0),
    ):
        rows.append(
            Sample(ops.concat, tuple(x(*s) for s in shapes), {"axis": axis}, gradient=tuple(range(len(shapes))))
        )
    rows.append(Sample(ops.concat, (x(40001), x(40001)), {"axis": 0}))
    # rows of whole and of broken 16 bytes, from and to
    rows.append(Sample(ops.concat, (x(3, 8), x(3, 5), x(3, 12)), {"axis": 1}, gradient=(0, 1, 2)))
    rows.append(Sample(ops.concat, (i(3, high=9), i(2, high=9)), {"axis": 0}))
    return rows


SAMPLES: list[Sample] = _moves()
