"""Schedule-free training (Defazio et al. 2024): an average of the iterates takes the place of a decaying rate.

Gradients are taken at the parameter y, between the base sequence z and its weighted mean x, which is what evaluation,
prediction and saving read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .groups import DECAYED, Decaying, Grouped
from .protocol import Schedule, Slot, check_betas, check_numbers, check_positive, check_shares, scalar
from .terms import scalars, scaled, square, toward

_SEQUENCES = (
    Slot("z", start="parameter"),
    Slot("x", start="parameter", evaluated=True),
    Slot("weights", scalar),
    Slot("largest_lr", scalar),
)


def _sequences(step: Value, slots: Sequence[Value], lr: Value, momentum: float) -> tuple[Value, ...]:
    """The new parameter y, z, x, and the sum of weights and largest rate: steps weigh as the square of that."""
    z, x, weights, largest = slots
    largest = ops.maximum(largest, lr)
    weight = square(largest)
    weights = ops.add(weights, weight)
    z = ops.sub(z, ops.mul(step, lr))
    x = toward(x, z, ops.div(weight, ops.maximum(weights, 1e-30)))  # a rate of 0 so far: nothing moves
    return toward(z, x, momentum), z, x, weights, largest


@dataclass(frozen=True)
class ScheduleFreeAdamW(Grouped):
    """Schedule-free AdamW; needs no schedule but a warm-up: ``schedule=df.schedules.Constant(warmup=...)``.

    Keeps four tensors of the parameter's shape: z, x, and the mean square of gradients beside the parameter.

    Attributes:
        lr: learning rate.
        weight_decay: fraction of a parameter taken off per step, times the rate.
        betas: part of x in the parameter, and decay of the mean square of gradients.
        epsilon: added to its square root, above 0.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
        no_decay: patterns of parameters that don't decay; ``()`` decays all.
    """

    lr: float = 2.5e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: Schedule | str | None = None
    no_decay: Sequence[str] = field(default=DECAYED, kw_only=True)

    slots = (*_SEQUENCES, Slot("v"))
    hyper_size = 3

    def __post_init__(self) -> None:
        check_numbers("ScheduleFreeAdamW", lr=self.lr, weight_decay=self.weight_decay)
        check_positive("ScheduleFreeAdamW", epsilon=self.epsilon)
        check_betas("ScheduleFreeAdamW", self.betas)

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr, weight_decay, 1 / sqrt(1 - beta2^step)]."""
        return np.array([lr, self.weight_decay, (1.0 - self.betas[1] ** step) ** -0.5])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and slots."""
        lr, decay, inverse = scalars(hyper, param)
        *sequences, v = slots
        v = toward(v, square(scaled(grad, scale)), 1.0 - self.betas[1])
        step = ops.div(scaled(grad, scale), ops.add(ops.mul(ops.sqrt(v), inverse), self.epsilon))
        step = ops.add(step, ops.mul(param, decay)) if self.weight_decay else step
        return *_sequences(step, sequences, lr, self.betas[0]), v


@dataclass(frozen=True)
class ScheduleFreeSGD(Decaying):
    """Schedule-free gradient descent; needs no schedule but a warm-up. Keeps z and x beside the parameter.

    Attributes:
        lr: learning rate.
        weight_decay: factor of the parameter that is added to its gradient.
        momentum: part of x in the parameter.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1.0
    weight_decay: float = 0.0
    momentum: float = 0.9
    schedule: Schedule | str | None = None

    slots = _SEQUENCES

    def __post_init__(self) -> None:
        check_numbers("ScheduleFreeSGD", lr=self.lr, weight_decay=self.weight_decay)
        check_shares("ScheduleFreeSGD", momentum=self.momentum)

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and slots."""
        lr, decay = scalars(hyper, param)
        step = scaled(grad, scale)
        step = ops.add(step, ops.mul(param, decay)) if self.weight_decay else step
        return _sequences(step, slots, lr, self.momentum)
