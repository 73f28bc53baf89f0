"""Lowered items -> when each root is alive, and which roots share a place."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..ir.lowered import LoweredItem, LoweredNode, Move, Root, Storage


def lifetimes(items: Sequence[LoweredItem], placed: Container[Root]) -> dict[Root, tuple[int, int]]:
    """First and last use of each root, by index of item; ``placed`` roots have a place already."""
    found: dict[Root, tuple[int, int]] = {}
    for time, item in enumerate(items):
        storages = [item.source, item.target] if isinstance(item, Move) else [*item.inputs, *item.outputs]
        for storage in storages:
            if storage is not None and storage.root not in placed:
                found[storage.root] = (found.get(storage.root, (time,))[0], time)
    return found


def share_in_place(
    items: Sequence[LoweredItem], placed: Container[Root], alive: dict[Root, tuple[int, int]]
) -> dict[Root, Root]:
    """Results that take the place of an operand that dies where they are computed.

    Args:
        items: in order.
        placed: roots that have a place already.
        alive: of the others; the life of a root whose place is shared is prolonged.

    Returns:
        The root that owns the place, for each root that has none of its own.
    """
    owner: dict[Root, Root] = {}
    ends = {root: last for root, (_, last) in alive.items()}  # of the root itself, not of its place
    for time, item in enumerate(items):
        if not isinstance(item, LoweredNode) or not item.kernel.inplace:
            continue
        taken: set[Root] = set()
        for result, operand in item.kernel.inplace:
            if result >= len(item.outputs) or operand >= len(item.inputs):
                continue
            out, source = item.outputs[result], item.inputs[operand]
            if out is None or source is None or out.root in placed or out.root in owner:
                continue
            if source.root in placed or ends[source.root] != time or source.root in taken:
                continue
            readers = sum(s is not None and s.root is source.root for s in item.inputs)
            if readers == 1 and _same_bytes(out, source) and alive[out.root][0] == time:
                place = owner.get(source.root, source.root)
                owner[out.root] = place
                alive[place] = (alive[place][0], max(alive[place][1], alive[out.root][1]))
                taken.add(source.root)
    return owner


def _same_bytes(out: Storage, source: Storage) -> bool:
    """True when both are whole roots of one size and layout."""
    return (
        source.offset == 0
        and source.type.sizes == out.type.sizes
        and source.type.nbytes == out.type.nbytes
        and source.root.type.nbytes == out.root.type.nbytes
        and source.strides == out.strides
        and source.root.memory == out.root.memory
    )
