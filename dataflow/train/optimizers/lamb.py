"""LAMB: Adam's direction at the length of each parameter's norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .groups import DECAYED, Grouped
from .protocol import Schedule, check_betas, check_numbers, check_positive
from .terms import norm, scalars, scaled, square, toward


@dataclass(frozen=True)
class LAMB(Grouped):
    """Adam's direction at the length of each parameter's norm (You et al. 2020, algorithm 2, without a bound on it).

    Attributes:
        lr: learning rate.
        weight_decay: factor of the parameter that is added to the direction.
        betas: decay of the mean and of the mean square of gradients.
        epsilon: added to its square root, above 0.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
        no_decay: patterns of parameters that don't decay; ``()`` decays all.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    schedule: Schedule | str | None = None
    no_decay: Sequence[str] = field(default=DECAYED, kw_only=True)

    slots = ("m", "v")
    hyper_size = 4

    def __post_init__(self) -> None:
        check_numbers("LAMB", lr=self.lr, weight_decay=self.weight_decay)
        check_positive("LAMB", epsilon=self.epsilon)
        check_betas("LAMB", self.betas)

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr, weight_decay, 1 / (1 - beta1^step), 1 / (1 - beta2^step)]."""
        first, second = self.betas
        return np.array([lr, self.weight_decay, 1.0 / (1.0 - first**step), 1.0 / (1.0 - second**step)])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, m and v."""
        lr, decay, of_m, of_v = scalars(hyper, param)
        m = toward(slots[0], scaled(grad, scale), 1.0 - self.betas[0])
        v = toward(slots[1], square(scaled(grad, scale)), 1.0 - self.betas[1])
        step = ops.div(ops.mul(m, of_m), ops.add(ops.sqrt(ops.mul(v, of_v)), self.epsilon))
        step = ops.add(step, ops.mul(param, decay))
        length, size = norm(param), norm(step)
        # length / size, and 1 where either is 0; elementwise, so that it is one node.
        known = ops.mul(ops.sign(length), ops.sign(size))
        ratio = ops.add(ops.mul(known, ops.sub(ops.div(length, ops.maximum(size, 1e-30)), 1.0)), 1.0)
        return ops.sub(param, ops.mul(step, ops.mul(ratio, lr))), m, v
