"""What lies between values that are apart: bytes that no kernel may write, and whether one did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.kernel import HOST
from ..ir.plan import Plan
from ..ir.types import Array
from ..plugin.device import Buffer
from .devices import Devices

CANARY = 0xA5


def fill(devices: Devices, memory: str, buffer: Buffer) -> None:
    """Fills a new buffer, values too: they are noise until a kernel writes them."""
    if memory == HOST:
        np.asarray(buffer)[:] = CANARY
    else:
        devices.backend_of(memory).write(buffer, 0, np.full(buffer.bytes, CANARY, np.uint8))


def damage(plan: Plan, devices: Devices, buffers: Sequence[Buffer | None]) -> str | None:
    """Beside which value bytes were written that belong to none, or None.

    Args:
        plan: made with values apart.
        devices: its devices.
        buffers: one per arena.
    """
    for index, rows in plan.lifetimes.items():
        buffer = buffers[index]
        assert buffer is not None
        wrong = _read(devices, plan.arenas[index].memory, buffer) != CANARY
        for _, life, offset in rows:
            wrong[offset : offset + life.bytes] = False
        if wrong.any():
            at = int(np.argmax(wrong))
            distances = [(max(offset - at, at - offset - life.bytes + 1), name) for name, life, offset in rows]
            return f"{plan.arenas[index].memory}: bytes beside {min(distances)[1]} were written"
    return None


def _read(devices: Devices, memory: str, buffer: Buffer) -> Array:
    if memory == HOST:
        return np.array(buffer, copy=True)
    found = np.empty(buffer.bytes, np.uint8)
    devices.backend_of(memory).read(found, buffer, 0)
    return found
