"""Samples of products of matrices, determinants, and the discrete Fourier transform."""

from __future__ import annotations

import numpy as np

from ... import ops
from ...ir.types import bfloat16, float16, float64
from ..sample import LONG_SUM, Operand, Sample, x


def _products() -> list[Sample]:
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((3, 5), (5, 7)), ((1, 1), (1, 1)), ((0, 5), (5, 3)), ((3, 0), (0, 4)), ((17, 33), (33, 15)),
        ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2)),
        ((130, 70), (70, 140)), ((1, 300), (300, 200)), ((300, 1), (1, 200)), ((9, 2, 4), (4, 5)),
        ((2, 9, 3, 4), (1, 4, 5)), ((41, 2, 96), (96, 40)),
    )  # fmt: skip
    rows = []
    for a, b in shapes:
        small = max(*a, *b) < 40
        rows.append(Sample(ops.matmul, (x(*a), x(*b)), gradient=(0, 1) if small else ()))
    rows.append(Sample(ops.matmul, (x(3, 5, dtype=float64), x(5, 4, dtype=float64))))
    return rows


def _upcast() -> list[Sample]:
    """A second operand of 16 bits: few rows and many, several blocks of steps, a batch."""
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((1, 40), (40, 50)), ((4, 300), (300, 37)), ((17, 33), (33, 15)), ((0, 5), (5, 3)), ((3, 0), (0, 4)),
        ((2, 3, 4), (2, 4, 5)), ((130, 70), (70, 140)), ((31, 800), (800, 130)),
    )  # fmt: skip
    return [
        Sample(ops.matmul, (x(*a), x(*b, dtype=dtype)), tolerance=LONG_SUM)
        for a, b in shapes
        for dtype in (float16, bfloat16)
    ]


def _rounded() -> list[Sample]:
    """Operands in bfloat16: rows of even and of odd length, a batch, with what is added."""
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((8, 16), (16, 24)), ((3, 5), (5, 7)), ((3, 0), (0, 4)), ((0, 5), (5, 3)), ((2, 3, 8), (8, 16)),
        ((2, 3, 4), (2, 4, 5)), ((130, 70), (70, 140)),
    )  # fmt: skip
    rows = []
    for a, b in shapes:
        product = x(*a, dtype=bfloat16), x(*b, dtype=bfloat16)
        result = x(*a[:-1], b[-1])
        rows += [Sample(ops.matmul_rounded, operands, tolerance=LONG_SUM) for operands in (
            product, (*product, x(b[-1])), (*product, None, result), (*product, x(b[-1]), result))]  # fmt: skip
        rows.append(Sample(ops.matmul_rounded, (*product, x(b[-1])), {"relu": True}, tolerance=LONG_SUM))
    return rows


def _long() -> list[Sample]:
    """Few rows and many; sums long enough for several blocks."""
    rows = []
    for m, k, n in ((31, 800, 130), (14, 385, 60), (440, 390, 70)):
        rows.append(Sample(ops.matmul, (x(m, k), x(k, n)), tolerance=LONG_SUM))
    return rows


def _determinants() -> list[Sample]:
    rows = []
    for shape in ((1, 1), (2, 2), (3, 4, 4), (2, 3, 3, 3), (2, 6, 6), (2, 8, 8), (0, 3, 3), (2, 0, 0)):
        rows += [Sample(op, (x(*shape),), gradient=(0,) if 0 not in shape else ()) for op in (ops.det, ops.cofactor)]
    singular = Operand((3, 3), float64, value=[1, 2, 3, 2, 4, 6, 0, 1, 1])
    return rows + [Sample(op, (singular,), gradient=(0,)) for op in (ops.det, ops.cofactor)]


def _inverses() -> list[Sample]:
    """Of matrices that are far from singular ones: a whole of the identity added to small numbers."""
    rows = []
    for shape in ((1, 1), (2, 3, 3), (2, 2, 6, 6), (0, 3, 3), (2, 0, 0)):
        small = np.random.default_rng(shape[-1]).standard_normal(shape) / 4
        regular = Operand(shape, value=(small + 2 * np.eye(shape[-1])).reshape(-1).tolist())
        rows.append(Sample(ops.inverse, (regular,), gradient=(0,) if 0 not in shape else ()))
    return rows


def _transforms() -> list[Sample]:
    """Sizes of small factors, of large ones and primes; the axis at the front, in the middle and at the end."""
    rows = []
    shapes: tuple[tuple[tuple[int, ...], int], ...] = (
        ((1, 2), 0), ((2, 3, 2), 0), ((2, 3, 2), 1), ((4, 5, 3, 2), -3), ((0, 3, 2), 1), ((3, 0, 2), 1),
        ((2, 16, 2), 1), ((3, 60, 2), 1), ((2, 7 * 11, 2), 1), ((5, 101, 2), -2),
        ((128, 9, 2), 0), ((2, 2 * 131, 2), 1), ((40, 400, 2), 1), ((1, 4096, 2), 1), ((1, 10007, 2), 1),
    )  # fmt: skip
    for shape, axis in shapes:
        small = 0 not in shape and shape[0] * shape[1] < 64
        for inverse in (0, 1):
            a = {"axis": axis, "inverse": inverse}
            rows.append(Sample(ops.dft, (x(*shape),), a, gradient=(0,) if small else ()))
    rows.append(Sample(ops.dft, (x(3, 12, 2, dtype=float64),), {"axis": 1}))
    return rows


def _double_products() -> list[Sample]:
    """Products of float64 that are larger than a kernel's blocks, and of few rows."""
    sizes = [(1, 300, 130), (3, 300, 130), (4, 5, 3), (5, 257, 13), (97, 600, 101), (8, 0, 5), (100, 7, 1)]
    rows = [Sample(ops.matmul, (x(m, k, dtype=float64), x(k, n, dtype=float64))) for m, k, n in sizes]
    batches = [((2, 1, 4, 5), (3, 5, 6)), ((9, 3, 5), (5, 4)), ((2, 3, 70, 5), (5, 40))]
    return rows + [Sample(ops.matmul, (x(*a, dtype=float64), x(*b, dtype=float64))) for a, b in batches]


SAMPLES: list[Sample] = _products() + _upcast() + _rounded() + _long() + _determinants() + _inverses() + _transforms()
SAMPLES += _double_products()
