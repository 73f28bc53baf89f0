"""Lowered items -> when each base tensor is alive, and which base tensors share a place."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..ir.lowered import BaseTensor, LoweredItem, LoweredNode, Move, Storage


def lifetimes(items: Sequence[LoweredItem], placed: Container[BaseTensor]) -> dict[BaseTensor, tuple[int, int]]:
    """First and last use of each base tensor, by index of item; ``placed`` base tensors have a place already."""
    found: dict[BaseTensor, tuple[int, int]] = {}
    for time, item in enumerate(items):
        storages = [item.source, item.target] if isinstance(item, Move) else [*item.inputs, *item.outputs]
        for storage in storages:
            if storage is not None and storage.base not in placed:
                found[storage.base] = (found.get(storage.base, (time,))[0], time)
    return found


def share_in_place(
    items: Sequence[LoweredItem], placed: Container[BaseTensor], alive: dict[BaseTensor, tuple[int, int]]
) -> dict[BaseTensor, BaseTensor]:
    """Results that take the place of an operand that dies where they are computed.

    Args:
        items: in order.
        placed: base tensors that have a place already.
        alive: of the others; the life of a base tensor whose place is shared is prolonged.

    Returns:
        The base tensor that owns the bytes, for each that has none of its own.
    """
    owner: dict[BaseTensor, BaseTensor] = {}
    ends = {base: last for base, (_, last) in alive.items()}  # of the base tensor itself, not of its place
    for time, item in enumerate(items):
        if not isinstance(item, LoweredNode) or not item.kernel.inplace:
            continue
        taken: set[BaseTensor] = set()
        for result, operand in item.kernel.inplace:
            if result >= len(item.outputs) or operand >= len(item.inputs):
                continue
            out, source = item.outputs[result], item.inputs[operand]
            if out is None or source is None or out.base in placed or out.base in owner:
                continue
            if source.base in placed or ends[source.base] != time or source.base in taken:
                continue
            readers = sum(s is not None and s.base is source.base for s in item.inputs)
            if readers == 1 and _same_bytes(out, source) and alive[out.base][0] == time:
                place = owner.get(source.base, source.base)
                owner[out.base] = place
                alive[place] = (alive[place][0], max(alive[place][1], alive[out.base][1]))
                taken.add(source.base)
    return owner


def _same_bytes(out: Storage, source: Storage) -> bool:
    """True when both are whole base tensors of one size and layout."""
    return (
        source.offset == 0
        and source.type.sizes == out.type.sizes
        and source.type.nbytes == out.type.nbytes
        and source.base.type.nbytes == out.base.type.nbytes
        and source.strides == out.strides
        and source.base.memory == out.base.memory
    )
