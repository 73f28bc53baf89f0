"""What lies between values that are apart: bytes that no kernel may write, on the host pages that nobody may touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..ir.kernel import HOST
from ..ir.plan import Lifetime, Plan
from ..ir.types import Array
from ..plugin.device import Buffer
from .devices import Devices
from .guarded_memory import GuardedBuffer, pages_of

CANARY = 0xA5
Rows = Sequence[tuple[str, Lifetime, int]]
"""The values of an arena: name, life, offset."""


def allocate(devices: Devices, memory: str, bytes: int, rows: Rows) -> Buffer:
    """A new buffer full of canaries, values too: they are noise until a kernel writes them."""
    if memory != HOST:
        buffer = devices.allocate(memory, bytes)
        noise = np.full(bytes, CANARY, np.uint8)  # must live until the device has read it
        devices.backend_of(memory).write(buffer, 0, noise)
        devices.backend_of(memory).sync()
        return buffer
    guarded = GuardedBuffer(bytes, [(pages_of(offset, life.bytes), name) for name, life, offset in rows])
    for span, array in _spans(guarded, rows):
        array[span] = CANARY
    return guarded


def poison(devices: Devices, memory: str, buffer: Buffer, rows: Rows, byte: int) -> None:
    """Fills the values, but not what lies between them, with another byte."""
    if memory == HOST:
        array = np.asarray(buffer)
        for _, life, offset in rows:
            array[offset : offset + life.bytes] = byte
        return
    noise = np.full(max((life.bytes for _, life, _ in rows), default=0), byte, np.uint8)
    for _, life, offset in rows:
        devices.backend_of(memory).write(buffer, offset, noise[: life.bytes])
    devices.backend_of(memory).sync()


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
        memory = plan.arenas[index].memory
        for span, array in _spans(buffer, rows) if memory == HOST else _all_bytes(devices, memory, buffer):
            wrong = array[span] != CANARY
            for _, life, offset in rows:
                wrong[max(offset - span.start, 0) : max(offset + life.bytes - span.start, 0)] = False
            if wrong.any():
                at = span.start + int(np.argmax(wrong))
                distances = [(max(offset - at, at - offset - life.bytes + 1), name) for name, life, offset in rows]
                return f"{memory}: bytes beside {min(distances)[1]} were written"
    return None


def _spans(buffer: Buffer, rows: Rows) -> Iterator[tuple[slice, Array]]:
    """What may be touched of a guarded buffer."""
    array = np.asarray(buffer)
    for _, life, offset in rows:
        span = pages_of(offset, life.bytes)
        yield slice(span.start, span.stop), array


def _all_bytes(devices: Devices, memory: str, buffer: Buffer) -> Iterator[tuple[slice, Array]]:
    found = np.empty(buffer.bytes, np.uint8)
    devices.backend_of(memory).read(found, buffer, 0)
    yield slice(0, buffer.bytes), found
