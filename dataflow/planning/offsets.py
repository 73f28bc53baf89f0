"""Lifetimes -> offsets. Knows sizes and times, no tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from .._runtime import ffi, lib
from ..errors import InputError, OutOfMemoryError
from ..ir.plan import Lifetime

PAGE = 4096  # bytes; values that lie apart have pages of their own, and one before and behind them that nobody has
_apart: ContextVar[bool] = ContextVar("apart", default=False)
_in_place: ContextVar[bool] = ContextVar("in_place", default=True)

EFFORT = 20_000_000  # visits of a buffer, about a nanosecond each; larger plans end after their first packings


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


def plan_memory(lifetimes: Sequence[Lifetime], effort: int = EFFORT) -> MemoryPlan:
    """Offsets at which no two buffers that live at one time share a byte, with a small peak.

    First best fit on a skyline (after Burke, Kendall and Whitwell 2004), then first fit in several orders and a local
    search, then, for at most 1,024 buffers, branch and bound (after Moffitt, "MiniMalloc", ASPLOS 2023), which may
    prove that there is no lower peak. All stop at the lower bound or when ``effort`` is used up. The result depends on
    the lifetimes alone.

    Args:
        lifetimes: sizes are rounded up to their alignment.
        effort: bounds the search, in visits of a buffer.

    Raises:
        InputError: a negative size, times out of order, an alignment that is no power of two, an overflow.
    """
    count = len(lifetimes)
    table = ffi.new("df_lifetime[]", max(count, 1))
    for entry, life in zip(table, lifetimes, strict=False):
        entry.start, entry.stop, entry.bytes = life.start, life.stop, life.bytes
        entry.alignment, entry.fixed = life.alignment, -1
    offsets = ffi.new("int64_t[]", max(count, 1))
    peak, bound, error = ffi.new("int64_t *"), ffi.new("int64_t *"), ffi.new("df_error *")
    status = lib.df_plan_offsets(count, table, effort, offsets, peak, bound, error)
    if status:
        text = ffi.string(error.text).decode("utf-8", "replace")
        raise (OutOfMemoryError if status == lib.DF_OUT_OF_MEMORY else InputError)(f"memory plan: {text}")
    return MemoryPlan(tuple(ffi.unpack(offsets, count)) if count else (), int(peak[0]), int(bound[0]))


@contextmanager
def values_apart(*, in_place: bool = False) -> Iterator[None]:
    """Plans that are made in this block, by this thread, give each value memory of its own, between bytes of nobody.

    They take more memory; a kernel that writes outside of its operands is seen (``dataflow.execute.canaries``).

    Args:
        in_place: results still take the bytes of operands that their kernels may overwrite.
    """
    apart, shared = _apart.set(True), _in_place.set(in_place)
    try:
        yield
    finally:
        _apart.reset(apart)
        _in_place.reset(shared)


def lie_apart() -> bool:
    """Whether plans that are made now give each value memory of its own."""
    return _apart.get()


def share_operands() -> bool:
    """Whether results of plans that are made now take the bytes of operands that their kernels may overwrite."""
    return _in_place.get()


def offsets_apart(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Offsets at which no two buffers share a page, whenever they live, with a ``PAGE`` of nobody around each.

    A buffer ends where its last page does, as far as its alignment allows: reads and writes behind it leave the page.
    """
    offsets = []
    end = PAGE
    for life in lifetimes:
        behind = end + -(-max(life.bytes, 1) // PAGE) * PAGE
        offsets.append(behind - -(-life.bytes // life.alignment) * life.alignment)
        end = behind + PAGE
    return MemoryPlan(tuple(offsets), end if offsets else 0, end if offsets else 0)
