"""A step length along a direction that fulfills the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ...ir.types import Array

ENOUGH, FLAT = 1e-4, 0.9  # of the decrease that the slope promises; of the slope, that may be left
MOST = 25  # trials behind the first


@dataclass(frozen=True, slots=True)
class Trial:
    """The objective at a step length.

    Attributes:
        length: of the step.
        value: of the objective.
        slope: along the direction.
        gradient: of the objective.
    """

    length: float
    value: float
    slope: float
    gradient: Array


def strong_wolfe(at: Callable[[float], Trial], start: Trial, length: float, size: float, shortest: float) -> Trial:
    """Nocedal and Wright 2006, algorithms 3.5 and 3.6, with the choices of torch.optim.LBFGS.

    A trial whose value isn't finite counts as too far.

    Args:
        at: the objective at a step length.
        start: that at 0, whose slope is below 0.
        length: of the first trial.
        size: the largest element of the direction.
        shortest: bracket, times ``size``, that is divided no further.
    """

    def too_far(trial: Trial) -> bool:
        return not trial.value <= start.value + ENOUGH * trial.length * start.slope

    def is_flat(trial: Trial) -> bool:
        return abs(trial.slope) <= -FLAT * start.slope

    before, now, count = start, at(length), 0
    low, high = start, now
    while True:
        if too_far(now) or (count > 1 and now.value >= before.value):
            low, high = before, now
            break
        if is_flat(now):
            return now
        if now.slope >= 0.0:
            low, high = before, now
            break
        if count == MOST:
            low, high = start, now
            break
        bounds = now.length + 0.01 * (now.length - before.length), now.length * 10.0
        before, now, count = now, at(_least_of_cubic(before, now, *bounds)), count + 1
    if high.value < low.value:
        low, high = high, low
    stalled = False
    while count < MOST and abs(high.length - low.length) * size >= shortest:
        first, last = sorted((low.length, high.length))
        length = _least_of_cubic(low, high, first, last)
        margin = 0.1 * (last - first)
        if min(last - length, length - first) >= margin:
            stalled = False
        elif stalled or not first < length < last:
            length = last - margin if abs(length - last) < abs(length - first) else first + margin
            stalled = False
        else:
            stalled = True
        now, count = at(length), count + 1
        if too_far(now) or now.value >= low.value:
            high = now
            if high.value < low.value:
                low, high = high, low
            continue
        if is_flat(now):
            return now
        if now.slope * (high.length - low.length) >= 0.0:
            high = low
        low = now
    return low


def _least_of_cubic(a: Trial, b: Trial, first: float, last: float) -> float:
    """Where the cubic with the values and slopes of both is least within bounds, as minFunc; their middle without."""
    if not all(map(math.isfinite, (a.value, b.value, a.slope, b.slope))):
        return (first + last) / 2.0
    if a.length > b.length:
        a, b = b, a
    if a.length == b.length:
        return (first + last) / 2.0
    d1 = a.slope + b.slope - 3.0 * (a.value - b.value) / (a.length - b.length)
    square = d1 * d1 - a.slope * b.slope
    if square < 0.0:
        return (first + last) / 2.0
    d2 = math.sqrt(square)
    below = b.slope - a.slope + 2.0 * d2
    if below == 0.0:
        return (first + last) / 2.0
    least = b.length - (b.length - a.length) * ((b.slope + d2 - d1) / below)
    return min(max(least, first), last)
