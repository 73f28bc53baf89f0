"""What schedules share: the warm-up, the steps behind it, and where they end."""

from __future__ import annotations

import math
from typing import Any

from ...errors import InputError
from ...host import checks
from ...host.numbers import integer


def check_settings(schedule: Any, **numbers: float) -> None:
    """Checks ``steps``, ``warmup`` and ``final``, and that the numbers are finite and from 0 on."""
    name = f"schedule {type(schedule).__name__}"
    for key, number in numbers.items():
        checks.number(f"{name}: {key}", number)
    checks.number(f"{name}: final", getattr(schedule, "final", 0.0))
    warmup = checks.number(f"{name}: warmup", getattr(schedule, "warmup", 0))
    if warmup >= 1 and not warmup.is_integer():
        raise InputError(f"{name}: warmup is {warmup}; expected a number of steps, or a fraction below 1")
    if getattr(schedule, "steps", None) is not None:
        integer(f"{name}: steps", schedule.steps)


def warmup_of(schedule: Any) -> int:
    """Steps of the warm-up."""
    if 0 < schedule.warmup < 1:
        raise _unknown(schedule, "its warmup is a fraction of a run of unknown length; give a number of steps")
    return int(schedule.warmup)


def rise(schedule: Any, step: int) -> float:
    """The factor of the warm-up."""
    warmup = warmup_of(schedule)
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def behind(schedule: Any, step: int) -> int:
    """Steps behind the warm-up."""
    return max(0, step - warmup_of(schedule))


def end_of(schedule: Any) -> int:
    """Steps of all."""
    if schedule.steps is None:
        raise _unknown(schedule, "its end is not known here; give steps=")
    steps: int = schedule.steps
    return steps


def _unknown(schedule: Any, what: str) -> InputError:
    return InputError(f"schedule {type(schedule).__name__}: {what}, or train with fit on data whose length is known")


def progress(schedule: Any, step: int) -> float:
    """How much of the decay is done, from 0 to 1."""
    return min(1.0, behind(schedule, step) / max(1, end_of(schedule) - warmup_of(schedule)))


def cosine(first: float, last: float, done: float) -> float:
    """From ``first`` to ``last`` along half a cosine."""
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * done))
