"""Samples of optimizer steps."""

from __future__ import annotations

from ... import ops
from ...ir.types import float32
from ..sample import Operand, Sample, x


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


SAMPLES: list[Sample] = _steps()
