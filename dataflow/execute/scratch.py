"""Memory for the values of one run that several programs use in turn."""

from __future__ import annotations

import threading
from dataclasses import replace

from ..errors import LimitExceeded, OutOfMemoryError
from ..host.fork import renew_in_child
from ..ir.plan import Plan
from ..plugin.device import Buffer
from .devices import Devices


class Scratch:
    """One buffer per memory that programs use as their arena in turn.

    A buffer that was too small becomes an eighth larger than is needed, where there is so much memory: sizes that grow
    a little from run to run would else replace it each time, and a run in new pages takes twice as long.

    Args:
        devices: allocate.
        exact: no buffer becomes larger than is needed.

    Attributes:
        lock: held while one of the programs runs.
    """

    def __init__(self, devices: Devices, *, exact: bool = False) -> None:
        self._devices, self._exact = devices, exact
        self._buffers: dict[str, Buffer] = {}
        self._reserved: Plan | None = None  # the plan that asked last
        self.lock = threading.Lock()
        renew_in_child(self)
        self.generation = 0  # goes up when a buffer was replaced: what is bound to the old one binds anew

    def renew(self) -> None:
        """In a forked child: a new lock where another thread held it, as programs make new seats."""
        if self.lock.locked():
            self.lock = threading.Lock()

    def reserve(self, plan: Plan) -> None:
        """Makes the buffers large enough for ``plan``."""
        if plan is self._reserved:
            return
        self._reserved = None  # until all is there: an interrupt or a lack of memory may leave a buffer out
        for arena in plan.arenas:
            if arena.kind != "arena":
                continue
            known = self._buffers.get(arena.memory)
            if known is not None and known.bytes >= arena.bytes:
                continue
            self.generation += 1
            if known is not None:
                del self._buffers[arena.memory]
                self._devices.free(arena.memory, known)
            spare = 0 if known is None or self._exact else arena.bytes // 8
            larger = replace(arena, bytes=arena.bytes + spare)
            try:
                self._buffers[arena.memory] = self._devices.allocate_scratch(plan, larger)
            except (OutOfMemoryError, LimitExceeded):
                if not spare:
                    raise
                self._buffers[arena.memory] = self._devices.allocate_scratch(plan, arena)
        self._reserved = plan

    def buffer(self, memory: str) -> Buffer:
        """The buffer for arenas in ``memory``."""
        return self._buffers[memory]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each buffer, by memory."""
        return {memory: buffer.bytes for memory, buffer in self._buffers.items()}

    def close(self) -> None:
        """Gives device memory back."""
        for memory, buffer in self._buffers.items():
            self._devices.free(memory, buffer)
        self._buffers.clear()
        self._reserved = None
