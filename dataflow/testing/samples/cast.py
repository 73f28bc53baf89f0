"""Samples of casts."""

from __future__ import annotations

from ... import ops
from ...ir.types import bool_, float32, float64, int32, int64
from ..sample import Operand, Sample, x


def _casts() -> list[Sample]:
    types = (float32, float64, int32, int64, bool_)
    rows = [Sample(ops.cast, (Operand((3, 5), a, "range", 0, 5),), {"to": b}) for a in types for b in types if a != b]
    rows += [Sample(ops.cast, (x(3, 5),), {"to": float64}, gradient=(0,)), Sample(ops.cast, (x(0),), {"to": int32})]
    return rows


SAMPLES: list[Sample] = _casts()
