"""A lowered graph some of whose items run twice, so that what they compute need not stay in memory between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir.lowered import BaseTensor, Loop, Lowered, LoweredItem, LoweredNode, Move, Storage
from ..ir.plan import Again
from .schedule import Schedule, cost_of, written_over
from .work import Work, inputs_again, operands_of, read_again

AGAIN = "again"  # the end of the names of nodes that run a second time, and of what they compute


def repeating(lowered: Lowered, work: Work, schedule: Schedule, peak: int) -> Lowered:
    """The lowered graph whose items run as a schedule says; results are the same bit for bit.

    An item that runs again is the same kernel on the same contents. It stands before the item that reads it, in the
    program of that one.

    Args:
        lowered: with every item once.
        work: its tables.
        schedule: of these items.
        peak: scratch bytes of its plan, to be reported.
    """
    number = max((base.number for item in lowered.items for base in _bases(item)), default=0)
    index = {base: at for at, base in enumerate(work.bases)}
    current: dict[BaseTensor, BaseTensor] = {}  # what holds the contents of a base tensor, where that is another
    items: list[LoweredItem] = []
    position: list[int] = [0] * len(lowered.items)  # of the first run of each item
    rows: list[tuple[str, int]] = []
    times: dict[int, int] = {}
    for run, over in zip(schedule, written_over(work, schedule), strict=True):
        item = lowered.items[run.item]
        if run.first:
            position[run.item] = len(items)
            items.append(_moved(item, current))
            continue
        times[run.item] = times.get(run.item, 0) + 1
        end = f"/{AGAIN}{times[run.item] if times[run.item] > 1 else ''}"
        results: dict[BaseTensor, BaseTensor] = {}
        for storage in operands_of(item)[1]:
            old = None if storage is None else storage.base
            if old is None or old in results:
                continue
            if old not in index or (work.makers[index[old]][0] == run.item and index[old] not in over):
                number += 1
                results[old] = BaseTensor(number, old.name + end, old.type, old.memory, "computed")
            else:
                results[old] = current.get(old, old)
        items.append(_again(item, end, current, results))
        current |= {old: new for old, new in results.items() if index.get(old, -1) in run.results}
        named = item.name if isinstance(item, Move) else item.node.name
        rows.append((named + end, sum(work.sizes[base] for base in run.results)))
    stages = tuple(replace(s, stop=position[s.stop - 1] + 1 if s.stop else 0) for s in lowered.stages)
    again = Again(tuple(rows), cost_of(work, schedule) / max(work.cost, 1) - 1, peak)
    return replace(lowered, items=tuple(items), stages=stages, again=again)


def _again(
    item: LoweredItem, end: str, current: Mapping[BaseTensor, BaseTensor], results: Mapping[BaseTensor, BaseTensor]
) -> LoweredItem:
    """An item that computes ``results`` from the newest contents of what it reads; ``end`` is that of its name."""
    read = read_again(item)
    assert read is not None
    inputs = tuple(_storage(s, current) for s in read)
    outputs = tuple(_storage(s, results) for s in operands_of(item)[1])
    if isinstance(item, Move):
        source, target = inputs[0], outputs[0]
        assert source is not None and target is not None
        return replace(item, source=source, target=target, name=item.name + end)
    assert isinstance(item, LoweredNode)
    node = replace(item.node, name=item.node.name + end, inputs=inputs_again(item.node, len(inputs)))
    return replace(item, node=node, inputs=inputs, outputs=outputs)


def _bases(item: LoweredItem) -> list[BaseTensor]:
    """Every base tensor of an item, in the bodies of loops too."""
    inputs, outputs = operands_of(item)
    found = [s.base for s in (*inputs, *outputs) if s is not None]
    for inner in item.items if isinstance(item, Loop) else ():
        found += _bases(inner)
    return found


def _moved(item: LoweredItem, where: Mapping[BaseTensor, BaseTensor]) -> LoweredItem:
    """The item on the newest contents of what it reads and writes."""
    inputs, outputs = operands_of(item)
    if all(s is None or s.base not in where for s in (*inputs, *outputs)):
        return item
    if isinstance(item, Move):
        return replace(item, source=_there(item.source, where), target=_there(item.target, where))
    if isinstance(item, LoweredNode):
        moved, written = (tuple(_storage(s, where) for s in side) for side in (item.inputs, item.outputs))
        return replace(item, inputs=moved, outputs=written)
    items = tuple(_moved(inner, where) for inner in item.items)
    sides = {name: tuple(_there(s, where) for s in getattr(item, name)) for name in ("inputs", "outputs", "control")}
    counts = tuple(_there(s, where) for s in item.counts)
    return replace(item, items=items, counts=counts, **sides)  # type: ignore[arg-type]


def _storage(storage: Storage | None, where: Mapping[BaseTensor, BaseTensor]) -> Storage | None:
    return None if storage is None else _there(storage, where)


def _there(storage: Storage, where: Mapping[BaseTensor, BaseTensor]) -> Storage:
    base = where.get(storage.base)
    return storage if base is None else replace(storage, base=base)
