"""Samples of recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...ir.types import int32, int64
from ..sample import Operand, Sample, x

# (steps, batch, hidden); what is odd for vectors, tiles and threads, and nothing at all
_SIZES = ((1, 1, 1), (4, 3, 5), (0, 2, 3), (3, 0, 4), (7, 2, 17), (3, 33, 36), (2, 5, 130))
_CHECKED = (4, 3, 5)


def _lengths(steps: int, batch: int, dtype: Any) -> Operand:
    """Among them none, all and too many steps."""
    return Operand((batch,), dtype, value=[(0, steps, 2, steps + 3, 1)[n % 5] for n in range(batch)])


def _weight(gates: int, hidden: int) -> Operand:
    """Small, so that states neither saturate nor explode."""
    shape = (gates * hidden, hidden)
    return Operand(shape, value=np.random.default_rng(hidden).uniform(-1, 1, shape) / np.sqrt(hidden))


def _recurrent() -> list[Sample]:
    rows = []
    for steps, batch, hidden in _SIZES:
        checked = (steps, batch, hidden) == _CHECKED
        h, y = x(batch, hidden), x(steps, batch, hidden)
        ends = _lengths(steps, batch, int64 if hidden % 2 else int32)
        for reverse in (0, 1):
            a = {"reverse": reverse}
            data, r = x(steps, batch, 4 * hidden), _weight(4, hidden)
            gates = x(steps, batch, 4 * hidden, kind="unit")
            rows.append(Sample(ops.lstm, (data, r), a, gradient=(0, 1) if checked else ()))
            rows.append(Sample(ops.lstm, (data, r, h, h, ends), a, gradient=(0, 1, 2, 3) if checked else ()))
            rows.append(Sample(ops.lstm, (data, r, None, h), a, gradient=(0, 1, 3) if checked else ()))
            rows.append(Sample(ops.lstm_grad, (r, gates, y, y, h, h, h, ends), a))
            rows.append(Sample(ops.lstm_grad, (r, gates, y, None, h), a))
            rows.append(Sample(ops.lstm_grad, (r, gates, y, y), a))

            data, r, bias = x(steps, batch, 3 * hidden), _weight(3, hidden), x(3 * hidden)
            rows.append(Sample(ops.gru, (data, r), a, gradient=(0, 1) if checked else ()))
            rows.append(Sample(ops.gru, (data, r, bias, h, ends), a, gradient=(0, 1, 2, 3) if checked else ()))
            rows.append(Sample(ops.gru_grad, (r, gates, y, y, h, h, ends), a))
            rows.append(Sample(ops.gru_grad, (r, gates, y, None, h), a))
            rows.append(Sample(ops.gru_grad, (r, gates, y, y), a))

            data, r = x(steps, batch, hidden), _weight(1, hidden)
            for relu in (0, 1):
                b = {**a, "relu": relu}
                rows.append(Sample(ops.rnn, (data, r), b, gradient=(0, 1) if checked else ()))
                rows.append(Sample(ops.rnn, (data, r, h, ends), b, gradient=(0, 1, 2) if checked else ()))
                rows.append(Sample(ops.rnn_grad, (r, y, y, h, ends), b))
                rows.append(Sample(ops.rnn_grad, (r, y, None, h), b))
    return rows


SAMPLES: list[Sample] = _recurrent()
