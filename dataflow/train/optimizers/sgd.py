"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ... import ops
from ...errors import InputError
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .eight_bit import check_moment_bits
from .groups import Decaying
from .protocol import Schedule, check_numbers


@dataclass(frozen=True)
class SGD(Decaying):
    """Gradient descent with momentum, as torch.optim.SGD with dampening 0; decay is added to the gradient.

    Attributes:
        lr: learning rate.
        momentum: part of the last velocity that stays.
        weight_decay: factor of the parameter that is added to its gradient.
        nesterov: look ahead along the velocity.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
        moment_bits: 32, or 8: the velocity of large parameters in bytes, block by block.
    """

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule | str | None = None
    moment_bits: int = field(default=32, kw_only=True)

    def __post_init__(self) -> None:
        check_numbers("SGD", lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum)
        if self.nesterov and not self.momentum:
            raise InputError("SGD: nesterov needs a momentum above 0")
        check_moment_bits("SGD", self.moment_bits)
        if self.moment_bits == 8 and not self.momentum:
            raise InputError("SGD: moment_bits=8 needs a momentum above 0; without one nothing is kept")

    @property
    def slots(self) -> tuple[str, ...]:
        """The velocity, where there is momentum."""
        return ("velocity",) if self.momentum else ()

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, and the new velocity where there is one."""
        velocity = slots[0] if slots else None
        made = ops.sgd_step(param, grad, velocity, hyper, scale, momentum=self.momentum, nesterov=int(self.nesterov))
        new: tuple[Value, ...] = made if isinstance(made, tuple) else (made,)
        return new
