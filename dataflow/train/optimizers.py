"""Optimizers: the rule that changes a parameter, as part of a graph, and the numbers that it reads at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .. import ops
from ..errors import InputError
from ..host import checks
from ..ir.builder import GraphBuilder
from ..ir.value import Value

Schedule = Callable[[int], float]
"""Optimizer steps done so far -> the factor on the learning rate for the next one."""


class Optimizer(Protocol):
    """A rule that changes parameters."""

    @property
    def lr(self) -> float:
        """Learning rate before the schedule."""

    @property
    def schedule(self) -> Schedule | str | None:
        """The factor on it by optimizer step, or its name; None is a constant rate."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors that each parameter has, zeros at first, of its shape."""

    @property
    def hyper_size(self) -> int:
        """Length of what ``hyper`` returns."""

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """What the update reads as a tensor: float32; ``step`` counts from 1."""

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and the new slots.

        Args:
            g: where the nodes go.
            param: any shape.
            grad: the sum of gradients over the logical batch, same shape.
            slots: as in ``slots``.
            hyper: float32, as ``hyper`` makes it.
            scale: float32 of rank 0; multiplies the gradient: 1 / weight of the batch, times the clipping factor.
        """


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter), as torch.optim.AdamW; all parameters decay.

    Attributes:
        lr: learning rate.
        weight_decay: fraction of a parameter taken off per step, times the rate.
        betas: decay of the mean and of the mean square of gradients.
        epsilon: added to its square root.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: Schedule | str | None = None

    def __post_init__(self) -> None:
        _check("AdamW", lr=self.lr, weight_decay=self.weight_decay, epsilon=self.epsilon)
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise InputError(f"AdamW: betas are {checks.shown(self.betas)}; expected two numbers, 0 <= beta < 1")
        for beta in self.betas:
            checks.number("AdamW: one of betas", beta, 0.0, 1.0)

    @property
    def slots(self) -> tuple[str, ...]:
        """Mean and mean square of the gradients."""
        return ("m", "v")

    @property
    def hyper_size(self) -> int:
        """Four numbers."""
        return 4

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr, weight_decay, 1 - beta1^step, 1 - beta2^step]."""
        first, second = self.betas
        return np.array([lr, self.weight_decay, 1.0 - first**step, 1.0 - second**step], np.float32)

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, m and v."""
        first, second = self.betas
        new: tuple[Value, ...] = ops.adamw_step(
            param, grad, *slots, hyper, scale, beta1=first, beta2=second, epsilon=self.epsilon
        )
        return new


@dataclass(frozen=True)
class SGD:
    """Gradient descent with momentum, as torch.optim.SGD with dampening 0; decay is added to the gradient.

    Attributes:
        lr: learning rate.
        momentum: part of the last velocity that stays.
        weight_decay: factor of the parameter that is added to its gradient.
        nesterov: look ahead along the velocity.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule | str | None = None

    def __post_init__(self) -> None:
        _check("SGD", lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum)
        if self.nesterov and not self.momentum:
            raise InputError("SGD: nesterov needs a momentum above 0")

    @property
    def slots(self) -> tuple[str, ...]:
        """The velocity, where there is momentum."""
        return ("velocity",) if self.momentum else ()

    @property
    def hyper_size(self) -> int:
        """Two numbers."""
        return 2

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr, weight_decay]."""
        return np.array([lr, self.weight_decay], np.float32)

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, and the new velocity where there is one."""
        velocity = slots[0] if slots else None
        made = ops.sgd_step(param, grad, velocity, hyper, scale, momentum=self.momentum, nesterov=int(self.nesterov))
        new: tuple[Value, ...] = made if isinstance(made, tuple) else (made,)
        return new


def _check(name: str, **numbers: float) -> None:
    for key, number in numbers.items():
        checks.number(f"{name}: {key}", number)
