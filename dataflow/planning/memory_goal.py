"""How much memory a training step may take for its values, and the plan that keeps to it at least cost."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..host import checks
from ..host.limits import poll
from ..ir.lowered import Lowered, Move
from ..ir.plan import Plan
from .budget import size
from .evictions import Setting, evicting
from .offsets import lie_apart
from .recompute import repeating
from .schedule import Schedule, cost_of, plain, profile, trimmed, with_extra
from .work import Work, alike, work_of

FREE = 0.01  # of a step's work: what computing again may cost where no budget is given
FREE_FROM = 8 << 20  # bytes of an arena below which nothing is computed again without a budget
GAIN = 0.98  # of the arena: what must be reached for that
MOST = 1.0  # of a step's work: what computing again may cost at all
SETTINGS = (
    *(Setting(power, dependents, 64) for power in (0.5, 1.0, 0.0) for dependents in (False, True)),
    Setting(2.0, False, 64),
    Setting(0.5, False, 8),
    Setting(1.0, True, 20),
)
MARGINS = (1.0, 0.95)  # of the limit: schedules for less are trimmed to it
EFFORT = 4_000  # items that are run through per limit, at least with the first settings
TRIES = 8
# Where there is no budget planning takes little longer, and what is computed again is cheap by itself.
FREE_SETTINGS = tuple(Setting(power, False, 0) for power in (0.5, 1.0, 0.0))
FREE_TRIES, FREE_EFFORT = 6, 15_000
TRIMMED = 4  # of the schedules found, the cheapest
ALIKE = 2  # times more or less memory than at the sizes that were searched
KEPT = 16  # programs of which it is known what a search found
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class MemoryGoal:
    """What the arena of a training step may take.

    Attributes:
        fraction: of what is needed where nothing is computed again.
        bytes: instead of a fraction; neither: whatever costs at most ``FREE``.
        as_before: what was computed again at the sizes searched last is computed again, whatever it gains at these.
    """

    fraction: float | None = None
    bytes: int | None = None
    as_before: bool = False

    @property
    def is_budget(self) -> bool:
        """Whether somebody said how much there is."""
        return self.fraction is not None or self.bytes is not None

    def of(self, peak: int) -> int | None:
        """The budget where ``peak`` bytes are needed without computing again; None: whatever costs little."""
        return self.bytes if self.fraction is None else int(self.fraction * peak)


def memory_goal(memory: object) -> MemoryGoal:
    """The goal that a user names.

    Args:
        memory: None; a number of bytes, also as text with K, M or G; ``"0.5x"``: so much of what is needed otherwise.

    Raises:
        InputError: it is something else.
    """
    if memory is None:
        return MemoryGoal()
    expected = f'memory is {checks.shown(memory)}; expected bytes above 0, "200M" or a fraction as "0.5x"'
    if isinstance(memory, str):
        fraction = re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?|\.\d{1,9})x", memory)
        if fraction is not None and float(fraction[1]) > 0:
            return MemoryGoal(fraction=float(fraction[1]))
        number = re.fullmatch(r"(\d{1,18})([KMG]?)", memory)
        if number is None or not int(number[1]):
            raise InputError(expected)
        return MemoryGoal(bytes=int(number[1]) * _UNITS[number[2]])
    if isinstance(memory, bool) or not hasattr(memory, "__index__") or int(memory.__index__()) <= 0:
        raise InputError(expected)
    return MemoryGoal(bytes=int(memory.__index__()))


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a search without a budget found for one size of a program.

    Attributes:
        peak: scratch bytes where nothing is computed again.
        work: what was searched.
        schedule: None: to compute something again gained too little.
    """

    peak: int
    work: Work
    schedule: Schedule | None


