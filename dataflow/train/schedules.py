"""Schedules: the factor on the learning rate by optimizer step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Union

from ..errors import InputError
from .optimizers import Schedule


@dataclass(frozen=True)
class Constant:
    """1 after a linear warm-up of ``warmup`` steps."""

    warmup: int = 0

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return _warm(step, self.warmup)


@dataclass(frozen=True)
class Cosine:
    """From 1 to ``final`` along half a cosine, after a linear warm-up.

    Attributes:
        steps: where it ends, warm-up included; None: with the run.
        warmup: steps of warm-up.
        final: the last factor.
    """

    steps: int | None = None
    warmup: int = 0
    final: float = 0.0

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        done = _progress(self, step)
        return _warm(step, self.warmup) * (self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * done)))


@dataclass(frozen=True)
class Linear:
    """From 1 to ``final`` along a line, after a linear warm-up; attributes as in Cosine."""

    steps: int | None = None
    warmup: int = 0
    final: float = 0.0

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return _warm(step, self.warmup) * (1.0 + (self.final - 1.0) * _progress(self, step))


@dataclass(frozen=True)
class Step:
    """Multiplied by ``factor`` after every ``every`` steps, after a linear warm-up."""

    every: int
    factor: float = 0.1
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"schedule Step: every is {self.every}; expected at least 1")

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return _warm(step, self.warmup) * self.factor ** (step // self.every)


def over(schedule: Schedule, total: int | None) -> Schedule:
    """The schedule, ending after ``total`` optimizer steps where it ends with the run."""
    if isinstance(schedule, (Cosine, Linear)) and schedule.steps is None and total is not None:
        return replace(schedule, steps=max(total, 1))
    return schedule


def _warm(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _progress(schedule: Union[Cosine, Linear], step: int) -> float:
    """How much of the decay is done, from 0 to 1."""
    if schedule.steps is None:
        raise InputError(
            f"schedule {type(schedule).__name__}: its end is not known here; give steps=, or train with fit on data "
            "whose length is known"
        )
    return min(1.0, max(0, step - schedule.warmup) / max(1, schedule.steps - schedule.warmup))
