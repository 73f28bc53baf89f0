"""Samples of casts."""

from __future__ import annotations

from ... import ops
from ...ir.types import bfloat16, bool_, float4e2m1, float16, float32, float64, int4, int32, int64, string, uint8
from ..sample import Operand, Sample, x


def _casts() -> list[Sample]:
    types = (float32, float64, int32, int64, bool_)
    rows = [Sample(ops.cast, (Operand((3, 5), a, "range", 0, 5),), {"to": b}) for a in types for b in types if a != b]
    rows += [Sample(ops.cast, (x(3, 5),), {"to": float64}, gradient=(0,)), Sample(ops.cast, (x(0),), {"to": int32})]
    texts = Operand((6,), string, value=["1.5", "-2e3", " +.5", "NaN", "-INF", "7"])
    rows += [Sample(ops.cast, (texts,), {"to": to}) for to in (float32, float64, string)]
    integers = Operand((2, 2), string, value=[["-7", "+3"], ["0", " 12"]])
    rows += [Sample(ops.cast, (integers,), {"to": to}) for to in (int32, int64, bool_)]
    numbers = [1.0, -0.0, 1e-5, 123456789.0, 1 / 3, 16777216.0]
    rows += [Sample(ops.cast, (Operand((6,), float64, value=numbers),), {"to": string})]
    rows += [Sample(ops.cast, (Operand((3,), to, value=[0, 1, 1]),), {"to": string}) for to in (int64, bool_)]
    return rows


def _bitcasts() -> list[Sample]:
    pairs = ((float32, int32), (int64, float64), (float16, bfloat16), (bool_, uint8), (int4, float4e2m1))
    return [Sample(ops.bitcast, (Operand((3, 5), a, "range", 0, 2),), {"to": b}) for a, b in pairs]


SAMPLES: list[Sample] = _casts() + _bitcasts()
