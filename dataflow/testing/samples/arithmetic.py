"""The sample table: uses of every op at interesting shapes. Adding a row is the whole test of an op or kernel."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import bool_, float32, float64, int32, int64, uint64
from ..sample import PAIRS, SHAPES, Kind, Operand, Sample, i, x
from .control_flow import CONTROL
from .fused import FUSED
from .gather import INDEXING
from .layers import LAYERS
from .long import LONG
from .norm import NORMS
from .recurrent import RECURRENT
from .resize import RESAMPLES


def _unary() -> list[Sample]:
    smooth: dict[str, Kind] = dict.fromkeys(
        [
            "neg",
            "copy",
            "exp",
            "sin",
            "cos",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "sigmoid",
            "erf",
            "softplus",
            "softsign",
            "atan",
            "mish",
            "gelu",
        ],
        "normal",
    )
    smooth |= dict.fromkeys(["log", "sqrt", "reciprocal"], "positive")
    smooth |= dict.fromkeys(["tan", "asin", "acos", "atanh"], "unit")
    smooth |= dict.fromkeys(["abs", "relu", "leaky_relu", "elu", "selu", "celu"], "away")
    rows = []
    for name, kind in smooth.items():
        op = getattr(ops, name)
        rows += [Sample(op, (x(*shape, kind=kind),), gradient=(0,) if shape == (3, 5, 7) else ()) for shape in SHAPES]
        rows.append(Sample(op, (x(4, 9, kind=kind, dtype=float64),)))
    rows += [Sample(ops.acosh, (Operand((6,), float32, value=[1.2, 1.5, 2.0, 3.0, 1.1, 9.0]),), gradient=(0,))]
    for name in ("floor", "ceil", "round", "sign"):
        rows += [Sample(getattr(ops, name), (x(*shape),)) for shape in SHAPES]
        rows.append(Sample(getattr(ops, name), (Operand((7,), float32, value=[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.0]),)))
        rows.append(Sample(getattr(ops, name), (Operand((3,), float32, value=[-1.3, 0.7, 2.2]),), gradient=(0,)))
    rows += [Sample(ops.logical_not, (Operand(shape, bool_),)) for shape in SHAPES]
    rows += [Sample(ops.bitwise_not, (i(5, 3, low=-9, high=9, dtype=d),)) for d in (int32, int64)]
    special = Operand((6,), float32, value=[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
    rows += [Sample(ops.is_nan, (special,)), Sample(ops.is_inf, (special,)), Sample(ops.is_nan, (x(0, 4),))]
    rows += [Sample(ops.is_inf, (special,), {"detect_negative": 0})]
    rows += [Sample(ops.neg, (i(3, 5, low=-9, high=9, dtype=d),)) for d in (int32, int64)]
    rows += [Sample(ops.abs, (i(3, 5, low=-9, high=9, dtype=d),)) for d in (int32, int64)]
    rows += [Sample(ops.copy, (Operand((4, 3), d, "range", 0, 2),)) for d in (int32, int64, bool_)]
    rows += [
        Sample(ops.copy, (Operand(s, d, "range", 0, 9),)) for s in ((37, 70), (3, 40, 33)) for d in (float32, int64)
    ]
    rows += [Sample(ops.relu_grad, (x(*s), x(*s)), gradient=(0,)) for s in ((3, 5), (0,), (70001,), (1,))]
    rows += [Sample(ops.thresholded_relu, (Operand((5,), float32, value=[-1.0, 0.5, 1.3, 2.0, 0.9]),), gradient=(0,))]
    rows += [Sample(ops.hard_sigmoid, (Operand((5,), float32, value=[-4.0, -1.0, 0.3, 1.7, 4.0]),), gradient=(0,))]
    rows += [Sample(ops.hard_swish, (Operand((5,), float32, value=[-4.0, -1.0, 0.3, 1.7, 4.0]),), gradient=(0,))]
    rows += [Sample(ops.gelu, (x(3, 7),), {"approximate": "tanh"}, gradient=(0,))]
    for how in ("none", "tanh"):
        small = {"approximate": how}
        rows.append(Sample(ops.gelu_grad, (x(3, 7), x(3, 7)), small, gradient=(0, 1)))
        rows += [Sample(ops.gelu_grad, (x(*s), x(*s)), small) for s in ((), (0,), (70001,), (2, 33))]
    for bounds in ((-0.5, 0.5), (None, 0.5), (-0.5, None)):
        ends = [None if b is None else Operand((), float32, value=b) for b in bounds]
        rows += [
            Sample(ops.clip, (x(*s, kind="distinct"), *ends), gradient=(0, *(i for i in (1, 2) if ends[i - 1])))
            for s in ((3, 5), (0,), (1,), (70001,))
        ]
    rows += [Sample(ops.prelu, (x(2, 3, 4, kind="away"), x(3, 1)), gradient=(0, 1))]
    types = (float32, float64, int32, int64, bool_)
    rows += [Sample(ops.cast, (Operand((3, 5), a, "range", 0, 5),), {"to": b}) for a in types for b in types if a != b]
    rows += [
        Sample(ops.cast, (x(3, 5),), {"to": float64}, gradient=(0,)),
        Sample(
            ops.cast,
            (
                x(
                    0,
                ),
            ),
            {"to": int32},
        ),
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
    for name in ("equal", "less", "less_equal", "greater", "greater_equal"):
        op = getattr(ops, name)
        rows += [
            Sample(op, (i(*a, high=3, dtype=d), i(*b, high=3, dtype=d))) for a, b in PAIRS[:7] for d in (int64, int32)
        ]
        rows += [Sample(op, (x(*a), x(*b))) for a, b in PAIRS]
    for name in ("logical_and", "logical_or", "logical_xor"):
        rows += [Sample(getattr(ops, name), (Operand(a, bool_), Operand(b, bool_))) for a, b in PAIRS[:8]]
    rows += [Sample(ops.equal, (Operand((4, 3), bool_), Operand((3,), bool_)))]
    for fmod in (0, 1):
        rows += [Sample(ops.mod, (x(3, 5), x(5, kind="away")), {"fmod": fmod}, gradient=(0,))]
        rows += [Sample(ops.mod, (i(3, 5, low=-9, high=9), i(5, low=1, high=4)), {"fmod": fmod})]
    rows += [
        Sample(ops.where, (Operand(c, bool_), x(*a), x(*b)), gradient=(1, 2) if c == (3, 5) else ())
        for c, a, b in (((3, 5), (3, 5), (5,)), ((5,), (3, 5), ()), ((0,), (1,), (0,)), ((70001,), (70001,), (1,)))
    ]
    rows += [Sample(ops.where, (Operand((3,), bool_), i(3, high=9), i(3, high=9)))]
    return rows


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
    rows.append(Sample(ops.reduce_sum, (x(3, 0, 5),), {"axes": (1,)}))
    rows += [
        Sample(getattr(ops, f"reduce_{n}"), (i(3, 5, low=-4, high=4),), {"axes": (1,)}) for n in ("sum", "max", "min")
    ]
    for name in ("argmax", "argmin"):
        for shape, axis in (((3, 5), 1), ((3, 5), 0), ((17,), 0), ((2, 3, 33), 1), ((64, 10), 1), ((0, 4), 1)):
            rows += [
                Sample(getattr(ops, name), (x(*shape),), {"axis": axis, "keepdims": k, "select_last_index": last})
                for k in (0, 1)
                for last in (0, 1)
            ]
        ties = Operand((2, 4), float32, value=[1, 3, 3, 0, 2, 2, 2, 2])
        rows += [Sample(getattr(ops, name), (ties,), {"axis": 1, "select_last_index": last}) for last in (0, 1)]
    rows += [
        Sample(ops.sum_to, (x(4, 3, 5),), {"shape": shape}, gradient=(0,))
        for shape in ((3, 5), (5,), (), (3, 1), (4, 3, 5), (1, 1, 5))
    ]
    return rows


def _movement() -> list[Sample]:
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
    cuts: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((5, 7), (1, 0), (4, 7), (1, 2)), ((5, 7), (4, 6), (-1, -1), (-1, -3)), ((5, 7), (2, 3), (2, 5), (1, 1)),
    )  # fmt: skip
    for shape, starts, stops, steps in cuts:
        ranges = {"starts": starts, "stops": stops, "steps": steps}
        rows.append(Sample(ops.slice, (x(*shape),), ranges, gradient=(0,)))
        size = np.zeros(shape)[
            tuple(slice(a, None if b < 0 else b, s) for a, b, s in zip(starts, stops, steps, strict=True))
        ].shape
        rows.append(Sample(ops.slice_grad, (x(*size),), {"shape": shape, **ranges}, gradient=(0,)))
    for pads in ((1, 2, 0, 3), (0, 0, 0, 0), (-1, 1, 2, -2)):
        rows.append(Sample(ops.pad, (x(4, 5), Operand((), float32, value=1.5)), {"pads": pads}, gradient=(0, 1)))
        rows.append(Sample(ops.pad, (x(4, 5),), {"pads": pads}))
    rows += [
        Sample(ops.pad, (x(4, 5),), {"pads": (1, 2, 0, 3), "mode": mode}, gradient=(0,)) for mode in ("reflect", "edge")
    ]
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
    rows.append(Sample(ops.concat, (i(3, high=9), i(2, high=9)), {"axis": 0}))
    for dtype in (int32, int64):
        hits = Operand((3, 4), dtype, value=[[0, 2, 0, 0], [1, 0, 0, 5], [0, 0, 0, 0]])
        rows.append(Sample(ops.nonzero, (hits,), {"count": 3}))
        rows.append(Sample(ops.gather, (x(6, 5), i(4, low=-6, high=6, dtype=dtype)), {"axis": 0}, gradient=(0,)))
        rows.append(Sample(ops.gather, (x(6, 5, 3), i(2, 3, high=5, dtype=dtype)), {"axis": 1}, gradient=(0,)))
        rows.append(Sample(ops.index_add, (i(4, low=-6, high=6, dtype=dtype), x(4, 5)), {"size": 6}, gradient=(1,)))
        rows.append(
            Sample(ops.index_add, (i(2, 3, high=5, dtype=dtype), x(6, 2, 3, 3)), {"size": 5, "axis": 1}, gradient=(1,))
        )
    rows += [
        Sample(ops.nonzero, (Operand((2, 1, 3), float32, value=[0.0, -0.5, -0.0, 0.0, np.nan, 1.0]),), {"count": 3}),
        Sample(ops.nonzero, (Operand((5,), bool_, value=[1, 0, 1, 1, 0]),), {"count": 3}),
        Sample(ops.nonzero, (Operand((), bool_, value=True),), {"count": 1}),
        Sample(ops.nonzero, (x(0, 3),), {"count": 0}),
        Sample(ops.require, (x(3, 5),), {"left": 3, "right": 3, "text": "the rows"}, gradient=(0,)),
        Sample(ops.measure, (Operand((2,), int64, value=[3, 4]),), {"sizes": (3, 4)}),
        Sample(ops.gather, (x(6, 5), i(0, high=1)), {"axis": 0}),
        Sample(ops.gather, (x(6, 5), i(high=6)), {"axis": 0}),
    ]
    rows += [
        Sample(ops.gather, (i(6, high=50), i(3, high=6)), {"axis": 0}),
        Sample(ops.gather, (x(1), i(1, high=1)), {}),
    ]
    for shape, axis in (((4,), -1), ((2, 3), 0), ((2, 3), 1), ((0,), -1)):
        rows.append(Sample(ops.one_hot, (i(*shape, low=-2, high=7),), {"depth": 6, "axis": axis}))
    rows += [Sample(ops.full, (), {"shape": s, "value": 2.5}) for s in ((), (0,), (3, 5), (70001,))]
    rows += [Sample(ops.full, (), {"shape": (3,), "value": 2, "dtype": d}) for d in (int32, int64, bool_, float64)]
    rows += [Sample(ops.range_, (), {"start": 2, "limit": 11, "delta": 3}), Sample(ops.range_, (), {"limit": 0})]
    rows += [Sample(ops.range_, (), {"start": 5.0, "limit": 1.0, "delta": -0.5, "dtype": float32})]
    return rows


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
    return rows


SAMPLES: tuple[Sample, ...] = tuple(
    _unary()
    + _binary()
    + _reduce()
    + _movement()
    + LAYERS
    + INDEXING
    + NORMS
    + RESAMPLES
    + LONG
    + _random()
    + RECURRENT
    + CONTROL
    + FUSED
)
