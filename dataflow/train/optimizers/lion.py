"""Lion: steps of one size along the sign of a momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .eight_bit import check_moment_bits
from .groups import DECAYED, Grouped
from .protocol import Schedule, check_betas, check_numbers
from .terms import scalars, scaled, toward


@dataclass(frozen=True)
class Lion(Grouped):
    """Steps of one size along the sign of a momentum (Chen et al. 2023, algorithm 2).

    Attributes:
        lr: the size of a step; about a tenth of AdamW's.
        weight_decay: fraction of a parameter taken off per step, times the rate; about ten times AdamW's.
        betas: share of the momentum in the direction of a step, and in the next momentum.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
        no_decay: patterns of parameters that don't decay; ``()`` decays all.
        moment_bits: 32, or 8: large tensors of the state in bytes, block by block.
    """

    lr: float = 1e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.99)
    schedule: Schedule | str | None = None
    no_decay: Sequence[str] = field(default=DECAYED, kw_only=True)
    moment_bits: int = field(default=32, kw_only=True)

    slots = ("momentum",)
    hyper_size = 2

    def __post_init__(self) -> None:
        check_numbers("Lion", lr=self.lr, weight_decay=self.weight_decay)
        check_betas("Lion", self.betas)
        check_moment_bits("Lion", self.moment_bits)

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr, 1 - lr weight_decay]."""
        return np.array([lr, 1.0 - lr * self.weight_decay])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and momentum."""
        lr, kept = scalars(hyper, param)
        direction = ops.sign(toward(slots[0], scaled(grad, scale), 1.0 - self.betas[0]))
        new = ops.sub(ops.mul(param, kept), ops.mul(direction, lr))
        return new, toward(slots[0], scaled(grad, scale), 1.0 - self.betas[1])
