"""What devices make of a plan's segments before these have addresses."""

from __future__ import annotations

import itertools
from typing import Any

from ..ir.plan import Plan
from ..plugin.device import Refused
from .devices import Devices


def compile_segments(plan: Plan, devices: Devices) -> list[Any]:
    """What devices make of the segments of a plan without addresses.

    Raises:
        Refused: nodes that a device can't run after all.
    """
    found = []
    for segment in plan.segments:
        memory, backend = devices.memories[segment.device], devices.backends[segment.device]
        slots = itertools.count()
        table = [(None, a.bytes, next(slots) if a.kind in ("input", "output") else -1) for a in plan.arenas]
        own = [entry if a.memory == memory else (None, 0, -1) for a, entry in zip(plan.arenas, table, strict=True)]
        try:
            found.append(backend.compile(segment, own, devices.threads))
        except Refused as error:
            error.device = segment.device
            raise
    return found
