"""States are computed in the bytes that they replace where nothing reads the old value later, and copied elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Set

from ..ir.graph import Node, State
from ..ir.kernel import HOST
from ..ir.lowered import BaseTensor, LoweredItem, LoweredNode, Move, Storage
from ..ir.operand import is_contiguous
from .storage import StorageTable


def alias_states(
    table: StorageTable, states: Iterable[State], claimed: Set[BaseTensor]
) -> list[tuple[BaseTensor, BaseTensor]]:
    """Pairs of base tensors (after, before) that share bytes; adds a copy where a state can't be computed there.

    ``claimed`` are the base tensors of results, which stay their own, and of other states.
    """
    found: list[tuple[BaseTensor, BaseTensor]] = []
    touches = _Touches(table.items)
    marker = Node(table.copy, "state", (), (), {})
    pending: list[tuple[Storage, Storage]] = []
    for state in states:
        owner = table.owners.get(state.before.name, HOST)
        before = table.initializer(state.before, owner)
        after = table.read(state.after, owner)
        if after == before:
            continue
        if after.base.memory != owner:
            device = next(d for d in table.devices if table.memory_of(d) == owner)
            after = table.transfer(after, owner, device, marker)
        taken = claimed | {base for base, _ in found}
        if after.base not in taken and _may_overwrite(after, before, touches):
            found.append((after.base, before.base))
        else:
            pending.append((after, before))
    # What reads the old value of another state is copied aside before any state is written.
    ready = []
    for after, before in pending:
        device = table.device_for(after.base)
        aside = table.fresh(after, marker, device) if after.base.kind == "stored" else after
        ready.append((aside, before))
    for after, before in ready:
        device = table.device_for(after.base)
        found.append((table.fresh(after, marker, device).base, before.base))
    return found


class _Touches:
    """The items that read or write each base tensor; items may still be added."""

    def __init__(self, items: list[LoweredItem]) -> None:
        self.items = items
        self._index: dict[BaseTensor, list[int]] = {}
        self._indexed = 0

    def of(self, base: BaseTensor) -> list[int]:
        """Positions of the items that read or write a base tensor."""
        for position in range(self._indexed, len(self.items)):
            item = self.items[position]
            found = (item.source, item.target) if isinstance(item, Move) else (*item.inputs, *item.outputs)
            for storage in found:
                if storage is not None:
                    self._index.setdefault(storage.base, []).append(position)
        self._indexed = len(self.items)
        return self._index.get(base, [])


def _may_overwrite(after: Storage, before: Storage, touches: _Touches) -> bool:
    """Whether ``after`` can be computed in the bytes of ``before``."""
    base = after.base
    if base.kind != "computed" or after.offset or base.type.nbytes != before.base.type.nbytes:
        return False
    if not is_contiguous(after.type.sizes, after.strides):
        return False
    written = False
    for at_item in sorted({*touches.of(base), *touches.of(before.base)}):
        item = touches.items[at_item]
        reads = [item.source] if isinstance(item, Move) else [s for s in item.inputs if s is not None]
        if written and any(s.base is before.base for s in reads):
            return False
        results = [item.target] if isinstance(item, Move) else item.outputs
        if any(s is not None and s.base is base for s in results):
            written = True
            at = [i for i, s in enumerate(reads) if s.base is before.base]
            if at and not _overwrites(item, base, before, len(at)):
                return False
    return written


def _overwrites(item: LoweredItem, base: BaseTensor, before: Storage, count: int) -> bool:
    return (
        isinstance(item, LoweredNode)
        and count == 1
        and any(
            result < len(item.outputs)
            and operand < len(item.inputs)
            and (out := item.outputs[result]) is not None
            and out.base is base
            and item.inputs[operand] == before
            for result, operand in item.kernel.inplace
        )
    )
