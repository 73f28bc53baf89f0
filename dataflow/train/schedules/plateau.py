"""A schedule that depends on a figure of validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
from ..optimizers.protocol import Schedule
from .terms import check_settings, rise


@dataclass(frozen=True)
class Plateau:
    """Multiplied by ``factor`` when a figure has not become better for some epochs; as torch's ReduceLROnPlateau.

    Attributes:
        factor: below 1.
        patience: epochs without a better figure that are waited for.
        monitor: name of the figure of an epoch.
        mode: whether less (``min``) or more (``max``) is better; None: as the metric says, and less of a loss.
        threshold: what counts as better, relative to the best.
        cooldown: epochs after a change in which none counts.
        least: the last factor.
    """

    factor: float = 0.1
    patience: int = 10
    monitor: str = "val_loss"
    mode: Literal["min", "max"] | None = None
    threshold: float = 1e-4
    cooldown: int = 0
    least: float = 0.0
    warmup: int | float = 0

    def __post_init__(self) -> None:
        checks.number("schedule Plateau: factor", self.factor, 0.0, 1.0)
        integer("schedule Plateau: patience", self.patience, 0)
        integer("schedule Plateau: cooldown", self.cooldown, 0)
        checks.text("schedule Plateau: monitor", self.monitor)
        if self.mode is not None:
            checks.text("schedule Plateau: mode", self.mode, ("min", "max"))
        check_settings(self, threshold=self.threshold, least=self.least)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps, before there are figures."""
        return rise(self, step)

    def after(self, epochs: Mapping[str, Sequence[float]]) -> Schedule:
        """The schedule that goes on from these figures of all epochs so far.

        Raises:
            InputError: the figure isn't among them.
        """
        if epochs and self.monitor not in epochs:
            hint = "; give validation= or val_split=" if self.monitor.startswith("val_") else ""
            raise InputError(f"schedule Plateau: no figure {self.monitor!r}; there are {', '.join(epochs)}{hint}")
        best, waited, cooling, factor = math.inf, 0, 0, 1.0
        sign = -1.0 if self.mode == "max" else 1.0
        for figure in epochs.get(self.monitor, ()):
            if sign * figure < best - self.threshold * (abs(best) if math.isfinite(best) else 0.0):
                best, waited = sign * figure, 0
            else:
                waited += 1
            if cooling:
                cooling, waited = cooling - 1, 0
            if waited > self.patience:
                factor, cooling, waited = max(self.least, factor * self.factor), self.cooldown, 0
        return lambda step: factor * self(step)
