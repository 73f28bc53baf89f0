"""Samples of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.types import float32
from ..sample import Sample, in_double, x


def _convolutions() -> list[Sample]:
    rows = []
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
        ((2, 18, 72, 80), (17, 18, 2, 2), {"strides": (2, 2)}),
        ((2, 33, 12, 12), (35, 33, 3, 3), {"pads": (0, 2, 1, 1)}),
        ((3, 1, 13, 12), (11, 1, 3, 3), {"strides": (2, 1), "pads": (1, 0, 2, 1)}),
        ((20, 1, 9, 9), (6, 1, 5, 5), {"dilations": (1, 2), "pads": (2, 4, 2, 3)}),
        ((2, 1, 3, 5, 6), (5, 1, 2, 3, 2), {"pads": (1, 0, 0, 0, 1, 1)}),
        ((2, 19, 5, 6), (19, 1, 5, 3), {"groups": 19, "pads": (2, 1, 2, 1)}),
        ((1, 16, 27, 24), (16, 1, 5, 5), {"groups": 16, "strides": (2, 2), "dilations": (2, 1), "pads": (4, 1, 3, 2)}),
        ((1, 17, 120, 5), (17, 1, 2, 5), {"groups": 17, "strides": (3, 1), "pads": (0, 2, 1, 2)}),
    )  # fmt: skip
    for image, weight, given in windows:
        spatial = len(image) - 2
        ones = (1,) * spatial
        window: dict[str, Any] = {
            "strides": ones,
            "pads": (0,) * (2 * spatial),
            "dilations": ones,
            "groups": 1,
            **given,
        }
        g = GraphBuilder()
        y = ops.conv(g.input("x", float32, image), g.input("w", float32, weight), **window)
        dy = x(*y.type.sizes)
        small = int(np.prod(image)) < 500
        rows.append(
            Sample(ops.conv, (x(*image), x(*weight), x(weight[0])), window, gradient=(0, 1, 2) if small else ())
        )
        rows.append(Sample(ops.conv, (x(*image), x(*weight)), window))
        extra = (0, 1) if small else ()
        rows.append(Sample(ops.conv_grad_input, (dy, x(*weight)), {"input_shape": image, **window}, gradient=extra))
        rows.append(Sample(ops.conv_grad_weight, (x(*image), dy), {"weight_shape": weight, **window}, gradient=extra))
    return rows


def _windows() -> list[Sample]:
    """Windows added back to an image."""
    cases: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 12, 12), {"image": (4, 5), "kernel": (2, 2)}),
        ((1, 6, 9), {"image": (5, 6), "kernel": (2, 3), "strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (1, 2)}),
        ((1, 4, 9), {"image": (18,), "kernel": (2,), "strides": (2,)}),
        ((2, 8, 8), {"image": (3, 3, 3), "kernel": (2, 2, 2)}),
        ((0, 4, 4), {"image": (3, 3), "kernel": (2, 2)}),
    )
    rows = []
    for shape, given in cases:
        n = len(given["kernel"])
        window = {"strides": (1,) * n, "pads": (0,) * 2 * n, "dilations": (1,) * n, **given}
        rows.append(Sample(ops.col2im, (x(*shape),), window, gradient=(0,) if shape[0] else ()))
    return rows


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


def _channels_last() -> list[Sample]:
    cases: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 3, 8, 8), (4, 3, 3, 3), {}),
        ((2, 1, 6, 7), (3, 1, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((3, 1, 9, 8), (16, 1, 3, 2), {"strides": (2, 1)}),
        ((2, 1, 9, 9), (8, 1, 5, 5), {"pads": (2, 2, 2, 1)}),
        ((1, 4, 7, 6), (6, 2, 3, 3), {"groups": 2, "pads": (1, 1, 1, 1)}),
        ((2, 16, 5, 5), (32, 16, 1, 1), {"strides": (2, 2)}),
        ((1, 3, 14, 14), (8, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
        ((2, 5, 6, 6), (7, 5, 3, 3), {"pads": (0, 1, 1, 1)}),
        ((1, 6, 9, 8), (5, 6, 3, 2), {"dilations": (2, 3), "strides": (1, 2)}),
        ((0, 3, 5, 5), (2, 3, 3, 3), {}),
        ((2, 4, 12), (4, 4, 5), {"strides": (2,), "pads": (2, 2)}),
        ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"pads": (0, 1, 0, 0, 1, 0)}),
    )
    rows = []
    for image, weight, given in cases:
        n = len(image) - 2
        window = {"strides": (1,) * n, "pads": (0,) * 2 * n, "dilations": (1,) * n, "groups": 1, **given}
        g = GraphBuilder()
        y = ops.conv(g.input("x", float32, image), g.input("w", float32, weight), **window)
        a, w, dy = x(*_last(image)), x(*_last(weight)), x(*_last(y.type.sizes))
        some = (0, 1) if image[0] else ()
        sizes = {"input_shape": _last(image)}, {"weight_shape": _last(weight)}
        rows.append(Sample(ops.conv_last, (a, w), window, gradient=some))
        rows.append(Sample(ops.conv_last, (a, w, x(weight[0])), {**window, "relu": True}))
        rows.append(Sample(ops.conv_last, (a, w, x(weight[0]), dy), window))
        rows.append(Sample(ops.conv_last, (a, w, None, dy), {**window, "relu": True}))
        rows.append(Sample(ops.conv_last, (a, w, x(weight[0]), dy), {**window, "relu": True}, gradient=some))
        rows.append(Sample(ops.conv_last_grad_input, (dy, w), {**sizes[0], **window}, gradient=some))
        rows.append(Sample(ops.conv_last_grad_weight, (a, dy), {**sizes[1], **window}, gradient=some))
    return rows


SAMPLES: list[Sample] = _convolutions() + _windows() + _channels_last()
SAMPLES += in_double(SAMPLES, "conv", "conv_grad_input", "conv_grad_weight")
