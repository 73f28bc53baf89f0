"""Samples of ops that stand for several: patterns around products and convolutions, programs of elementwise ops."""

from __future__ import annotations

from ... import ops
from ...ops.fused import program
from ..sample import LONG_SUM, PAIRS, Sample, x


def _programs() -> list[Sample]:
    """Elementwise ops in one pass: as chains and trees, with operands that broadcast, more than a block of them."""
    gelu = program(("div", 0, 1), ("erf", 4), ("add", 5, 2), ("mul", 6, 0), ("mul", 7, 3))
    rows = [
        Sample(
            ops.fused_elementwise,
            (x(*shape), x(kind="positive"), x(), x()),
            {"program": gelu},
            gradient=(0, 1, 2, 3) if shape == (3, 5) else (),
        )
        for shape in ((3, 5), (0, 4), (), (7, 1300))
    ]
    tree = program(("exp", 0), ("sub", 4, 1), ("maximum", 5, 2), ("mul", 6, 4), ("relu_grad", 7, 3), ("tanh", 8))
    broadcast: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((4, 9), (9,), (4, 1), (1, 1)), ((2, 3, 70), (1, 3, 1), (2, 1, 70), (70,)),
        ((5, 2, 6), (2, 1), (5, 1, 1), (6,)), ((3, 1000), (1000,), (1, 1), (3, 1)),
    )  # fmt: skip
    rows += [Sample(ops.fused_elementwise, tuple(x(*s) for s in b), {"program": tree}) for b in broadcast]
    few = program(("add", 0, 1), ("mul", 2, 2), ("neg", 3))
    rows.append(Sample(ops.fused_elementwise, (x(1), x(6, 5)), {"program": few}))
    programs = (
        program(("sub", 0, 1), ("mul", 2, 2), ("reduce_sum", 3)),
        program(("exp", 0), ("mul", 1, 2), ("reduce_mean", 3)),
        program(("sub", 0, 1), ("reduce_max", 2)),
        program(("sub", 0, 1), ("neg", 2), ("reduce_min", 3)),
    )
    reduced: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = (
        ((3, 5), (5,), 1), ((3, 5), (3, 1), 1), ((4, 6, 50), (4, 1, 50), 2), ((7, 1300), (1300,), 1), ((9, 9), (9,), 1),
        ((2, 33000), (1, 1), 1), ((300, 300), (300,), 2), ((40, 1), (40, 1), 1), ((0, 4), (4,), 1), ((5,), (), 1),
    )  # fmt: skip
    for index, (a, b, trailing) in enumerate(reduced):
        attributes = {"program": programs[index % 4], "trailing": trailing, "keepdims": index % 2}
        rows.append(Sample(ops.fused_elementwise, (x(*a), x(*b)), attributes, gradient=(0, 1) if index < 2 else ()))
    every = program(*((name, index) for index, name in enumerate(("abs", "sqrt", "sin", "cos", "floor", "neg"))))
    rows.append(Sample(ops.fused_elementwise, (x(33, 21),), {"program": every}))
    return rows


def _sums() -> list[Sample]:
    """Rows that end where tiles of a warp do and elsewhere, several in a tile, none, and operands that broadcast."""
    masked = program(("add", 0, 1), ("relu_grad", 3, 2))
    rows: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = (
        ((2, 3, 7, 7), (2, 3, 7, 7), 1), ((2, 3, 8, 16), (3, 1, 1), 1), ((3, 5, 37), (1,), 1), ((40, 300), (300,), 0),
        ((2, 2, 33, 100), (2, 1, 1, 100), 1), ((0, 3, 40), (3, 1), 1), ((1, 2, 5000), (1, 2, 1), 1),
        ((3, 5, 7, 64), (64,), 3), ((2, 1000, 8), (1,), 2), ((9, 2048), (9, 1), 1), ((0, 4), (4,), 1),
        ((5, 50, 32), (50, 1), 2), ((7, 6), (6,), 1),
    )  # fmt: skip
    return [
        Sample(
            ops.fused_elementwise_sums,
            (x(*a), x(*b), x(*a)),
            {"program": masked, "kept": kept, "keepdims": index % 2},
            gradient=(0, 1) if a == (3, 5, 37) else (),
        )
        for index, (a, b, kept) in enumerate(rows)
    ]


