"""Three plans -> Series: whether plans for growing sizes are alike but for numbers that change in equal steps.

What decides about a plan are comparisons of sizes: which are equal, which is the larger, which divide. Sizes that are
equal in two plans of a series are equal in all, a comparison that holds in the first and the last holds between them,
and what divides two numbers that follow on each other divides any. So three plans say how those between are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ..ir.op import Attribute
from ..ir.operand import Operand
from ..ir.plan import Item, Plan, Segment, Step, Transfer
from ..ir.series import Series
from .verify import PlanViolation, check_plan


def series_of(first: Plan, second: Plan, last: Plan, count: int, *, bends: bool = False) -> Series | str:
    """The series of three plans, or why they are none.

    Args:
        first: for any sizes.
        second: for sizes that are a step from them.
        last: for sizes that are ``count`` steps from the first.
        count: at least two.
        bends: strides, bytes and starts of views may change in steps that grow evenly, as those of tensors of a size
            times itself do; for who compares a number between with a plan of its own, see ``runs_as``.
    """
    read = [_Numbers(plan) for plan in (first, second, last)]
    why = _uneven(read, (0, 1, count))
    bent = why == _NUMBER and bends and not any(isinstance(item, Transfer) for item in last.items)
    if bent:
        why = _bent(read, count)
    if why is not None:
        return why
    grows = all(x <= y for x, y in zip(read[0].rows, read[2].rows, strict=True))
    if not grows:  # where none shrinks, what lies apart in the last plan does in all: they live equally long
        return "a value is smaller in the last plan than in the first"
    moved = _moved(first, last)
    if read[0].has_bodies:
        try:
            check_plan(moved)
        except PlanViolation as error:
            return f"the first plan does not fit in the memory of the last: {error}"
    return Series(moved, last, count, _moved(second, last) if bent else None)


def runs_as(series: Series, t: int, plan: Plan) -> bool:
    """Whether number ``t`` of a series calls the kernels that a plan for the same sizes calls, on operands alike.

    Results are then the same bit for bit. What runs again is left out: it gives what ran before.
    """
    between = series.first if series.second is None else series.second
    ours = [*zip(_calls(series.first), _calls(between), _calls(series.plan), strict=True)]
    theirs = _calls(plan)
    if len(theirs) != len(ours):
        return False
    for (first, second, last), other in zip(ours, theirs, strict=True):
        if not (isinstance(first, Step) and isinstance(second, Step) and isinstance(last, Step)):
            if type(last) is not type(other):
                return False
            continue
        if not isinstance(other, Step):
            return False
        if last.body is not None or other.body is not None or last.kernel is not other.kernel:
            return False
        if len(last.inputs) != len(other.inputs) or len(last.outputs) != len(other.outputs):
            return False
        if [p is None for p in last.prepacks] != [p is None for p in other.prepacks]:
            return False
        for a, b, c, d in zip(_operands(first), _operands(second), _operands(last), _operands(other), strict=True):
            if (c is None) != (d is None):
                return False
            if a is not None and b is not None and c is not None and d is not None:
                sizes = series.numbers(a.type.sizes, c.type.sizes, t)
                layout = series.layout(a, None if series.second is None else b, c, t)
                if (c.type.dtype, sizes, layout) != (d.type.dtype, d.type.sizes, (*d.strides, d.origin)):
                    return False
        if not _same_attributes(series, t, first, last, other):
            return False
    return True


def _calls(plan: Plan) -> list[Item | Step]:
    """The steps of a plan and its other items, in order, but for what runs again."""
    found: list[Item | Step] = []
    for item in plan.items:
        found += item.steps if isinstance(item, Segment) else [item]
    named = plan.again.nodes if plan.again is not None else ()
    again = {name for name, _ in named}
    return [call for call in found if not (isinstance(call, Step) and call.node.name in again)]


def _operands(step: Step) -> tuple[Operand | None, ...]:
    return (*step.inputs, *step.outputs)


def _same_attributes(series: Series, t: int, first: Step, last: Step, other: Step) -> bool:
    for name, value in other.node.attributes.items():
        a, b = first.node.attributes.get(name), last.node.attributes.get(name)
        if a != b:
            several = tuple(x if isinstance(x, tuple) else (x,) for x in (a, b))
            if any(type(n) is not int for x in several for n in x):
                return False
            at = series.numbers(several[0], several[1], t)
            b = at if isinstance(b, tuple) else at[0]
        if repr(b) != repr(value):
            return False
    return True


def why_uneven(plans: Sequence[Plan], at: Sequence[int]) -> str | None:
    """Why plans that were made each by itself can't be of one series; None: they may be, but for what they folded.

    Args:
        plans: two or more.
        at: how many steps the sizes of each are from some others, rising.
    """
    return _uneven([_Numbers(plan) for plan in plans], at, bends=True)


def _bent(read: Sequence[_Numbers], count: int) -> str | None:
    """Why the first plan, the second and the last aren't of a series whose steps grow evenly."""
    if read[0].has_bodies:
        return "a number in a body does not change in equal steps"
    first, second, last = (np.array(one.numbers, np.int64) for one in read)
    rest = last - first - count * (second - first)
    if (rest[~np.array(read[0].bends, bool)] != 0).any():
        return "a size or attribute does not change in equal steps"
    if (rest % (count * (count - 1)) != 0).any():
        return "the steps in which a number changes do not grow evenly"
    rows = zip(*(one.rows for one in read), strict=True)
    if not all(a <= b and c - a >= count * (b - a) for a, b, c in rows):  # else one may be larger than in the last
        return "the bytes of a value grow in smaller and smaller steps"
    return None


