"""Adafactor: second moments of a matrix as a column of row means times a row of column means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import ops
from ...host import checks
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .groups import Grouped
from .protocol import Schedule, Sizes, Slot, check_numbers, check_positive
from .terms import rms, scalars, scaled, square, toward


def _rows(shape: Sizes) -> Sizes | None:
    return (*shape[:-1], 1) if len(shape) > 1 else None


def _columns(shape: Sizes) -> Sizes | None:
    return (*shape[:-2], 1, shape[-1]) if len(shape) > 1 else None


def _vector(shape: Sizes) -> Sizes | None:
    return shape if len(shape) < 2 else None


@dataclass(frozen=True)
class Adafactor(Grouped):
    """Adafactor (Shazeer and Stern 2018), as torch.optim.Adafactor: memory of rows plus columns, not of all elements.

    Attributes:
        lr: largest relative rate; step t uses min(lr, 1 / sqrt(t)), times the RMS of the parameter.
        weight_decay: fraction of a parameter taken off per step, times the rate.
        beta2_decay: the mean squares of step t take the share ``t^beta2_decay`` of the new gradient; below 0.
        epsilons: least RMS of a gradient, above 0, and of a parameter.
        clip: largest RMS of a step, before the rate.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1e-2
    weight_decay: float = 0.0
    beta2_decay: float = -0.8
    epsilons: tuple[float, float] = (1.1920929e-07, 1e-3)
    clip: float = 1.0
    schedule: Schedule | str | None = None

    slots = (Slot("rows", _rows), Slot("columns", _columns), Slot("v", _vector))
    hyper_size = 3

    def __post_init__(self) -> None:
        check_numbers("Adafactor", lr=self.lr, weight_decay=self.weight_decay, clip=self.clip)
        checks.number("Adafactor: beta2_decay", self.beta2_decay, -1e3, 0.0)
        first, second = checks.instance("Adafactor: epsilons", self.epsilons, tuple, list)
        check_positive("Adafactor", epsilon=first, clip=self.clip)
        check_numbers("Adafactor", epsilon=second)

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[relative rate, share of the new gradient, 1 - lr weight_decay]."""
        return np.array([min(lr, step**-0.5), step**self.beta2_decay, 1.0 - lr * self.weight_decay])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and mean squares."""
        relative, share, kept = scalars(hyper, param)
        grad = scaled(grad, scale)
        squares = square(grad)
        if param.type.rank > 1:
            rows = toward(slots[0], ops.reduce_mean(squares, axes=(-1,), keepdims=True), share)
            columns = toward(slots[1], ops.reduce_mean(squares, axes=(-2,), keepdims=True), share)
            mean = ops.maximum(ops.reduce_mean(rows, axes=(-2,), keepdims=True), self.epsilons[0])
            variance, new = ops.mul(ops.div(rows, mean), columns), [rows, columns]
        else:
            variance = toward(slots[0], squares, share)
            new = [variance]
        step = ops.div(grad, ops.sqrt(ops.maximum(variance, self.epsilons[0] ** 2)))
        over = ops.maximum(ops.mul(rms(step), 1.0 / self.clip), 1.0)
        rate = ops.div(ops.mul(ops.maximum(rms(param), self.epsilons[1]), relative), over)
        return ops.sub(ops.mul(param, kept), ops.mul(step, rate)), *new