def _patterns() -> list[Sample]:
    rows = []
    for a, b in (((3, 5), (5, 7)), ((1, 1), (1, 1)), ((0, 5), (5, 3)), ((3, 0), (0, 4)), ((17, 33), (33, 15))):
        for op in (ops.matmul_bias, ops.matmul_bias_relu):
            rows.append(Sample(op, (x(*a), x(*b), x(b[1])), gradient=(0, 1, 2) if a == (3, 5) else ()))
            rows.append(Sample(op, (x(2, *a), x(*b), x(1, b[1]))))
        product = x(*a), x(*b), x(b[1])
        rows.append(Sample(ops.matmul_bias, (*product, x(a[0], b[1])), gradient=(0, 1, 2, 3) if a == (3, 5) else ()))
        rows.append(Sample(ops.matmul_bias, (x(2, *a), *product[1:], x(2, a[0], b[1]))))
    rows += [Sample(ops.matmul_bias_relu, (x(130, 70), x(70, 140), x(140)))]
    rows += [Sample(ops.matmul_bias, (x(4, 600), x(600, 12), x(12), x(4, 12)))]
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    for image, weight in (((2, 3, 6, 5), (4, 3, 3, 3)), ((0, 3, 5, 5), (2, 3, 3, 3)), ((3, 8, 14, 14), (16, 8, 3, 3))):
        small = (0, 1, 2) if image[0] == 2 else ()
        rows.append(Sample(ops.conv_relu, (x(*image), x(*weight), x(weight[0])), window, gradient=small))
        rows.append(Sample(ops.conv_relu, (x(*image), x(*weight)), window))
        rows.append(Sample(ops.conv_clip, (x(*image), x(*weight), x(weight[0])), {**window, "high": 6.0}, small))
        added = x(image[0], weight[0], *image[2:])
        every = (*small, 3) if small else ()
        operands = (x(*image), x(*weight), x(weight[0]), added)
        rows.append(Sample(ops.conv_add_relu, operands, window, gradient=every))
    rows += _pools()
    rows += [
        Sample(ops.add_relu, (x(*p, kind="distinct"), x(*q)), gradient=(0, 1) if p == (3, 5) else ()) for p, q in PAIRS
    ]
    return rows


def _pools() -> list[Sample]:
    """First layers of networks for images; kernels may leave those of few elements to others."""
    rows = []
    for image, weight, strides, pads, kernel, steps, around, more in (
        ((1, 3, 64, 67), (33, 3, 3, 3), (1, 1), (1, 1, 1, 1), (3, 3), (2, 2), (0, 0, 0, 0), {}),
        ((2, 3, 131, 129), (37, 3, 7, 7), (2, 2), (3, 3, 3, 3), (3, 3), (2, 2), (1, 1, 1, 1), {"pool_ceil_mode": 1}),
        ((1, 4, 97, 90), (60, 2, 5, 3), (1, 1), (0, 1, 2, 0), (2, 2), (2, 2), (0, 0, 0, 0), {"groups": 2}),
        ((1, 1, 75, 140), (17, 1, 4, 2), (1, 1), (2, 0, 1, 0), (4, 3), (3, 1), (1, 2, 2, 1), {"pool_ceil_mode": 1}),
        ((1, 5, 200, 241), (40, 5, 2, 5), (3, 4), (0, 3, 1, 2), (5, 2), (1, 3), (2, 0, 0, 1), {}),
        ((2, 3, 9, 8), (4, 3, 3, 3), (1, 1), (1, 1, 1, 1), (2, 2), (2, 2), (0, 0, 0, 0), {}),
        ((0, 3, 64, 67), (33, 3, 3, 3), (1, 1), (1, 1, 1, 1), (3, 3), (2, 2), (0, 0, 0, 0), {}),
    ):
        attributes = {
            "strides": strides, "pads": pads, "dilations": (1, 1), "groups": 1, "pool_kernel": kernel,
            "pool_strides": steps, "pool_pads": around, "pool_dilations": (1, 1), **more,
        }  # fmt: skip
        operands = (x(*image), x(*weight), x(weight[0]))
        small = (0, 1, 2) if image[2] < 10 else ()
        rows.append(Sample(ops.conv_relu_max_pool, operands, attributes, gradient=small))
        rows.append(Sample(ops.conv_relu_max_pool, (x(*image), x(*weight)), attributes))
    return rows


def _long() -> list[Sample]:
    """Few rows and many; sums long enough for several blocks."""
    rows = []
    for m, k, n in ((31, 800, 130), (14, 385, 60), (440, 390, 70)):
        rows.append(Sample(ops.matmul_bias_relu, (x(m, k), x(k, n), x(n)), tolerance=LONG_SUM))
    return rows


SAMPLES: list[Sample] = _programs() + _sums() + _patterns() + _long()