def _uneven(read: Sequence[_Numbers], at: Sequence[int], *, bends: bool = False) -> str | None:
    for other in read[1:]:
        different = next((a for a, b in zip(read[0].alike, other.alike, strict=False) if a != b), None)
        if different is not None or len(other.alike) != len(read[0].alike):
            return f"the plans differ in more than numbers: {different}"
    found = [np.array(one.numbers, np.int64) for one in read]
    for numbers, t in zip(found, at, strict=True):
        if len(numbers) != len(found[0]):
            return "the plans differ in how many numbers they have"
        uneven = (numbers - found[0]) * (at[1] - at[0]) != (t - at[0]) * (found[1] - found[0])
        if (uneven & ~np.array(read[0].bends, bool) if bends else uneven).any():
            return _NUMBER
    return None


_NUMBER = "a number does not change in equal steps"


class _Numbers:
    """A plan as the numbers that may change in a series, and what may not, both in a fixed order."""

    def __init__(self, plan: Plan) -> None:
        self.alike: list[Any] = [(arena.name, arena.memory, arena.kind) for arena in plan.arenas]
        self.numbers: list[int] = []
        self.bends: list[bool] = []  # which of them may change in steps that grow
        self.rows: list[int] = []  # bytes of what lies in scratch memory, but for workspaces
        self.has_bodies = False
        self._workspaces: set[tuple[str, int]] = set()  # by name and offset
        self._free = [arena.kind == "arena" for arena in plan.arenas]
        for operands in (plan.inputs, plan.outputs, plan.kept):
            for name, operand in operands.items():
                self.alike.append(name)
                self._operand(operand)
        self.alike += [*plan.stored.items(), *((n, p.operand, p.source) for n, p in plan.prepacks.items())]
        self.alike += [(r.start, r.stop, r.outputs, r.slots) for r in plan.ranges.values()]
        for item in plan.items:
            self._item(item)
        for arena, rows in plan.lifetimes.items():
            for name, life, offset in rows:
                if (name, offset) not in self._workspaces:
                    self.alike.append((arena, name, life.start, life.stop, life.alignment))
                    self.rows.append(life.bytes)

    def _item(self, item: Item) -> None:
        self.alike.append(type(item).__name__)
        if isinstance(item, Segment):
            self.alike += [item.device, len(item.steps)]
            for step in item.steps:
                self._step(step)
        elif isinstance(item, Transfer):
            self.alike += [item.from_device, item.to_device]
            self._operand(item.source)
            self._operand(item.target)
        else:
            self.alike.append(item.device)

    def _step(self, step: Step) -> None:
        self.alike += [step.kernel, step.node.op, len(step.inputs), len(step.outputs)]
        self.alike.append(step.prepacks)
        if step.workspace is not None:
            self._workspaces.add((f"{step.node.name}:workspace", step.workspace.offset))
        for operand in (*step.inputs, *step.outputs):
            self._operand(operand)
        self._attributes(step.node.attributes if step.kernel is not None else MappingProxyType({}))
        if step.prepared is not None:
            requests = step.prepared.prepacks
            made = [None if not step.prepacks else prepack for prepack in step.prepacks or requests]
            for request, prepack in zip(requests, made, strict=True):
                self.alike.append((request.input, request.kind, request.bytes if prepack else None))
        if step.body is not None:
            body, self.has_bodies = step.body, True
            self.alike += [body.iterations, body.kind, body.when, len(body.steps)]
            for inner in body.steps:
                self._step(inner)

    def _operand(self, operand: Operand | None) -> None:
        if operand is None:
            self.alike.append(None)
            return
        # Where a base tensor lies in scratch memory is the last plan's to say.
        start = 0 if self._free[operand.arena] else operand.offset - operand.origin
        type_ = operand.type
        self.alike.append((operand.arena, start, operand.value, operand.buffer_stride, type_.dtype, type_.rank))
        self.numbers += [*type_.sizes, *operand.strides, operand.origin, operand.iteration_stride, operand.bytes]
        self.bends += [*[False] * type_.rank, *[True] * type_.rank, True, False, True]

    def _attributes(self, attributes: Mapping[str, Attribute]) -> None:
        for name, value in attributes.items():
            several = value if isinstance(value, tuple) else (value,)
            if all(type(number) is int for number in several):
                self.alike.append((name, len(several)))
                self.numbers += several
                self.bends += [False] * len(several)
            else:
                self.alike.append((name, repr(value)))