class Searches:
    """What searches without a budget found, by the program: a new size isn't searched while its memory is like theirs.

    A search takes as long as all else of a plan, and what is worth being computed again rarely depends on the size.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], _Found] = {}

    def known(self, lowered: Lowered, peak: int) -> _Found | None:
        """What was found for the same items, whose plan took at least half of ``peak`` bytes and at most twice."""
        found = self.last(lowered)
        return found if found is not None and found.peak // ALIKE <= peak <= found.peak * ALIKE else None

    def last(self, lowered: Lowered) -> _Found | None:
        """What was found last for the same items, whatever memory their plan took."""
        return self._found.get(_names(lowered))

    def note(self, lowered: Lowered, found: _Found) -> None:
        """Keeps what was found, for the ``KEPT`` programs searched last."""
        names = _names(lowered)
        self._found.pop(names, None)
        self._found[names] = found
        while len(self._found) > KEPT:
            del self._found[next(iter(self._found))]


def _names(lowered: Lowered) -> tuple[str, ...]:
    return tuple([item.name if isinstance(item, Move) else item.node.name for item in lowered.items])


def planned_within(
    goal: MemoryGoal, lowered: Lowered, make: Callable[[Lowered], Plan], searches: Searches
) -> tuple[Lowered, Plan]:
    """The cheapest plan found that keeps to a goal, and what it is made from.

    Args:
        goal: of the plan's scratch memory.
        lowered: every item once.
        make: makes plans.
        searches: what was found for other sizes; is added to.

    Raises:
        InputError: the goal can't be reached; says what can.
    """
    plan = make(lowered)
    if goal.as_before:
        before, work = searches.last(lowered), work_of(lowered)
        if before is None or before.schedule is None or not alike(before.work, work):
            return lowered, plan
        return _Search(lowered, plan, with_extra(work, plan), make).planned(before.schedule)
    budget = goal.of(plan.peak_bytes)
    if lie_apart() or plan.peak_bytes <= (FREE_FROM if budget is None else budget):
        return lowered, plan
    if budget is None and len(lowered.items) > FREE_EFFORT:  # the search takes seconds: only for who asks for it
        return lowered, plan
    known = searches.known(lowered, plan.peak_bytes) if budget is None else None
    if known is not None and known.schedule is None:
        return lowered, plan
    work = work_of(lowered)
    search = _Search(lowered, plan, with_extra(work, plan), make)
    if budget is not None:
        return search.within(budget)
    if known is not None and alike(known.work, work):
        made = search.gaining(known.schedule)
        if made[1].again is not None:
            return made
    schedule = search.free()
    searches.note(lowered, _Found(plan.peak_bytes, work, schedule))
    return search.gaining(schedule)


class _Search:
    def __init__(self, lowered: Lowered, plan: Plan, work: Work, make: Callable[[Lowered], Plan]) -> None:
        self.lowered, self.plan, self.work, self.make = lowered, plan, work, make
        self.peak = max(profile(work, plain(work)))
        count = max(3, EFFORT // len(work.costs))
        self.settings = [*itertools.islice(itertools.product(MARGINS, SETTINGS), count)]

    def free(self) -> Schedule | None:
        """That of least memory among those that cost little; None where it gains too little."""
        found, low, high = None, self.peak // 2, self.peak
        settings = FREE_SETTINGS[: FREE_EFFORT // len(self.work.costs)]
        for _ in range(FREE_TRIES):
            limit = (low + high) // 2
            schedule = self.cheapest(limit, FREE, [(1.0, how) for how in settings])
            if schedule is None:
                low = limit
            else:
                found, high = schedule, max(profile(self.work, schedule))
        return found if found is not None and high < GAIN * self.peak else None

    def gaining(self, schedule: Schedule | None) -> tuple[Lowered, Plan]:
        """What a schedule gives, perhaps one of other sizes; where it costs or gains not enough: every item once."""
        once = self.lowered, self.plan
        if schedule is None or cost_of(self.work, schedule) > (1 + FREE) * self.work.cost:
            return once
        if max(profile(self.work, schedule)) >= GAIN * self.peak:
            return once
        made = self.planned(schedule)
        return made if made[1].peak_bytes < GAIN * self.plan.peak_bytes else once

    def within(self, budget: int) -> tuple[Lowered, Plan]:
        """The least cost that fits; schedules are made for less than the budget until the arena fits too."""
        limit = budget
        for _ in range(TRIES):
            schedule = self.cheapest(limit, MOST, self.settings)
            if schedule is None:
                break
            made = self.planned(schedule)
            if made[1].peak_bytes <= budget:
                return made
            limit -= max(made[1].peak_bytes - budget, limit // 200)
        made = self.least(budget)
        if made[1].peak_bytes <= budget:
            return made
        again = made[1].again
        raise InputError(
            f"memory: {size(budget)} ({budget} bytes) are too few for a training step on such batches: it takes at "
            f"least {size(made[1].peak_bytes)} ({made[1].peak_bytes / self.plan.peak_bytes:.2f}x of what it takes "
            f"when nothing is computed again), at {0 if again is None else 100 * again.cost:.0f}% more work; "
            "give so much, or use smaller batches (with accumulate= the optimizer sees the same batch)"
        )

    def least(self, budget: int) -> tuple[Lowered, Plan]:
        """The least memory that is found at all, or the first that fits."""
        best = self.lowered, self.plan
        low, high = 0, self.peak
        for _ in range(TRIES):
            limit = (low + high) // 2
            schedule = self.cheapest(limit, MOST, self.settings)
            if schedule is None:
                low = limit
                continue
            high = max(profile(self.work, schedule))
            made = self.planned(schedule)
            if made[1].peak_bytes < best[1].peak_bytes:
                best = made
            if made[1].peak_bytes <= budget:
                break
        return best

    def cheapest(self, limit: int, most: float, settings: Sequence[tuple[float, Setting]]) -> Schedule | None:
        """The schedule of least cost that is found to need at most ``limit`` bytes; None where none is found.

        Args:
            limit: bytes.
            most: what may be computed again at most, of a step's work.
            settings: of the schedules that are made, each for a part of ``limit``.
        """
        work = self.work
        found = []
        for margin, how in settings:
            poll("the plan of a training step")
            schedule = evicting(work, int(limit * margin), int(most * work.cost), how)
            if schedule is not None and max(profile(work, schedule)) <= limit:
                found.append(schedule)
        found.sort(key=functools.partial(cost_of, work))
        return min(
            (trimmed(work, one, limit) for one in found[:TRIMMED]), key=functools.partial(cost_of, work), default=None
        )

    def planned(self, schedule: Schedule) -> tuple[Lowered, Plan]:
        lowered = repeating(self.lowered, self.work, schedule, self.plan.peak_bytes)
        return lowered, self.make(lowered)
