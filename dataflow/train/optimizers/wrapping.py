"""An optimizer around another one, whose rate and numbers it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .protocol import Optimizer, Schedule


@dataclass(frozen=True)
class Wrapping:
    """What an optimizer around another one hands on.

    Attributes:
        rule: the optimizer.
    """

    rule: Optimizer

    @property
    def lr(self) -> float:
        """The optimizer's."""
        return self.rule.lr

    @property
    def schedule(self) -> Schedule | str | None:
        """The optimizer's."""
        return self.rule.schedule

    @property
    def hyper_size(self) -> int:
        """The optimizer's."""
        return self.rule.hyper_size

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """The optimizer's."""
        return self.rule.hyper(step, lr)
