"""Samples of the layers of networks: products, convolutions, pools, normalizations, losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.types import Array, float32, float64, int32, int64
from ..sample import Operand, Sample, i, x


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
        rows += [Sample(ops.square_sum, (x(*shape), before)) for before in (None, scale)]
    return rows


LAYERS: list[Sample] = _products() + _pools() + _networks()
