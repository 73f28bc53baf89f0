"""Samples of reductions."""

from __future__ import annotations

from ... import ops
from ...ir.types import float32, float64, int8, int32, int64, uint8
from ..sample import LONG_SUM, Operand, Sample, i, x


def _reduce() -> list[Sample]:
    shape: tuple[int, ...]
    rows = []
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((3, 5), (1,)), ((3, 5), (0,)), ((3, 5), (0, 1)), ((3, 5, 7), (1,)), ((3, 5, 7), (0, 2)), ((1, 1), (0,)),
        ((17,), (0,)), ((3, 0, 5), (2,)), ((2, 70001), (1,)), ((70001, 2), (0,)), ((4, 8, 6, 6), (0, 2, 3)),
        ((4, 8, 7, 7), (2, 3)),
    )  # fmt: skip
    for name, kind in (
        ("sum", "normal"),
        ("mean", "normal"),
        ("max", "distinct"),
        ("min", "distinct"),
        ("prod", "positive"),
    ):
        op = getattr(ops, f"reduce_{name}")
        for shape, axes in cases:
            if name == "prod" and 70001 in shape:
                continue
            for keepdims in (0, 1):
                checked = (0,) if shape in ((3, 5, 7), (3, 5)) else ()
                attributes = {"axes": axes, "keepdims": keepdims}
                rows.append(Sample(op, (x(*shape, kind=kind),), attributes, gradient=checked))  # type: ignore[arg-type]
        rows.append(Sample(op, (x(4, 9, kind=kind, dtype=float64),), {"axes": (1,)}))  # type: ignore[arg-type]
    rows += [Sample(ops.reduce_sum, (x(*shape),), {"axes": (1,)}) for shape in ((3, 0, 5), (3, 0))]
    rows += [
        Sample(getattr(ops, f"reduce_{n}"), (i(3, 5, low=-4, high=4),), {"axes": (1,)}) for n in ("sum", "max", "min")
    ]
    for d in (int32, int64):  # products wrap around
        rows += [Sample(ops.reduce_prod, (i(5, 40, low=-9, high=9, dtype=d),), {"axes": (a,)}) for a in (0, 1)]
    for d in (int8, uint8):
        low = -120 if d == int8 else 0
        rows += [
            Sample(op, (i(3, 4, low=low, high=120, dtype=d),), {"axes": (1,)})
            for op in (ops.reduce_max, ops.reduce_min)
        ]
        rows += [Sample(op, (i(9, 70, high=120, dtype=d),), {"axes": (0,)}) for op in (ops.reduce_max, ops.reduce_min)]
        rows += [
            Sample(op, (i(9, 70, high=9, dtype=d),), {"axis": a}) for op in (ops.argmax, ops.argmin) for a in (0, 1)
        ]
    for name in ("argmax", "argmin"):
        for shape, axis in (((3, 5), 1), ((3, 5), 0), ((17,), 0), ((2, 3, 33), 1), ((64, 10), 1), ((0, 4), 1)):
            rows += [
                Sample(getattr(ops, name), (x(*shape),), {"axis": axis, "keepdims": k, "select_last_index": last})
                for k in (0, 1)
                for last in (0, 1)
            ]
        equal = Operand((2, 4), float32, value=[1, 3, 3, 0, 2, 2, 2, 2])
        rows += [Sample(getattr(ops, name), (equal,), {"axis": 1, "select_last_index": last}) for last in (0, 1)]
    rows += [
        Sample(ops.sum_to, (x(4, 3, 5),), {"shape": shape}, gradient=(0,))
        for shape in ((3, 5), (5,), (), (3, 1), (4, 3, 5), (1, 1, 5))
    ]
    return rows


def _long() -> list[Sample]:
    """Long axes, along which devices partition the work."""
    rows = [Sample(ops.reduce_sum, (x(9001, dtype=float64),), {"axes": (0,)})]
    for op in (ops.reduce_sum, ops.reduce_max):
        rows.append(Sample(op, (i(9001, low=-99, high=99),), {"axes": (0,)}))
        rows += [
            Sample(op, (x(*shape),), {"axes": axes}, tolerance=LONG_SUM)
            for shape, axes in (((9001,), (0,)), ((2000, 12), (0,)), ((1100, 3, 5), (0, 2)))
        ]
    rows.append(Sample(ops.reduce_mean, (x(2, 9001),), {"axes": (1,)}, tolerance=LONG_SUM))
    for last in (0, 1):
        a = {"axis": -1, "select_last_index": last}
        rows.append(Sample(ops.argmax, (x(33001),), a))
        rows.append(Sample(ops.argmin, (i(33001, low=-9, high=9),), a))
    return rows


SAMPLES: list[Sample] = _reduce() + _long()
