"""Checks of a device with memory of its own: alignment, and copies there and back at any offset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._runtime import ffi
from ..plugin.device import Backend
from .outcome import Outcome, Report, Task
from .trial import Target, raised

_SIZES = (1, 64, 100, 4097)


def memory_task(target: Target) -> Task:
    """Allocates, copies and frees."""
    device = target.registry.devices[target.device]

    def run(report: Report) -> Iterator[Outcome]:
        report("memory")
        found: list[str] = []
        text = raised(lambda: found.extend(_problems(device.open({}), device.alignment))) or "; ".join(found[:1])
        yield Outcome(target.device, "", "memory", "memory", "failed" if text else "passed", text)

    return Task("", "memory", run)


def _problems(backend: Backend, alignment: int) -> Iterator[str]:
    """What is wrong with buffers and copies."""
    buffers = [backend.alloc(size) for size in _SIZES]
    handles = bool(getattr(backend, "flags", 0))  # what a buffer is known by is no address, and has no alignment
    for size, buffer in zip(_SIZES, buffers, strict=True):
        base = int(ffi.cast("uintptr_t", buffer.base))
        if not handles and base % alignment:
            yield f"alloc gives {size} bytes at {base:#x}, which is no multiple of the device's alignment, {alignment}"
    held = {buffer.base for buffer in buffers}
    if len(held) < len(buffers):
        yield "alloc gives one buffer twice"
    data = np.random.default_rng(0).integers(0, 256, max(_SIZES), np.uint8)
    for size, buffer in zip(_SIZES, buffers, strict=True):
        for begin in (0, size // 3):
            zeros, rest = np.zeros(size, np.uint8), np.ascontiguousarray(data[begin:size])  # live until they are read
            backend.write(buffer, 0, zeros)
            backend.write(buffer, begin, rest)
            back = np.empty(size, np.uint8)
            backend.read(back, buffer, 0)
            half = np.empty(size - begin, np.uint8)
            backend.read(half, buffer, begin)
            if (back[begin:] != data[begin:size]).any() or back[:begin].any() or (half != data[begin:size]).any():
                yield f"{size - begin} bytes copied to offset {begin} and back are others"
    for buffer in buffers:
        backend.free(buffer)
