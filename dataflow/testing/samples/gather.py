"""Samples of ops that read rows by index, and of sources."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import bool_, float32, float64, int8, int32, int64, string
from ..sample import Operand, Sample, i, in_double, x


def _gathers() -> list[Sample]:
    rows = []
    for dtype in (int32, int64):
        rows.append(Sample(ops.gather, (x(6, 5), i(4, low=-6, high=6, dtype=dtype)), {"axis": 0}, gradient=(0,)))
        rows.append(Sample(ops.gather, (x(6, 5, 3), i(2, 3, high=5, dtype=dtype)), {"axis": 1}, gradient=(0,)))
        rows.append(Sample(ops.index_add, (i(4, low=-6, high=6, dtype=dtype), x(4, 5)), {"size": 6}, gradient=(1,)))
        rows.append(
            Sample(ops.index_add, (i(2, 3, high=5, dtype=dtype), x(6, 2, 3, 3)), {"size": 5, "axis": 1}, gradient=(1,))
        )
    added = i(2, 3, high=5), x(6, 2, 3, 70), x(6, 5, 70)
    rows += [
        Sample(ops.index_add, added, {"size": 5, "axis": 1}),
        Sample(ops.index_add, (i(0, high=1), x(0, 3), x(4, 3)), {"size": 4}, gradient=(2,)),
        Sample(ops.gather, (x(6, 5), i(0, high=1)), {"axis": 0}),
        Sample(ops.gather, (x(6, 5), i(high=6)), {"axis": 0}),
        Sample(ops.gather, (i(6, high=50), i(3, high=6)), {"axis": 0}),
        Sample(ops.gather, (x(1), i(1, high=1)), {}),
    ]
    for dtype in (float32, float64, int32, int64):
        keys = Operand((5,), dtype, value=[-7, -2, 0, 3, 9])
        rows.append(Sample(ops.find, (i(4, 6, low=-8, high=10, dtype=dtype), keys)))
        rows.append(Sample(ops.find, (i(3, high=2, dtype=dtype), Operand((0,), dtype, value=[]))))
    nans = Operand((4,), float32, value=[np.nan, -0.0, 1.5, np.inf])
    rows.append(Sample(ops.find, (nans, Operand((3,), float32, value=[0.0, 1.0, np.nan]))))
    words = Operand((2, 2), string, value=[["b", "é"], ["", "c"]])
    rows.append(Sample(ops.find, (words, Operand((3,), string, value=["", "b", "é"]))))
    for shape, axis in (((4,), -1), ((2, 3), 0), ((2, 3), 1), ((0,), -1)):
        rows.append(Sample(ops.one_hot, (i(*shape, low=-2, high=7),), {"depth": 6, "axis": axis}))
    rows += [Sample(ops.full, (), {"shape": s, "value": 2.5}) for s in ((), (0,), (3, 5), (70001,))]
    rows += [Sample(ops.full, (), {"shape": (3,), "value": 2, "dtype": d}) for d in (int32, int64, bool_, float64)]
    rows.append(Sample(ops.full, (), {"shape": (3,), "value": 1, "dtype": int8}))
    rows += [Sample(ops.range_, (), {"start": 2, "limit": 11, "delta": 3}), Sample(ops.range_, (), {"limit": 0})]
    rows += [Sample(ops.range_, (), {"start": 5.0, "limit": 1.0, "delta": -0.5, "dtype": float32})]
    return rows


SAMPLES: list[Sample] = _gathers()
SAMPLES += in_double(SAMPLES, "index_add")
