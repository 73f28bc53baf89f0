"""Lowered items -> when each base tensor is alive, and which of them share bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace

from ..ir.lowered import BaseTensor, LoweredItem, LoweredNode, Move, Storage
from ..ir.plan import Arena, Item, Segment, operands_of


def lifetimes(items: Sequence[LoweredItem], assigned: Container[BaseTensor]) -> dict[BaseTensor, tuple[int, int]]:
    """First and last use of each base tensor, by index of item; ``assigned`` base tensors have an offset already."""
    found: dict[BaseTensor, tuple[int, int]] = {}
    for time, item in enumerate(items):
        storages = [item.source, item.target] if isinstance(item, Move) else [*item.inputs, *item.outputs]
        for storage in storages:
            if storage is not None and storage.base not in assigned:
                found[storage.base] = (found.get(storage.base, (time,))[0], time)
    return found


def share_in_place(
    items: Sequence[LoweredItem],
    assigned: Container[BaseTensor],
    passing: Container[BaseTensor],
    alive: dict[BaseTensor, tuple[int, int]],
) -> dict[BaseTensor, BaseTensor]:
    """Results that take the bytes of an operand that dies where they are computed.

    Args:
        items: in order.
        assigned: base tensors that have an offset already.
        passing: others that may be read when all items have run; nothing takes their bytes.
        alive: of the others; the life of a base tensor whose bytes are shared is prolonged.

    Returns:
        The base tensor that owns the bytes, for each that has none of its own.
    """
    owner: dict[BaseTensor, BaseTensor] = {}
    ends = {base: last for base, (_, last) in alive.items()}  # of the base tensor itself, not of its bytes
    for time, item in enumerate(items):
        if not isinstance(item, LoweredNode) or not item.kernel.inplace:
            continue
        taken: set[BaseTensor] = set()
        for result, operand in item.kernel.inplace:
            if result >= len(item.outputs) or operand >= len(item.inputs):
                continue
            out, source = item.outputs[result], item.inputs[operand]
            if out is None or source is None or out.base in assigned or out.base in owner:
                continue
            if source.base in assigned or source.base in passing or ends[source.base] != time or source.base in taken:
                continue
            readers = sum(s is not None and s.base is source.base for s in item.inputs)
            if readers == 1 and _same_bytes(out, source) and alive[out.base][0] == time:
                base = owner.get(source.base, source.base)
                owner[out.base] = base
                alive[base] = (alive[base][0], max(alive[base][1], alive[out.base][1]))
                taken.add(source.base)
    return owner


def _same_bytes(out: Storage, source: Storage) -> bool:
    """True when a whole base tensor has the size and layout of another one, or of what that begins with."""
    return (
        source.offset == out.offset == 0
        and source.type.sizes == out.type.sizes
        and source.type.nbytes == out.type.nbytes
        and source.base.type.nbytes >= out.base.type.nbytes
        and source.strides == out.strides
        and source.base.memory == out.base.memory
    )


Touched = set[tuple[int, int]]
"""The values that an item reads or writes, by number, each with the arena in which it lies."""


def touched_by(item: Item) -> Touched:
    """What an item reads or writes, in bodies too."""
    return {(o.value, o.arena) for o in operands_of(item)}


def with_live_values(items: Sequence[Item], touched: Sequence[Touched], arenas: Sequence[Arena]) -> list[Item]:
    """The items of a plan, each segment with the values that outlive it: others read them, or their memory is kept.

    Args:
        items: in order.
        touched: by each of them.
        arenas: of the plan.
    """
    readers = Counter(value for values in touched for value in {v for v, _ in values})

    def live(values: Touched) -> frozenset[int]:
        return frozenset(v for v, arena in values if readers[v] > 1 or arena < 0 or arenas[arena].kind != "arena")

    return [
        replace(item, live=live(values)) if isinstance(item, Segment) else item
        for item, values in zip(items, touched, strict=True)
    ]
