"""Schedules that only fall, behind a warm-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...host import checks
from ...host.numbers import integer
from .terms import behind, check_settings, cosine, progress, rise, warmup_of


@dataclass(frozen=True)
class Constant:
    """1."""

    warmup: int | float = 0

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return rise(self, step)


@dataclass(frozen=True)
class Cosine:
    """From 1 to ``final`` along half a cosine (Loshchilov and Hutter 2017); as torch's CosineAnnealingLR."""

    steps: int | None = None
    warmup: int | float = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return rise(self, step) * cosine(1.0, self.final, progress(self, step))


@dataclass(frozen=True)
class Linear:
    """From 1 to ``final`` along a line; as torch's LinearLR."""

    steps: int | None = None
    warmup: int | float = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return rise(self, step) * (1.0 + (self.final - 1.0) * progress(self, step))


@dataclass(frozen=True)
class Polynomial:
    """From 1 to ``final`` as ``(1 - progress)^power``; as torch's PolynomialLR."""

    steps: int | None = None
    power: float = 2.0
    warmup: int | float = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self, power=self.power)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        left: float = (1.0 - progress(self, step)) ** self.power
        return rise(self, step) * (self.final + (1.0 - self.final) * left)


@dataclass(frozen=True)
class Step:
    """Multiplied by ``factor`` after every ``every`` steps; as torch's StepLR."""

    every: int
    factor: float = 0.1
    warmup: int | float = 0

    def __post_init__(self) -> None:
        integer("schedule Step: every", self.every)
        check_settings(self, factor=self.factor)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return rise(self, step) * float(self.factor ** (behind(self, step) // self.every))


@dataclass(frozen=True)
class MultiStep:
    """Multiplied by ``factor`` at each of the steps ``at``; as torch's MultiStepLR."""

    at: Sequence[int]
    factor: float = 0.1
    warmup: int | float = 0

    def __post_init__(self) -> None:
        for step in checks.instance("schedule MultiStep: at", self.at, list, tuple):
            integer("schedule MultiStep: one of at", step)
        check_settings(self, factor=self.factor)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        done = behind(self, step)
        return rise(self, step) * float(self.factor ** sum(done >= at for at in self.at))


@dataclass(frozen=True)
class Exponential:
    """Multiplied by ``factor`` over every ``every`` steps, a little at each; as torch's ExponentialLR for 1."""

    factor: float
    every: int = 1
    warmup: int | float = 0

    def __post_init__(self) -> None:
        integer("schedule Exponential: every", self.every)
        check_settings(self, factor=self.factor)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return rise(self, step) * float(self.factor ** (behind(self, step) / self.every))


@dataclass(frozen=True)
class InverseSqrt:
    """``1 / sqrt(1 + t / scale)`` of the steps t behind the warm-up (Vaswani et al. 2017).

    Attributes:
        scale: steps; None: those of the warm-up, or 10,000 without.
    """

    scale: int | None = None
    warmup: int | float = 0

    def __post_init__(self) -> None:
        if self.scale is not None:
            integer("schedule InverseSqrt: scale", self.scale)
        check_settings(self)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        scale: int = self.scale or warmup_of(self) or 10_000
        return rise(self, step) / math.sqrt(1.0 + behind(self, step) / scale)
