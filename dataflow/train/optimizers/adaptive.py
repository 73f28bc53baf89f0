"""Rates by element from the squares of gradients: RMSprop, Adagrad, Adadelta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import ops
from ...host import checks
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .groups import Decaying
from .protocol import Schedule, Slot, check_numbers, check_positive, check_shares
from .terms import decayed_gradient, scalars, square, toward


@dataclass(frozen=True)
class RMSprop(Decaying):
    """Gradients over the square root of their mean square (Hinton 2012), as torch.optim.RMSprop; centered after Graves.

    Attributes:
        lr: learning rate.
        weight_decay: factor of the parameter that is added to its gradient.
        alpha: decay of the mean square.
        epsilon: added to its square root, above 0.
        momentum: part of the last velocity that stays.
        centered: divide by the standard deviation: the mean is taken off.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1e-2
    weight_decay: float = 0.0
    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    schedule: Schedule | str | None = None

    def __post_init__(self) -> None:
        check_numbers("RMSprop", lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum)
        check_positive("RMSprop", epsilon=self.epsilon)
        check_shares("RMSprop", alpha=self.alpha)
        checks.instance("RMSprop: centered", self.centered, bool)

    @property
    def slots(self) -> tuple[str, ...]:
        """The mean square, and where they are asked for the mean and the velocity."""
        return ("v", *(("mean",) if self.centered else ()), *(("velocity",) if self.momentum else ()))

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and slots."""
        lr, decay = scalars(hyper, param)
        gradient = decayed_gradient(param, grad, scale, decay, self.weight_decay)
        v = toward(slots[0], square(gradient()), 1.0 - self.alpha)
        new, variance = [v], v
        if self.centered:
            mean = toward(slots[1], gradient(), 1.0 - self.alpha)
            variance = ops.maximum(ops.sub(v, square(mean)), 0.0)  # rounding may leave it below 0
            new.append(mean)
        step = ops.div(gradient(), ops.add(ops.sqrt(variance), self.epsilon))
        if self.momentum:
            step = ops.add(ops.mul(slots[-1], self.momentum), step)
            new.append(step)
        return ops.sub(param, ops.mul(step, lr)), *new


@dataclass(frozen=True)
class Adagrad(Decaying):
    """Gradients by the square root of the sum of their squares (Duchi et al. 2011), as torch.optim.Adagrad.

    Attributes:
        lr: learning rate.
        weight_decay: factor of the parameter that is added to its gradient.
        lr_decay: the rate of step t is divided by ``1 + (t - 1) lr_decay``.
        start: what the sum of squares is at first.
        epsilon: added to its square root, above 0.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1e-2
    weight_decay: float = 0.0
    lr_decay: float = 0.0
    start: float = 0.0
    epsilon: float = 1e-10
    schedule: Schedule | str | None = None

    def __post_init__(self) -> None:
        check_numbers("Adagrad", lr=self.lr, weight_decay=self.weight_decay, lr_decay=self.lr_decay, start=self.start)
        check_positive("Adagrad", epsilon=self.epsilon)

    @property
    def slots(self) -> tuple[Slot]:
        """The sum of squares."""
        return (Slot("sum", start=self.start),)

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr of this step, weight_decay]."""
        return super().hyper(step, lr / (1.0 + (step - 1) * self.lr_decay))

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and sum."""
        lr, decay = scalars(hyper, param)
        gradient = decayed_gradient(param, grad, scale, decay, self.weight_decay)
        total = ops.add(slots[0], square(gradient()))
        return ops.sub(param, ops.mul(ops.div(gradient(), ops.add(ops.sqrt(total), self.epsilon)), lr)), total


@dataclass(frozen=True)
class Adadelta(Decaying):
    """Steps in the parameter's own unit (Zeiler 2012), as torch.optim.Adadelta.

    Attributes:
        lr: factor on the step.
        weight_decay: factor of the parameter that is added to its gradient.
        rho: decay of the mean squares of gradients and of steps.
        epsilon: added to both, above 0.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1.0
    weight_decay: float = 0.0
    rho: float = 0.9
    epsilon: float = 1e-6
    schedule: Schedule | str | None = None

    slots = ("v", "steps")

    def __post_init__(self) -> None:
        check_numbers("Adadelta", lr=self.lr, weight_decay=self.weight_decay)
        check_positive("Adadelta", epsilon=self.epsilon)
        check_shares("Adadelta", rho=self.rho)

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and mean squares."""
        lr, decay = scalars(hyper, param)
        gradient = decayed_gradient(param, grad, scale, decay, self.weight_decay)
        v = toward(slots[0], square(gradient()), 1.0 - self.rho)
        ratio = ops.sqrt(ops.div(ops.add(slots[1], self.epsilon), ops.add(v, self.epsilon)))
        step = ops.mul(ratio, gradient())
        return ops.sub(param, ops.mul(step, lr)), v, toward(slots[1], square(step), 1.0 - self.rho)
