"""L-BFGS: a quasi-Newton method, which evaluates the loss of a batch several times per step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
from ...ir.builder import GraphBuilder
from ...ir.types import Array, float64
from ...ir.value import Value
from .line_search import Trial, strong_wolfe
from .protocol import Schedule, Slot, check_numbers

Evaluate = Callable[[Array], tuple[float, Array]]
"""The loss at parameters, and its gradient; all as flat vectors of float64."""
LEAST_CURVATURE = 1e-10


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS (Liu and Nocedal 1989), as torch.optim.LBFGS.

    A step is up to ``iterations`` of it on one logical batch. Directions are computed on the host in float64.

    Attributes:
        lr: length of a step along the direction; with a line search of its first trial.
        iterations: the most per step.
        evaluations: the most of the loss per step, looked at after each iteration; None: 1.25 per iteration.
        history: pairs of changes that are kept.
        line_search: ``"strong_wolfe"``, or ``"none"`` for steps of a fixed length.
        tolerance_grad: largest element of a gradient that ends a step.
        tolerance_change: change of parameters or loss that ends it.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1.0
    iterations: int = 20
    evaluations: int | None = None
    history: int = 10
    line_search: str = "strong_wolfe"
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    schedule: Schedule | str | None = None

    hyper_size = 0

    def __post_init__(self) -> None:
        check_numbers("LBFGS", lr=self.lr, grad=self.tolerance_grad, change=self.tolerance_change)
        integer("LBFGS: iterations", self.iterations)
        integer("LBFGS: history", self.history)
        if self.evaluations is not None:
            integer("LBFGS: evaluations", self.evaluations)
        checks.text("LBFGS: line_search", self.line_search, ("strong_wolfe", "none"))

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The last direction and gradient, and pairs of changes; ``numbers`` are those of all parameters together."""
        rows = self.history
        return (
            Slot("direction", dtype=float64),
            Slot("gradient", dtype=float64),
            Slot("changes", lambda shape: (rows, *shape), dtype=float64),
            Slot("steps", lambda shape: (rows, *shape), dtype=float64),
            Slot("numbers", lambda shape: (4,), dtype=float64),
        )

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """None."""
        return np.zeros(0)

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """Raises InputError: its step is no function of one gradient."""
        raise InputError("LBFGS evaluates the loss several times per step, so it can't be profiled or used in a group")

    def minimize(self, lr: float, x: Array, loss: float, gradient: Array, evaluate: Evaluate, state: State) -> Result:
        """Parameters of a lower loss.

        Args:
            lr: with the schedule.
            x: parameters, (P,).
            loss: there.
            gradient: likewise, (P,).
            evaluate: the loss elsewhere.
            state: of the last step.
        """
        most = self.evaluations if self.evaluations is not None else self.iterations * 5 // 4
        count = 1
        for iteration in range(1, self.iterations + 1):
            if _largest(gradient) <= self.tolerance_grad:
                break
            state = state.advanced(gradient, self.history)
            length = min(1.0, 1.0 / float(np.abs(gradient).sum())) * lr if state.count == 1 else lr
            direction, before = state.direction, loss
            slope = float(gradient @ direction)
            if slope > -self.tolerance_change:
                break
            if self.line_search == "strong_wolfe":
                start, trials = Trial(0.0, loss, slope, gradient), 0

                def at(length: float, x: Array = x, direction: Array = direction) -> Trial:
                    nonlocal trials
                    trials += 1
                    value, found = evaluate(x + length * direction)
                    return Trial(length, value, float(found @ direction), found)

                found = strong_wolfe(at, start, length, _largest(direction), self.tolerance_change)
                length, loss, gradient = found.length, found.value, found.gradient
                x, count = x + length * direction, count + trials
            else:
                x = x + length * direction
                if iteration < self.iterations:
                    loss, gradient = evaluate(x)
                    count += 1
            state = dataclasses.replace(state, length=length)
            change = _largest(direction) * abs(length)
            if count >= most or change <= self.tolerance_change or abs(loss - before) < self.tolerance_change:
                break
        return Result(x, loss, state, count)


@dataclass(frozen=True, slots=True)
class State:
    """What is kept from iteration to iteration.

    Attributes:
        count: iterations done.
        length: of the last step.
        scale: of the first estimate of the inverse Hessian.
        direction: of the last step.
        gradient: where it began.
        changes: of gradients, the oldest first.
        steps: of parameters, that belong to them.
    """

    count: int = 0
    length: float = 0.0
    scale: float = 1.0
    direction: Array = field(default_factory=lambda: np.zeros(0))
    gradient: Array = field(default_factory=lambda: np.zeros(0))
    changes: tuple[Array, ...] = ()
    steps: tuple[Array, ...] = ()

    def advanced(self, gradient: Array, history: int) -> State:
        """The state with the direction from a point of this gradient."""
        if not self.count:
            return State(1, direction=-gradient, gradient=gradient)
        changes, steps, scale = self.changes, self.steps, self.scale
        change, step = gradient - self.gradient, self.direction * self.length
        curvature = float(change @ step)
        if curvature > LEAST_CURVATURE:
            changes, steps = (*changes, change)[-history:], (*steps, step)[-history:]
            scale = curvature / float(change @ change)
        pairs = [(y, s, 1.0 / float(y @ s)) for y, s in zip(changes, steps, strict=True)]
        direction, factors = -gradient, []
        for y, s, inverse in reversed(pairs):
            factors.append(float(s @ direction) * inverse)
            direction = direction - factors[-1] * y
        direction = direction * scale
        for (y, s, inverse), factor in zip(pairs, reversed(factors), strict=True):
            direction = direction + (factor - float(y @ direction) * inverse) * s
        return State(self.count + 1, self.length, scale, direction, gradient, changes, steps)


@dataclass(frozen=True, slots=True)
class Result:
    """Where a step ended.

    Attributes:
        x: parameters.
        loss: of the last evaluation.
        state: for the next one.
        evaluations: of the loss.
    """

    x: Array
    loss: float
    state: State
    evaluations: int


def _largest(x: Array) -> float:
    return float(np.abs(x).max(initial=0.0))
