"""Samples of optimizer steps."""

from __future__ import annotations

import math

from ... import ops
from ...ir.types import float32, uint8
from ..sample import Operand, Sample, in_double, x


def _steps() -> list[Sample]:
    shape: tuple[int, ...]
    rows = []
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


def _held() -> list[Sample]:
    """Steps whose scale isn't finite: nothing changes, whatever the gradients are."""
    rows = []
    for number in (math.inf, math.nan, -math.inf):
        scale, values = Operand((), float32, value=number), (x(3, 7), x(3, 7))
        hyper = Operand((2,), float32, value=[0.1, 0.01])
        rows += [Sample(ops.sgd_step, (*values, velocity, hyper, scale)) for velocity in (None, x(3, 7))]
        hyper = Operand((4,), float32, value=[1e-2, 0.01, 0.19, 0.002])
        rows.append(Sample(ops.adamw_step, (*values, x(3, 7), x(3, 7, kind="positive"), hyper, scale)))
    return rows


def _many() -> list[Sample]:
    """Sums over tensors that are small, empty, and of several blocks."""
    shapes: tuple[list[tuple[int, ...]], ...] = ([(5,)], [(0,), (3, 7)], [(17,), (), (70001,), (0,), (64, 130)])
    return [Sample(ops.square_sums, tuple(x(*shape) for shape in each)) for each in shapes]


def _codes() -> list[Sample]:
    """Blocks that are whole, that aren't, and one of zeros; a code with steps of two sizes."""
    steps = [-1.0 + i / 64 for i in range(127)] + [i / 129 for i in range(129)]
    code = Operand((256,), float32, value=sorted(steps))
    rows = []
    for shape, block in (((), 4), ((6, 8), 16), ((37,), 8), ((0,), 8), ((5000,), 2048), ((3, 41000), 256)):
        values = x(*shape)
        count = -(-math.prod(shape) // block)
        rows.append(Sample(ops.encode_blocks, (values, code), {"block": block}))
        codes = Operand(shape, uint8, "range", 0, 256)
        rows.append(Sample(ops.decode_blocks, (codes, x(count, kind="positive"), code), {"block": block}))
    zeros = Operand((24,), float32, value=[0.0] * 16 + [1e-38, -1e-38, 0.0, 5e-39, -0.0, 2e-39, 1e-45, 0.0])
    rows.append(Sample(ops.encode_blocks, (zeros, code), {"block": 8}))
    return rows


SAMPLES: list[Sample] = _steps() + _held() + _many() + _codes()
SAMPLES += in_double(SAMPLES, "sgd_step", "adamw_step", "square_sum")
