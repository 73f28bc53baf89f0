"""The open devices of a session or trainer."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from ..cdevice.host_memory import HostBuffer, Shown
from ..host.fork import renew_in_child
from ..host.limits import Account
from ..host.system_memory import available_memory
from ..ir.kernel import HOST
from ..ir.plan import Arena, Plan, Transfer
from ..ir.types import Array
from ..planning.algorithms import Algorithms
from ..planning.offsets import lie_apart
from ..plugin.device import Backend, Buffer, Precision
from .guarded_memory import guarded_block


class Devices:
    """The open devices of a session or trainer, in order of preference.

    Attributes:
        backends: by device id.
        memories: device id to the name of the memory it addresses.
        threads: the most that a kernel may use.
        algorithms: which one a kernel uses where it has several.
        precision: with which the devices were opened.
        account: what is taken of the session's limits; None where it has none.
    """

    def __init__(
        self,
        backends: Mapping[str, Backend],
        memories: Mapping[str, str],
        threads: int,
        algorithms: Algorithms | None = None,
        precision: Precision = "float32",
        account: Account | None = None,
    ) -> None:
        self.backends = backends
        self.memories = memories
        self.threads = threads
        self.algorithms = algorithms or Algorithms()
        self.precision = precision
        self.account = account
        self.failed: str | None = None
        # Asynchronous errors surface at the next synchronization: one run at a time.
        self.exclusive = threading.RLock()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: devices whose memory is not the host's belong to the parent."""
        self.exclusive = threading.RLock()
        away = sorted(device for device, memory in self.memories.items() if memory != HOST)
        if away:
            self.failed = f"{', '.join(away)} was opened before this process was forked"

    def allocate(self, memory: str, bytes: int) -> Buffer:
        """Memory of that name; on the host it is counted."""
        if memory == HOST:
            return guarded_block(bytes, "a constant") if lie_apart() else HostBuffer(bytes, self.account)
        if self.account is not None:
            self.account.require(bytes, f"a buffer in {memory}")
        buffer = self.backend_of(memory).alloc(bytes)
        if self.account is not None:
            self.account.charge(buffer, f"a buffer in {memory}")
        return buffer

    def allocate_scratch(self, plan: Plan, arena: Arena) -> Buffer:
        """Memory for the values of a run; on the host such as the devices copy fast that plans transfer to and from."""
        transfers = (item for item in plan.items if isinstance(item, Transfer)) if arena.memory == HOST else ()
        ends = (device for item in transfers for device in (item.from_device, item.to_device))
        for device in dict.fromkeys(ends):
            if self.memories[device] != HOST:
                buffer = self.backends[device].alloc_staging(arena.bytes)
                if buffer is not None:
                    if self.account is not None:
                        self.account.charge(buffer, f"memory of the host that {device} copies fast")
                    return buffer
        return self.allocate(arena.memory, arena.bytes)

    def staged(self, array: Array) -> Array:
        """A contiguous copy of an array, in memory of the host that a device copies fast where one has such."""
        if array.dtype.hasobject or not array.nbytes:
            return array.copy()
        for device, backend in self.backends.items():
            buffer = None if self.memories[device] == HOST else backend.alloc_staging(array.nbytes)
            if buffer is not None:
                if self.account is not None:
                    self.account.charge(buffer, f"memory of the host that {device} copies fast")
                found = np.asarray(Shown(buffer))[: array.nbytes].view(array.dtype).reshape(array.shape)
                found[...] = array
                return found
        return array.copy()

    def free(self, memory: str, buffer: Buffer) -> None:
        """Gives memory back; the host's goes with its object."""
        if memory != HOST:
            self.backend_of(memory).free(buffer)

    def available(self, memory: str) -> tuple[int, int] | None:
        """Bytes that can still be allocated in a memory and bytes in all, where it is known."""
        return available_memory() if memory == HOST else self.backend_of(memory).memory()

    def backend_of(self, memory: str) -> Backend:
        """A device that addresses ``memory``."""
        return next(self.backends[d] for d, m in self.memories.items() if m == memory)