def _moved(plan: Plan, last: Plan) -> Plan:
    """The plan with the offsets of the last one."""

    def operand(mine: Operand | None, other: Operand | None) -> Operand | None:
        if mine is None or other is None:
            return mine
        return replace(mine, offset=other.offset - other.origin + mine.origin)

    def several(mine: tuple[Operand | None, ...], other: tuple[Operand | None, ...]) -> tuple[Operand | None, ...]:
        return tuple(operand(a, b) for a, b in zip(mine, other, strict=True))

    def step(mine: Step, other: Step) -> Step:
        body = mine.body
        if body is not None and other.body is not None:
            inner = tuple(step(a, b) for a, b in zip(body.steps, other.body.steps, strict=True))
            body = replace(body, steps=inner)
        inputs, outputs = several(mine.inputs, other.inputs), several(mine.outputs, other.outputs)
        return replace(mine, inputs=inputs, outputs=outputs, workspace=other.workspace, body=body)

    def item(mine: Item, other: Item) -> Item:
        if isinstance(mine, Segment) and isinstance(other, Segment):
            return replace(mine, steps=tuple(step(a, b) for a, b in zip(mine.steps, other.steps, strict=True)))
        if isinstance(mine, Transfer) and isinstance(other, Transfer):
            source, target = operand(mine.source, other.source), operand(mine.target, other.target)
            assert source is not None and target is not None
            return replace(mine, source=source, target=target)
        return mine

    slots = ("input", "output", "before", "after")
    arenas = tuple(a if a.kind in slots else b for a, b in zip(plan.arenas, last.arenas, strict=True))
    items = tuple(item(a, b) for a, b in zip(plan.items, last.items, strict=True))
    return replace(plan, items=items, arenas=arenas)
