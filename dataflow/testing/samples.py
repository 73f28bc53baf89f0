"""The sample table: uses of every op at interesting shapes. Adding a row is the whole test of an op or kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import ops
from ..builder import GraphBuilder
from ..graph import Array, Graph
from ..op import Op
from ..types import bool_, float32, float64, int32, int64, uint64
from .sample import PAIRS, SHAPES, Kind, Operand, Sample, i, x
from .samples_fused import FUSED
from .samples_index import INDEXING
from .samples_long import LONG
from .samples_norm import NORMS
from .samples_recurrent import RECURRENT
from .samples_resample import RESAMPLES


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
            Sample(ops.clip, (x(*s, kind="distinct"), *ends), gradient=(0,)) for s in ((3, 5), (0,), (1,), (70001,))
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
        rows.append(Sample(ops.pad, (x(4, 5), Operand((), float32, value=1.5)), {"pads": pads}, gradient=(0,)))
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


def _products() -> list[Sample]:
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((3, 5), (5, 7)), ((1, 1), (1, 1)), ((0, 5), (5, 3)), ((3, 0), (0, 4)), ((17, 33), (33, 15)),
        ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2)),
        ((130, 70), (70, 140)), ((1, 300), (300, 200)), ((300, 1), (1, 200)),
    )  # fmt: skip
    rows = []
    for a, b in shapes:
        small = max(*a, *b) < 40
        rows.append(Sample(ops.matmul, (x(*a), x(*b)), gradient=(0, 1) if small else ()))
    rows.append(Sample(ops.matmul, (x(3, 5, dtype=float64), x(5, 4, dtype=float64))))
    windows: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 3, 8, 8), (4, 3, 3, 3), {}),
        ((2, 3, 9, 7), (4, 3, 3, 2), {"strides": (2, 1), "pads": (1, 0, 1, 1)}),
        ((1, 4, 7, 7), (6, 2, 3, 3), {"groups": 2, "pads": (1, 1, 1, 1)}),
        ((2, 4, 6, 6), (4, 1, 3, 3), {"groups": 4, "pads": (1, 1, 1, 1)}),
        ((1, 2, 11, 10), (3, 2, 3, 3), {"dilations": (2, 3)}),
        ((2, 5, 4, 4), (7, 5, 1, 1), {}),
        ((2, 5, 5, 5), (7, 5, 1, 1), {"strides": (2, 2)}),
        ((0, 3, 5, 5), (2, 3, 3, 3), {}),
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
        ((2, 3, 12), (4, 3, 5), {"strides": (2,), "pads": (2, 1)}),
        ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"pads": (0, 1, 0, 1, 0, 1)}),
        ((3, 17, 19, 15), (18, 17, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 3, 20, 20), (8, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
        ((3, 8, 14, 14), (16, 8, 3, 3), {}),
        ((1, 32, 6, 6), (20, 32, 3, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}),
        ((2, 50, 4, 3), (18, 50, 1, 3), {"pads": (0, 1, 0, 1)}),
        ((2, 3, 7, 6), (6, 1, 3, 2), {"groups": 3, "strides": (2, 1)}),
        ((2, 34, 10, 9), (36, 34, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((2, 40, 9, 12), (34, 20, 2, 5), {"groups": 2, "strides": (2, 3), "dilations": (3, 2), "pads": (2, 1, 3, 4)}),
        ((1, 35, 13, 12), (33, 35, 3, 4), {"strides": (4, 2), "dilations": (2, 4), "pads": (0, 6, 2, 5)}),
        ((2, 18, 7, 8), (20, 18, 1, 1), {"strides": (2, 2), "pads": (1, 0, 1, 1)}),
        ((3, 36, 8, 38), (40, 36, 1, 1), {"strides": (1, 2)}),
        ((1, 18, 9, 9), (5, 18, 4, 4), {"strides": (4, 4)}),
        ((2, 20, 31), (40, 20, 4), {"strides": (2,), "pads": (1, 2)}),
        ((1, 20, 5, 6, 7), (24, 20, 3, 2, 3), {"strides": (2, 1, 2), "pads": (1, 1, 0, 0, 0, 2)}),
        ((3, 18, 120, 120), (17, 18, 2, 2), {"strides": (2, 2)}),
        ((2, 33, 12, 12), (35, 33, 3, 3), {"pads": (0, 2, 1, 1)}),
    )  # fmt: skip
    for image, weight, given in windows:
        spatial = len(image) - 2
        window: dict[str, Any] = {
            "strides": (1,) * spatial,
            "pads": (0,) * (2 * spatial),
            "dilations": (1,) * spatial,
            "groups": 1,
            **given,
        }
        output = tuple(
            (
                image[2 + d]
                + window["pads"][d]
                + window["pads"][d + spatial]
                - window["dilations"][d] * (weight[2 + d] - 1)
                - 1
            )
            // window["strides"][d]
            + 1
            for d in range(spatial)
        )
        dy = x(image[0], weight[0], *output)
        small = int(np.prod(image)) < 500
        rows.append(
            Sample(ops.conv, (x(*image), x(*weight), x(weight[0])), window, gradient=(0, 1, 2) if small else ())
        )
        rows.append(Sample(ops.conv, (x(*image), x(*weight)), window))
        extra = (0, 1) if small else ()
        rows.append(Sample(ops.conv_grad_input, (dy, x(*weight)), {"input_shape": image, **window}, gradient=extra))
        rows.append(Sample(ops.conv_grad_weight, (x(*image), dy), {"weight_shape": weight, **window}, gradient=extra))
    return rows


def _pools() -> list[Sample]:
    rows = []
    windows: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 3, 8, 8), (2, 2), {"strides": (2, 2)}),
        ((2, 3, 7, 9), (3, 2), {"strides": (2, 1), "pads": (1, 0, 1, 1)}),
        ((1, 2, 7, 7), (3, 3), {"strides": (2, 2), "ceil_mode": 1}),
        ((1, 2, 8, 8), (3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1}),
        ((1, 2, 9, 9), (2, 3), {"dilations": (2, 2)}),
        ((2, 3, 11), (3,), {"strides": (2,), "pads": (1, 1)}),
        ((1, 2, 4, 5, 6), (2, 2, 3), {}),
        ((0, 2, 4, 4), (2, 2), {}),
        ((1, 1, 1, 1), (1, 1), {}),
        ((2, 70, 24, 24), (2, 2), {"strides": (2, 2)}),
    )  # fmt: skip
    for image, kernel, given in windows:
        n = len(kernel)
        a = {
            "kernel": kernel,
            "strides": (1,) * n,
            "pads": (0,) * (2 * n),
            "dilations": (1,) * n,
            "ceil_mode": 0,
            **given,
        }
        small = (0,) if np.prod(image) < 800 else ()
        rows.append(Sample(ops.max_pool, (x(*image, kind="distinct"),), a, gradient=small))
        g = GraphBuilder()
        out = ops.max_pool(g.input("x", float32, image), **a).type.sizes
        places = _indices(image, a)
        rows.append(Sample(ops.max_pool_grad, (x(*out), Operand(out, int32, value=places)), {"input_shape": image}))
        for count in (0, 1):
            rows.append(Sample(ops.avg_pool, (x(*image),), {**a, "count_include_pad": count}, gradient=small))
            back = {"input_shape": image, **a, "count_include_pad": count}
            rows.append(Sample(ops.avg_pool_grad, (x(*out),), back, gradient=small))
    return rows


def _indices(image: tuple[int, ...], a: Mapping[str, Any]) -> Array:
    """Some element inside each window: valid indices for max_pool_grad."""
    g = GraphBuilder()
    out = ops.max_pool(g.input("x", float32, image), **a).type.sizes
    found = np.zeros(out, np.int32)
    for axis in range(len(a["kernel"])):
        size, before, stride = image[2 + axis], a["pads"][axis], a["strides"][axis]
        at = np.clip(np.arange(out[2 + axis]) * stride - before, 0, max(size - 1, 0))
        found = found * size + at.reshape([-1 if i == 2 + axis else 1 for i in range(len(out))]).astype(np.int32)
    return found


def _networks() -> list[Sample]:
    shape: tuple[int, ...]
    rows = []
    for shape in ((2, 3, 4, 5), (0, 3, 4), (1, 1), (6, 17), (3, 8, 33), (8, 40, 16, 16)):
        c = shape[1]
        vectors = (x(c), x(c), x(c), x(c, kind="positive"))
        checked = (0, 1, 2) if 0 < np.prod(shape) < 200 else ()
        rows.append(Sample(ops.batch_norm, (x(*shape), *vectors), gradient=checked))
        if 0 in shape:
            continue
        # the statistics of one element have no spread: its normalized value is rounding only
        if np.prod(shape) // c > 1:
            rows.append(
                Sample(ops.batch_norm_train, (x(*shape), *vectors), {"momentum": 0.8}, gradient=checked, tolerance=1e-4)
            )
            rows.append(
                Sample(
                    ops.batch_norm_train_grad, (x(*shape), x(*shape), x(c), x(c), x(c, kind="positive")), tolerance=1e-4
                )
            )
    for shape, size in (((2, 7, 3, 3), 5), ((1, 4, 2), 4), ((1, 1, 1, 1), 3), ((0, 3, 2, 2), 3), ((2, 33, 5, 5), 3)):
        a = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.2}
        rows.append(Sample(ops.lrn, (x(*shape),), a, gradient=(0,) if np.prod(shape) < 200 else ()))
        data = (x(*shape), x(*shape), x(*shape), x(*shape, kind="positive"))
        rows.append(Sample(ops.lrn_grad, data, a))
    for shape, axis in (
        ((3, 5), -1),
        ((3, 5, 7), 1),
        ((17,), 0),
        ((1, 1), 1),
        ((0, 4), 1),
        ((64, 1000), 1),
        ((3, 33, 4), 1),
    ):
        small = (0,) if np.prod(shape) < 200 else ()
        for name in ("softmax", "log_softmax"):
            rows.append(Sample(getattr(ops, name), (x(*shape),), {"axis": axis}, gradient=small))
            y = x(*shape, kind="unit")
            rows.append(Sample(getattr(ops, f"{name}_grad"), (x(*shape), y), {"axis": axis}))
    rows.append(Sample(ops.softmax, (Operand((2, 3), float32, value=[1000, 999, -1000, -5, -5, -5]),)))
    for shape, axis in (((6, 5), 1), ((3, 4, 7), 1), ((1, 1), 1), ((0, 4), 1), ((33, 1000), 1), ((2, 5, 3), 2)):
        labels = shape[:axis] + shape[axis + 1 :]
        for smoothing in (0.0, 0.1):
            for dtype in (int64, int32):
                a = {"axis": axis, "label_smoothing": smoothing, "ignore_index": 0}
                given = (x(*shape), i(*labels, high=shape[axis], dtype=dtype))
                small = (0,) if np.prod(shape) < 200 else ()
                rows.append(Sample(ops.softmax_cross_entropy, given, a, gradient=small))
                lse = x(*labels, kind="positive")
                rows.append(Sample(ops.softmax_cross_entropy_grad, (x(*labels), *given, lse), a))
    scale = Operand((), float32, value=0.25)
    for shape in ((), (17,), (3, 5), (0,), (70001,)):
        values = (x(*shape), x(*shape))
        hyper = Operand((2,), float32, value=[0.1, 0.01])
        rows.append(Sample(ops.sgd_step, (*values, None, hyper, scale)))
        rows += [
            Sample(ops.sgd_step, (*values, x(*shape), hyper, scale), {"momentum": 0.9, "nesterov": nesterov})
            for nesterov in (0, 1)
        ]
        hyper = Operand((4,), float32, value=[1e-2, 0.01, 0.19, 0.002])
        rows.append(Sample(ops.adamw_step, (*values, x(*shape), x(*shape, kind="positive"), hyper, scale)))
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


def cell() -> Graph:
    """A recurrent cell: h' = tanh(h w + x), a running sum, and a row of each trip."""
    g = GraphBuilder("cell")
    h, total, row = g.input("h", float32, (2, 3)), g.input("total", float32, (2,)), g.input("row", float32, (2, 3))
    w = g.input("w", float32, (3, 3))
    new = ops.tanh(ops.add(ops.matmul(h, w), row))
    g.output("h", new)
    g.output("total", ops.add(total, ops.reduce_sum(new, axes=(1,), keepdims=0)))
    g.output("y", ops.mul(new, row))
    return g.build()


