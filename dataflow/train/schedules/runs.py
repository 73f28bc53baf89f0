"""Schedules of one run: any schedule behind a warm-up, and what ends with the run."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ...errors import InputError
from ...host import checks
from ..optimizers.protocol import Schedule
from .terms import behind, check_settings, rise


@dataclass(frozen=True)
class Warmup:
    """Any schedule behind a warm-up of so many steps, whose steps it doesn't count."""

    schedule: Schedule
    warmup: int | float

    def __post_init__(self) -> None:
        if not callable(self.schedule):
            raise InputError(f"schedule Warmup: {checks.shown(self.schedule)} is no schedule; expected a function")
        if hasattr(self.schedule, "after"):
            name = type(self.schedule).__name__
            raise InputError(f"schedule Warmup: {name} goes on from figures of epochs; give warmup= to {name} itself")
        check_settings(self)

    def __call__(self, step: int) -> float:
        """The factor after ``step`` steps."""
        return rise(self, step) * self.schedule(behind(self, step))


def over(schedule: Schedule, total: int | None) -> Schedule:
    """The schedule for a run of ``total`` steps: where it ends with the run, or is a fraction of it, as a number."""
    if total is None or not is_dataclass(schedule) or isinstance(schedule, type):
        return schedule
    known: dict[str, Any] = {}
    if 0 < getattr(schedule, "warmup", 0) < 1:
        known["warmup"] = round(getattr(schedule, "warmup", 0) * total)
    if isinstance(schedule, Warmup):
        known["schedule"] = over(schedule.schedule, total - known.get("warmup", schedule.warmup))
    elif getattr(schedule, "steps", 0) is None:
        known["steps"] = max(total, 1)
    made: Schedule = replace(schedule, **known)
    return made


def warmed(schedule: Schedule, warmup: float) -> Schedule:
    """The schedule with a warm-up of so many steps, or of such a fraction of the run."""
    steps = int(warmup) if warmup >= 1 and float(warmup).is_integer() else warmup
    if is_dataclass(schedule) and "warmup" in {f.name for f in fields(schedule)}:
        made: Schedule = replace(schedule, warmup=steps)
        return made
    return Warmup(schedule, steps)
