"""How much of the host's memory the operating system would still give this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import OutOfMemoryError

LARGE = 64 << 20  # bytes; from here on the first touch of an allocation costs far more than asking

_CGROUPS = Path("/sys/fs/cgroup")


def available_memory() -> tuple[int, int]:
    """Free and total bytes under the tightest of: physical memory, control groups, resource limits.

    Memory that caches hold counts as free, and free swap as memory. Where the system doesn't tell, as much as can be
    addressed.
    """
    found = [*_physical_memory(), *_control_groups(), *_resource_limits()]
    return min(found, default=(1 << 62, 1 << 62))


def peak_memory() -> int:
    """Bytes of memory that this process had at most so far."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def require_memory(count: int, what: str) -> None:
    """Refuses an allocation that the system would overcommit.

    Args:
        count: bytes; small ones are not looked at.
        what: is allocated, for the message.

    Raises:
        OutOfMemoryError: says how much was asked for and how much there is.
    """
    if count < LARGE:
        return
    left, total = available_memory()
    if count > left:
        raise OutOfMemoryError(
            f"{what}: {count} bytes of host memory are needed, and {max(left, 0)} of {total} are free"
        )


def _physical_memory() -> list[tuple[int, int]]:
    rows = _fields("/proc/meminfo")
    if "MemAvailable:" in rows and "MemTotal:" in rows:
        swap = rows.get("SwapFree:", 0)
        return [((rows["MemAvailable:"] + swap) << 10, (rows["MemTotal:"] + rows.get("SwapTotal:", 0)) << 10)]
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return []
    return [(total, total)] if total > 0 else []


def _control_groups() -> list[tuple[int, int]]:
    """Of the group of this process and of those around it; of version 1 the mounted group alone."""
    found = []
    for folder in _folders():
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is None or used is None:
            continue
        rows = _fields(str(folder / "memory.stat"))
        cached = rows.get("inactive_file", 0) + rows.get("active_file", 0) + rows.get("slab_reclaimable", 0)
        swap = _number(folder / "memory.swap.max")  # None: as much as the machine has, which is looked at apart
        left = (_fields("/proc/meminfo").get("SwapFree:", 0) << 10) if swap is None else swap
        found.append((limit - max(used - cached, 0) + left, limit + left))
    old = _CGROUPS / "memory"
    limit, used = _number(old / "memory.limit_in_bytes"), _number(old / "memory.usage_in_bytes")
    if limit is not None and used is not None:
        rows = _fields(str(old / "memory.stat"))
        cached = rows.get("total_inactive_file", 0) + rows.get("total_active_file", 0)
        found.append((limit - max(used - cached, 0), limit))
    return found


def _folders() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line[3:] for line in lines if line.startswith("0::/")), None)
    if own is None or ".." in own:
        return [_CGROUPS]
    folder = _CGROUPS / own.lstrip("/")
    return [f for f in (folder, *folder.parents) if f.is_relative_to(_CGROUPS)]


def _resource_limits() -> list[tuple[int, int]]:
    """``ulimit -v`` and ``ulimit -d``."""
    try:
        import resource

        pages = [int(word) for word in Path("/proc/self/statm").read_text().split()]
        size = os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return []
    found = []
    for kind, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            found.append((limit - used * size, limit))
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # there is none, or it says "max"
        return None


def _fields(path: str) -> Mapping[str, int]:
    """The numbers of a file with a name and a number in each line."""
    try:
        rows = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
