"""Lifetimes -> offsets. Knows sizes and times, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer: alive in ``[start, stop)``, ``bytes`` long."""

    start: int
    stop: int
    bytes: int
    alignment: int = 64


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets in one arena.

    Attributes:
        offsets: bytes, one per lifetime.
        peak: size of the arena.
        lower_bound: the largest sum of sizes alive at one time.
    """

    offsets: tuple[int, ...]
    peak: int
    lower_bound: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Offsets by greedy first fit, largest buffers first."""
    sizes = [-(-life.bytes // life.alignment) * life.alignment for life in lifetimes]
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for index in sorted(range(len(lifetimes)), key=lambda i: -sizes[i]):
        life = lifetimes[index]
        others = [i for i in placed if lifetimes[i].start < life.stop and life.start < lifetimes[i].stop]
        offset = 0
        for other in sorted(others, key=offsets.__getitem__):
            if offsets[other] - offset >= sizes[index]:
                break
            offset = max(offset, offsets[other] + sizes[other])
        offsets[index] = offset
        if sizes[index]:
            placed.append(index)
    peak = max((offsets[i] + sizes[i] for i in placed), default=0)
    return MemoryPlan(tuple(offsets), peak, live_peak(lifetimes))


def live_peak(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of aligned sizes alive at one time."""
    events: dict[int, int] = {}
    for life in lifetimes:
        size = -(-life.bytes // life.alignment) * life.alignment
        events[life.start] = events.get(life.start, 0) + size
        events[life.stop] = events.get(life.stop, 0) - size
    alive = best = 0
    for time in sorted(events):
        alive += events[time]
        best = max(best, alive)
    return best
