"""Calls between the steps of a plan: what reads a value of a step while later ones still run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.plan import Item, Plan, Segment, operands_of
from .bound_items import in_sequence

Position = tuple[int, int]  # of an item in the plan, and of a step in it


@dataclass(frozen=True, slots=True)
class Marks:
    """Where a run of a whole plan calls a function.

    Attributes:
        after: positions behind which it is called, rising.
        reached: is called with the number of the mark, by the thread that runs the plan.
        begin: is called before a run that is profiled.
        end: is called behind it; gives name, begin and end of what was done meanwhile, by ``time.perf_counter``.
    """

    after: tuple[Position, ...]
    reached: Callable[[int], None]
    begin: Callable[[], None] = lambda: None
    end: Callable[[], Sequence[tuple[str, float, float]]] = tuple

    def in_items(self, plan: Plan) -> tuple[Plan, Callable[[Sequence[Any]], list[Any]]]:
        """The plan with segments that end at the marks, and what arranges its bound items with the calls between."""
        items: list[Item] = []
        begins: list[int] = []  # of the plan's items among those
        ends: list[int] = []  # of the items before each mark
        for index, item in enumerate(plan.items):
            begins.append(len(items))
            own = [step for at, step in self.after if at == index]
            if isinstance(item, Segment):
                borders = sorted({0, len(item.steps), *(step + 1 for step in own)})
                ends += [len(items) + borders.index(step + 1) for step in own]
                items += [Segment(item.device, item.steps[a:b]) for a, b in itertools.pairwise(borders)]
            else:
                items.append(item)
                ends += [len(items)] * len(own)
        begins.append(len(items))
        ranges = {
            name: dataclasses.replace(found, start=begins[found.start], stop=begins[found.stop])
            for name, found in plan.ranges.items()
        }
        return dataclasses.replace(plan, items=tuple(items), ranges=ranges), lambda bound: self._arranged(bound, ends)

    def _arranged(self, bound: Sequence[Any], ends: Sequence[int]) -> list[Any]:
        found: list[Any] = []
        done = 0
        for number, end in enumerate(ends):
            found += [*bound[done:end], Call(self.reached, number)]
            done = end
        return in_sequence([*found, *bound[done:]])


class Call:
    """An item of a run that calls a function."""

    native = 0

    def __init__(self, reached: Callable[[int], None], number: int) -> None:
        self._reached, self._number = reached, number

    def run(self, slots: Any, count: int, cancel: Any, calls: Any) -> None:
        """Calls it."""
        self._reached(self._number)


def last_uses(plan: Plan, names: Collection[str]) -> Mapping[str, Position]:
    """The last step or transfer that reads or writes each of some stored tensors, or states in scratch memory."""
    arenas = {index: arena.name for index, arena in enumerate(plan.arenas) if arena.name in names}
    passing = {plan.kept[name].value: name for name in names if name in plan.kept}
    found: dict[str, Position] = {}
    for index, item in enumerate(plan.items):
        for number, step in enumerate(item.steps if isinstance(item, Segment) else [item]):
            for operand in operands_of(step):
                name = arenas.get(operand.arena) or passing.get(operand.value)
                if name is not None:
                    found[name] = index, number
    return found
