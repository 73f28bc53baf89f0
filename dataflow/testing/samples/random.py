"""Samples of random ops."""

from __future__ import annotations

from ... import ops
from ...ir.types import uint64
from ..sample import Operand, Sample, in_double, x


def _random() -> list[Sample]:
    key = Operand((2,), uint64, value=[0x123456789ABCDEF, 7])
    rows = []
    for shape in ((), (1,), (0,), (17,), (3, 5), (1030,), (70001,)):
        rows.append(Sample(ops.random_uniform, (key,), {"shape": shape, "low": -1.0, "high": 3.0, "stream": 5}))
        # cosines of large angles in float32
        rows.append(Sample(ops.random_normal, (key,), {"shape": shape, "mean": 1.0, "scale": 2.0}, tolerance=1e-4))
        rows.append(
            Sample(ops.dropout, (x(*shape), key), {"ratio": 0.3, "stream": 2}, gradient=(0,) if shape == (3, 5) else ())
        )
    rows += [Sample(ops.mersenne_uniform, (), {"shape": shape, "seed": 7}) for shape in ((), (0,), (3, 5), (700,))]
    return rows


SAMPLES: list[Sample] = _random()
SAMPLES += in_double(SAMPLES, "dropout")
