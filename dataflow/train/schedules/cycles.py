"""Schedules of phases: restarts, one cycle, a stable phase before the decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...host import checks
from ...host.numbers import integer
from .terms import behind, check_settings, cosine, end_of, rise


@dataclass(frozen=True)
class CosineRestarts:
    """Cosines from 1 to ``final`` (SGDR, Loshchilov and Hutter 2017); as torch's CosineAnnealingWarmRestarts.

    Attributes:
        first: steps of the first.
        growth: each is so many times as long as the one before.
        final: what each goes to.
    """

    first: int
    growth: int = 1
    final: float = 0.0
    warmup: int | float = 0

    def __post_init__(self) -> None:
        integer("schedule CosineRestarts: first", self.first)
        integer("schedule CosineRestarts: growth", self.growth)
        check_settings(self)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        done, length = behind(self, step), self.first
        if self.growth == 1:
            done %= length
        while done >= length:
            done, length = done - length, length * self.growth
        return rise(self, step) * cosine(1.0, self.final, done / length)


@dataclass(frozen=True)
class OneCycle:
    """Up to 1 and down along cosines (Smith and Topin 2018); as torch's OneCycleLR, without its cycle of momentum.

    Attributes:
        steps: of the cycle; None: of the run.
        rise: fraction of them in which it rises.
        start: the first factor.
        final: the last one.
    """

    steps: int | None = None
    rise: float = 0.3
    start: float = 1 / 25
    final: float = 1 / 250_000

    def __post_init__(self) -> None:
        checks.number("schedule OneCycle: rise", self.rise, 0.0, 1.0)
        check_settings(self, start=self.start)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        last = end_of(self) - 1
        top = self.rise * (last + 1) - 1
        if step <= top:
            return cosine(self.start, 1.0, step / top if top else 1.0)
        return cosine(1.0, self.final, min(1.0, (step - max(top, 0.0)) / max(last - max(top, 0.0), 1e-9)))


@dataclass(frozen=True)
class WarmupStableDecay:
    """1, and at the end down to ``final`` (Hu et al. 2024; as ``sqrt``, 1 - sqrt(progress): Hägele et al. 2024).

    Attributes:
        steps: all of them.
        decay: steps of the decay at the end; below 1 the fraction of all.
        shape: of the decay.
    """

    steps: int | None = None
    warmup: int | float = 0
    decay: int | float = 0.2
    shape: Literal["linear", "cosine", "sqrt"] = "linear"
    final: float = 0.0

    def __post_init__(self) -> None:
        checks.text("schedule WarmupStableDecay: shape", self.shape, ("linear", "cosine", "sqrt"))
        check_settings(self, decay=self.decay)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        end = end_of(self)
        length = self.decay * end if self.decay < 1 else self.decay
        done = min(1.0, max(0.0, step - (end - length)) / length) if length else 0.0
        left = {"linear": 1.0 - done, "cosine": cosine(1.0, 0.0, done), "sqrt": 1.0 - math.sqrt(done)}[self.shape]
        return rise(self, step) * (self.final + (1.0 - self.final) * left)
