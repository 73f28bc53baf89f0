"""Says before a run that a device's memory won't hold a plan: how much is needed, what holds it, what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ..errors import OutOfMemoryError
from ..host.limits import Account
from ..host.system_memory import LARGE
from ..ir.kernel import HOST
from ..ir.plan import Lifetime, Plan

_NAMED = 3  # values named in the message


def check_budget(
    plan: Plan,
    available: Callable[[str], tuple[int, int] | None],
    present: Collection[str],
    reserved: Mapping[str, int],
    account: Account | None = None,
) -> None:
    """Refuses a plan that a memory, or a limit, can't hold.

    Args:
        plan: what shall run.
        available: bytes that can still be allocated and bytes in all of a memory; None where that isn't known. The
            host's is asked where much is needed alone: it costs more than planning a few nodes.
        present: names of persistent arenas that are allocated already, or need no memory.
        reserved: bytes already allocated for values of one run that the plan can use, by name of memory.
        account: limits that hold for all memories together.

    Raises:
        OutOfMemoryError: with the bytes needed and what holds them.
        LimitExceeded: likewise.
    """
    needed = 0
    for memory in dict.fromkeys(arena.memory for arena in plan.arenas):
        kept = sum(
            arena.bytes
            for arena in plan.arenas
            if arena.memory == memory and arena.kind in ("weights", "state", "prepacks") and arena.name not in present
        )
        scratch = _bytes(plan, memory, "arena")
        results = _bytes(plan, memory, "output")
        more = kept + max(0, scratch - reserved.get(memory, 0)) + results
        needed += more
        known = None if memory == HOST and more < LARGE else available(memory)
        left, total = known or (more, more)
        if more > left:
            raise OutOfMemoryError(
                f"{memory}: the plan needs {size(more)} more, and {size(max(left, 0))} of {size(total)} are free: "
                f"{size(kept)} for weights and state, {size(scratch)} for the values of one run"
                f"{_largest(plan, memory)}, {size(results)} for results. Use smaller batches (with accumulate= the "
                "optimizer sees the same batch), or give part of the work to another device"
            )
    if account is not None:
        account.require(needed, f"the plan{_largest(plan, HOST)}")


def _bytes(plan: Plan, memory: str, kind: str) -> int:
    return sum(arena.bytes for arena in plan.arenas if arena.memory == memory and arena.kind == kind)


def size(count: int) -> str:
    """Bytes for people."""
    number = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{number:.1f} {unit}"


def _largest(plan: Plan, memory: str) -> str:
    """The largest values that are alive when most memory is in use."""
    rows = [row for index, found in plan.lifetimes.items() if plan.arenas[index].memory == memory for row in found]
    if not rows:
        return ""
    alive = _at_peak([life for _, life, _ in rows])
    names = sorted(((life.bytes, name) for name, life, _ in rows if life.start <= alive < life.stop), reverse=True)
    listed = ", ".join(f"{name} {size(count)}" for count, name in names[:_NAMED])
    return f" (at its peak: {listed}{', ...' if len(names) > _NAMED else ''})"


def _at_peak(lives: list[Lifetime]) -> int:
    """The time at which the sum of sizes is largest."""
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.start] = changes.get(life.start, 0) + life.bytes
        changes[life.stop] = changes.get(life.stop, 0) - life.bytes
    best, best_time, current = -1, 0, 0
    for time in sorted(changes):
        current += changes[time]
        if current > best:
            best, best_time = current, time
    return best_time
