"""Samples of ops that read and write by tensors of indices."""

from __future__ import annotations

from ... import ops
from ...ir.types import float64, int32, int64
from ..sample import Operand, Sample, i, x


def _elements() -> list[Sample]:
    rows = []
    shapes = (((4, 5), (3, 5), 0), ((4, 5), (4, 7), 1), ((3, 4, 2), (2, 6, 1), 1), ((6,), (9,), 0), ((2, 3), (0, 3), 0),
              ((1, 1), (1, 1), -1), ((40, 900), (40, 700), 1),
              ((30, 7, 90), (50, 7, 90), 0), ((12, 5, 70), (12, 40, 70), 1))  # fmt: skip
    for shape, wanted, axis in shapes:
        size = shape[axis]
        for dtype in (int64, int32):
            indices = i(*wanted, low=-size, high=size, dtype=dtype)
            small = shape[0] < 10 and 0 not in wanted
            gradient = (0,) if small and dtype == int64 else ()
            rows.append(Sample(ops.gather_elements, (x(*shape), indices), {"axis": axis}, gradient=gradient))
            for reduction in ("none", "add", "mul", "max", "min"):
                checked = (0, 2) if gradient else ()
                given = {"axis": axis, "reduction": reduction}
                rows.append(Sample(ops.scatter_elements, (x(*shape), indices, x(*wanted)), given, gradient=checked))
    distinct = Operand((2, 3), int64, value=[[0, 2, 1], [3, 0, 2]])
    rows.append(Sample(ops.scatter_elements, (x(4, 3), distinct, x(2, 3)), {"axis": 0}, gradient=(0, 2)))
    rows.append(Sample(ops.gather_elements, (i(4, 3, high=9), distinct), {"axis": 0}))
    # products of one factor that is 0, two and none
    factors, at = Operand((4,), value=[0.0, 0.0, 2.0, 3.0]), Operand((5,), int64, value=[0, 1, 2, 2, 3])
    updates = Operand((5,), value=[1.5, 0.0, 0.0, -2.0, 0.5])
    rows.append(Sample(ops.scatter_elements, (factors, at, updates), {"reduction": "mul"}, gradient=(0, 2)))
    rows.append(Sample(ops.scatter_elements, (i(4, 3, high=9), distinct, i(2, 3, high=9)), {"axis": 0}))
    for dtype in (float64, int32, int64):
        numbers = (
            Operand((4, 3), dtype, "range", -9, 9),
            i(5, 3, low=-4, high=4),
            Operand((5, 3), dtype, "range", -9, 9),
        )
        rows += [Sample(ops.scatter_elements, numbers, {"reduction": r}) for r in ("add", "mul", "max", "min")]
    return rows


def _rows() -> list[Sample]:
    rows = []
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...], int, int], ...] = (
        ((4, 5), (3, 1), 0, 4), ((4, 5), (3, 2), 0, 4), ((4, 5, 2), (2, 3, 1), 0, 4), ((3, 4, 2), (3, 2, 1), 1, 4),
        ((2, 3, 4), (2, 3, 1), 2, 4), ((6,), (0, 1), 0, 6), ((5, 40), (90, 1), 0, 5),
    )  # fmt: skip
    for shape, wanted, shared, size in cases:
        indices = i(*wanted, low=-size, high=size)
        entry = shape[shared + wanted[-1] :]
        updates = (*wanted[:-1], *entry)
        checked = (0,) if 0 not in wanted and shape[0] < 5 else ()
        a = {"batch_dims": shared}
        rows.append(Sample(ops.gather_nd, (x(*shape), indices), a, gradient=checked))
        for reduction in ("none", "add", "mul", "max", "min"):
            both = (0, 2) if checked else ()
            given = (x(*shape), indices, x(*updates))
            rows.append(Sample(ops.scatter_nd, given, {**a, "reduction": reduction}, gradient=both))
    distinct = Operand((3, 1), int64, value=[[2], [0], [-1]])
    rows.append(Sample(ops.scatter_nd, (x(5, 4), distinct, x(3, 4)), {}, gradient=(0, 2)))
    return rows


SAMPLES: list[Sample] = _elements() + _rows()
