"""What a kernel must leave as it is in its process: floating-point modes, locale, folder, signals, files, threads."""

from __future__ import annotations

import contextlib
import ctypes
import locale
import os
import pickle
import random
import resource
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

_C = ctypes.CDLL(None)
ADDRESS_SANITIZER = hasattr(_C, "__asan_init")  # which describes faults itself, and guards static memory
# What drivers open and close, and sockets of objects that the collector finds at any time.
_OF_OTHERS = ("anon_inode:[eventfd]", "/dev/nvidia", "/dev/dri/", "/dev/kfd", "socket:")
_STATUS = ("Umask", "SigBlk", "SigIgn", "SigCgt")
_OF_THE_LIBRARY = 0b11 << 31  # signals 32 and 33, which the C library handles from the first thread on
_ONE, _TINY, _LEAST = 1.0, 2.0**-53, 5e-324


def _rounding() -> str:
    """The rounding mode of this thread, as sums show it, and whether subnormal numbers are kept."""
    up = _ONE + 0.25 * _TINY > _ONE
    down = -_ONE - 0.25 * _TINY < -_ONE
    zero = _ONE + 3 * _TINY == _ONE + 2 * _TINY
    mode = "upward" if up else "downward" if down else "toward zero" if zero else "to nearest"
    return mode + ("" if _LEAST * _ONE else ", subnormals flushed")


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What was found at one time.

    Attributes:
        fixed: by name, what must not change at all.
        descriptors: open files by number.
        threads: how many there are.
        processes: children that have not ended, or that nobody asked how.
    """

    fixed: dict[str, str]
    descriptors: dict[str, str]
    threads: int
    processes: int

    @staticmethod
    def now() -> ProcessState:
        """That of this process and thread; on systems other than Linux a part of it."""
        fixed = {
            "the rounding mode": _rounding(),
            "the locale": locale.setlocale(locale.LC_ALL),
            "the working directory": str(Path.cwd()),
            "NumPy's error handling": str(np.geterr()),
            "NumPy's global random state": _digest(np.random.get_state(legacy=True)),  # noqa: NPY002  # the user's
            "Python's global random state": _digest(random.getstate()),
        }
        threads = 0
        with contextlib.suppress(OSError):
            rows = dict(
                line.split(":\t", 1)
                for line in Path("/proc/thread-self/status").read_text().splitlines()
                if ":\t" in line
            )
            fixed |= {f"{name} of /proc/self/status": _own(name, rows[name]) for name in _STATUS if name in rows}
            threads = int(rows.get("Threads", "0"))
        descriptors: dict[str, str] = {}
        with contextlib.suppress(OSError):
            for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  # a state is taken twice per sample
                with contextlib.suppress(OSError):  # that of the listing itself
                    descriptors[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        processes = 0
        with contextlib.suppress(OSError):
            for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
                with contextlib.suppress(OSError):  # it has ended
                    processes += len(Path(f"/proc/self/task/{thread}/children").read_text().split())
        return ProcessState(fixed, descriptors, threads, processes)

    def changed(self, before: ProcessState) -> str | None:
        """What was changed since ``before`` that nobody may change, or None.

        What a driver or the collector may have closed, at any time, doesn't count.
        """
        for name, value in before.fixed.items():
            if self.fixed.get(name) != value:
                return f"{name} was changed: from {value.strip()} to {self.fixed.get(name, '').strip()}"
        kept = {number: file for number, file in before.descriptors.items() if not file.startswith(_OF_OTHERS)}
        closed = [f"{number} ({file})" for number, file in kept.items() if number not in self.descriptors]
        return f"file descriptor {', '.join(closed)} was closed" if closed else None

    def grown(self, before: ProcessState) -> str | None:
        """What there is more of than ``before``, or None."""
        opened = [file for number, file in self.descriptors.items() if number not in before.descriptors]
        if opened:
            return f"{len(opened)} more files are open after each run: {', '.join(sorted(set(opened)))}"
        if self.threads > before.threads:
            return f"{self.threads - before.threads} more threads are left after each run"
        if self.processes > before.processes:
            return f"{self.processes - before.processes} more processes are left after each run"
        return None


def _digest(state: object) -> str:
    """A short name of a generator's state."""
    return xxhash.xxh64_hexdigest(pickle.dumps(state))


def _own(name: str, row: str) -> str:
    """A row of the status; of signals those that are the program's."""
    return f"{int(row, 16) & ~_OF_THE_LIBRARY:016x}" if name.startswith("Sig") else row


class _Allocations(ctypes.Structure):
    _fields_ = tuple(
        (f"{name}", ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def live_bytes() -> int:
    """Bytes that C code has allocated and not freed, and the pages that the process has; 0 where that isn't known."""
    if not hasattr(_C, "mallinfo2"):
        return 0
    _C.mallinfo2.restype = _Allocations
    found = _C.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def resident_bytes() -> int:
    """Memory that this process has in use; 0 where that isn't known."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def flush() -> None:
    """Writes what Python and C have buffered for standard output."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    _C.fflush(None)


class StaticMemory:
    """The static memory of the library that holds an address; empty on other systems than Linux of 64 bits.

    Source: the ELF-64 object file format, whose program headers say what is loaded writable.
    """

    def __init__(self, address: int) -> None:
        self._ranges: list[tuple[int, int]] = []
        with contextlib.suppress(OSError, struct.error):
            base, file = _library_at(address)
            if file and not ADDRESS_SANITIZER:
                self._ranges = [(base + at, size) for at, size in _writable(Path(file).read_bytes())]

    def read(self) -> bytes:
        """What lies there now."""
        return b"".join(ctypes.string_at(begin, size) for begin, size in self._ranges)


def _library_at(address: int) -> tuple[int, str]:
    """Where the library begins that is mapped at an address, and its file; empty: there is none."""
    begins: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *name = line.split(maxsplit=5)
        first, _, last = span.partition("-")
        file = name[0] if name else ""
        if int(offset, 16) == 0:
            begins[file] = int(first, 16)
        if int(first, 16) <= address < int(last, 16):
            return begins.get(file, 0), file if file.startswith("/") else ""
    return 0, ""


_LOAD, _WRITE = 1, 2  # PT_LOAD, PF_W


def _writable(elf: bytes) -> Iterator[tuple[int, int]]:
    """Address, relative to the library's, and size of each segment that is loaded writable."""
    if elf[:5] != b"\x7fELF\x02":
        return
    (headers,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for index in range(count):
        kind, flags, _, at, _, _, memory, _ = struct.unpack_from("<IIQQQQQQ", elf, headers + index * size)
        if kind == _LOAD and flags & _WRITE:
            yield at, memory
