"""Averages of weights, kept on the device by the optimizer's program: exponential (EMA), and of equal weights (SWA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ... import ops
from ...host import checks
from ...host.numbers import integer
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .protocol import Slot, slots_of
from .terms import scalars, span
from .wrapping import Wrapping


class Average(Protocol):
    """What a mean of weights over optimizer steps is."""

    def share(self, step: int) -> float:
        """The share of the weights after ``step`` steps, counted from 1, in their new mean; 1 begins it anew."""


@dataclass(frozen=True)
class EMA:
    """The exponential moving average: ``decay`` times the old mean and ``1 - decay`` times the new weights.

    As torch.optim.swa_utils.get_ema_multi_avg_fn, the weights after the first counted step are the first mean.

    Attributes:
        decay: what stays of the mean.
        start: steps before the first that counts; until then the mean is the weights.
        every: steps from one that counts to the next.
        ramp: at the n-th step that counts decay by n / (9 + n) where that is less.
    """

    decay: float = 0.999
    start: int = 0
    every: int = 1
    ramp: bool = False

    def __post_init__(self) -> None:
        checks.number("EMA: decay", self.decay, 0.0, 1.0)
        integer("EMA: start", self.start, 0)
        integer("EMA: every", self.every)
        checks.instance("EMA: ramp", self.ramp, bool)

    def share(self, step: int) -> float:
        """See Average."""
        count = _counted(step, self.start, self.every)
        if count is None:
            return 0.0
        if count <= 1:
            return 1.0
        return 1.0 - (min(self.decay, count / (9 + count)) if self.ramp else self.decay)


@dataclass(frozen=True)
class SWA:
    """The mean of the weights after every ``every``-th step from ``start`` on (Izmailov et al. 2018).

    Attributes:
        start: steps before the first that counts; until then the mean is the weights.
        every: steps from one that counts to the next.
    """

    start: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        integer("SWA: start", self.start, 0)
        integer("SWA: every", self.every)

    def share(self, step: int) -> float:
        """See Average."""
        count = _counted(step, self.start, self.every)
        return 0.0 if count is None else 1.0 / max(1, count)


def _counted(step: int, start: int, every: int) -> int | None:
    """How many steps have counted with this one, none up to ``start``; None where this one behind it doesn't count."""
    behind = step - start
    if behind <= 0:
        return 0
    return None if (behind - 1) % every else (behind - 1) // every + 1


@dataclass(frozen=True)
class Averaged(Wrapping):
    """An optimizer that keeps the average of what it makes of a parameter, too.

    Attributes:
        average: which.
    """

    average: Average

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The optimizer's, and the average."""
        return (*slots_of(self.rule), Slot("average", start="parameter", evaluated=True))

    @property
    def hyper_size(self) -> int:
        """The optimizer's, and two."""
        return self.rule.hyper_size + 2

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """What the optimizer reads, and the shares of the old mean and of the new parameter."""
        return self.hyper_of_run(step, step, lr)

    def hyper_of_run(self, step: int, own: int, lr: float) -> np.ndarray[Any, Any]:
        """Likewise at a step of the run, the ``own`` one of the parameter: weights that stood still count, too."""
        share = self.average.share(step)
        return np.concatenate([self.rule.hyper(own, lr), np.array([1.0 - share, share])])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, the optimizer's new slots and the new average."""
        size = self.rule.hyper_size
        new = self.rule.build(g, param, grad, slots[:-1], span(hyper, 0, size), scale)
        old, share = scalars(span(hyper, size, size + 2), param)
        # Two products, not a difference: shares of 0 and 1 then keep and copy exactly.
        return *new, ops.add(ops.mul(slots[-1], old), ops.mul(new[0], share))
