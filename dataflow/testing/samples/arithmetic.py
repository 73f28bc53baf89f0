"""Samples of arithmetic."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import bool_, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from ..sample import PAIRS, SHAPES, Kind, Operand, Sample, at_every_shape, i, x


def _unary() -> list[Sample]:
    kinds: dict[str, Kind] = dict.fromkeys(
        ["neg", "copy", "exp", "sin", "cos", "sinh", "cosh", "tanh", "asinh", "erf", "atan"], "normal"
    )
    kinds |= dict.fromkeys(["log", "sqrt", "reciprocal"], "positive")
    kinds |= dict.fromkeys(["tan", "asin", "acos", "atanh"], "unit")
    kinds["abs"] = "away"
    rows = [sample for name, kind in kinds.items() for sample in at_every_shape(getattr(ops, name), kind)]
    rows += [Sample(ops.acosh, (Operand((6,), float32, value=[1.2, 1.5, 2.0, 3.0, 1.1, 9.0]),), gradient=(0,))]
    for name in ("floor", "ceil", "round", "sign"):
        rows += [Sample(getattr(ops, name), (x(*shape),)) for shape in SHAPES]
        rows.append(Sample(getattr(ops, name), (Operand((7,), float32, value=[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.0]),)))
        rows.append(Sample(getattr(ops, name), (Operand((3,), float32, value=[-1.3, 0.7, 2.2]),), gradient=(0,)))
    rows += [Sample(ops.neg, (i(3, 5, low=-9, high=9, dtype=d),)) for d in (int32, int64)]
    rows += [Sample(ops.abs, (i(3, 5, low=-9, high=9, dtype=d),)) for d in (int32, int64)]
    rows += [Sample(ops.copy, (Operand((4, 3), d, "range", 0, 2),)) for d in (int32, int64, bool_)]
    rows += [
        Sample(ops.copy, (Operand(s, d, "range", 0, 9),)) for s in ((37, 70), (3, 40, 33)) for d in (float32, int64)
    ]
    rows += [Sample(ops.stop_gradient, (x(*s),)) for s in ((3, 5), (0,))]
    for bounds in ((-0.5, 0.5), (None, 0.5), (-0.5, None)):
        ends = [None if b is None else Operand((), float32, value=b) for b in bounds]
        rows += [
            Sample(ops.clip, (x(*s, kind="distinct"), *ends), gradient=(0, *(i for i in (1, 2) if ends[i - 1])))
            for s in ((3, 5), (0,), (1,), (70001,))
        ]
    return rows


def _binary() -> list[Sample]:
    rows = []
    kinds: dict[str, tuple[Kind, Kind]] = {
        "add": ("normal", "normal"), "sub": ("normal", "normal"), "mul": ("normal", "normal"),
        "div": ("normal", "away"), "pow": ("positive", "normal"), "maximum": ("distinct", "normal"),
        "minimum": ("distinct", "normal"),
    }  # fmt: skip
    for name, (left, right) in kinds.items():
        op = getattr(ops, name)
        for a, b in PAIRS:
            checked = (0, 1) if a in ((3, 5), (3, 1, 5)) else ()
            rows.append(Sample(op, (x(*a, kind=left), x(*b, kind=right)), gradient=checked))
        rows.append(Sample(op, (x(5, 3, kind=left, dtype=float64), x(3, kind=right, dtype=float64))))
        if name != "pow":
            rows += [
                Sample(op, (i(4, 3, low=-9, high=9, dtype=d), i(3, low=1, high=5, dtype=d))) for d in (int32, int64)
            ]
    for fmod in (0, 1):
        rows += [Sample(ops.mod, (x(3, 5), x(5, kind="away")), {"fmod": fmod}, gradient=(0,))]
        rows += [Sample(ops.mod, (i(3, 5, low=-9, high=9), i(5, low=1, high=4)), {"fmod": fmod})]
    return rows


def _integers() -> list[Sample]:
    """Every integer type, at its ends too: results wrap around."""
    rows = []
    for d in (int8, int16, int32, int64, uint8, uint16, uint32, uint64):
        least, most = np.iinfo(d.numpy).min, np.iinfo(d.numpy).max
        a = Operand((8, 1), d, value=[least, least + 1, most, most - 1, 0, 1, 7, 100])
        b = Operand((7,), d, value=[least, most, 0, 1, 2, 3, 5])
        names = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
        rows += [Sample(getattr(ops, name), (a, b)) for name in names]
        rows += [Sample(ops.mod, (a, b), {"fmod": fmod}) for fmod in (0, 1)]
        low, high = Operand((), d, value=2), Operand((), d, value=90)
        rows += [Sample(ops.clip, (a, *ends)) for ends in ((low, high), (low, None), (None, high))]
        if d.kind == "i":
            rows += [Sample(op, (a,)) for op in (ops.neg, ops.abs, ops.sign)]
    return rows


SAMPLES: list[Sample] = _unary() + _binary() + _integers()