def _branch(name: str, op: Op) -> Graph:
    g = GraphBuilder(name)
    g.output("y", op(g.input("a", float32, (3, 4)), g.input("b", float32, (4,))))
    return g.build()


def _count_down() -> Graph:
    g = GraphBuilder("count")
    trip, _ = g.input("i", int64, ()), g.input("go", bool_, ())
    value = ops.mul(g.input("v", float32, (3,)), 0.5)
    g.output("go", ops.less(trip, 3))
    g.output("v", value)
    g.output("row", value)
    return g.build()


def _fused_body() -> Graph:
    g = GraphBuilder("relu of a sum")
    g.output("y", ops.relu(ops.add(g.input("a", float32, (3, 5)), g.input("b", float32, (5,)))))
    return g.build()


def _control() -> list[Sample]:
    rows = []
    for trips in (0, 1, 2, 5):
        for reverse in (0, 1):
            data = (x(2, 3), x(2), x(trips, 2, 3), x(3, 3))
            a = {"n_carries": 2, "n_xs": 1, "reverse": reverse}
            rows.append(Sample(ops.scan, data, a, gradient=(0, 1, 2, 3) if trips else (), bodies=(cell(),)))
    branches = (_branch("then", ops.mul), _branch("else", ops.add))
    for truth in (0, 1):
        condition = Operand((), bool_, value=truth)
        rows.append(Sample(ops.if_, (condition, x(3, 4), x(4)), gradient=(1, 2), bodies=branches))
    for count in (0, 2, 9):
        start = (Operand((), int64, value=count), Operand((), bool_, value=True), x(3))
        rows.append(Sample(ops.loop, start, {"n_carries": 1, "max_trips": 10}, bodies=(_count_down(),)))
    rows.append(
        Sample(
            ops.fused,
            (x(3, 5, kind="distinct"), x(5)),
            {"pattern": "add_relu"},
            gradient=(0, 1),
            bodies=(_fused_body(),),
        )
    )
    return rows


SAMPLES: tuple[Sample, ...] = tuple(
    _unary()
    + _binary()
    + _reduce()
    + _movement()
    + _products()
    + _pools()
    + _networks()
    + INDEXING
    + NORMS
    + RESAMPLES
    + LONG
    + _random()
    + RECURRENT
    + _control()
    + FUSED
)
