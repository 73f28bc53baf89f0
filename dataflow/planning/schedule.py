"""Orders in which items run, some of them twice: how much memory such an order needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir.plan import Plan
from .work import Work

MOST_VISITS = 400_000  # of runs, while a schedule is trimmed: some hundred milliseconds


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run of an item in a schedule.

    Attributes:
        item: its index.
        results: the base tensors whose contents later runs read from this one; for the first run all that it writes.
        first: of this item; later ones compute it again.
    """

    item: int
    results: tuple[int, ...]
    first: bool


Schedule = tuple[Run, ...]


def plain(work: Work) -> Schedule:
    """Every item once."""
    return tuple(Run(index, results, True) for index, results in enumerate(work.writes))


def with_extra(work: Work, plan: Plan) -> Work:
    """The tables with what ``plan``, made from the same items, needs beside base tensors at each item."""
    count = len(work.costs)
    change = [0] * (count + 1)
    for rows in plan.lifetimes.values():
        for _, life, _ in rows:
            size = -(-life.bytes // life.alignment) * life.alignment
            change[life.start] += size
            change[life.stop] -= size
    counted, total, extra = profile(work, plain(work)), 0, []
    for index in range(count):
        total += change[index]
        extra.append(max(0, total - counted[index]))
    return replace(work, extra=tuple(extra))


def written_over(work: Work, schedule: Sequence[Run]) -> list[frozenset[int]]:
    """Of each run that computes again the results that are still in memory for later runs, beside those it is run for.

    It writes the same bits over them: they would need memory of their own otherwise.
    """
    found: list[frozenset[int]] = []
    wanted: set[int] = set()  # what later runs read
    for run in reversed(schedule):
        read = work.reads[run.item] if run.first else work.again[run.item]
        assert read is not None
        others = () if run.first else work.same[run.item]
        found.append(frozenset(b for b in others if b in wanted and b not in run.results and b not in read))
        wanted.difference_update(base for base in run.results if _begins(work, run.item, base))
        wanted.update(read)
    found.reverse()
    return found


def profile(work: Work, schedule: Sequence[Run]) -> list[int]:
    """Bytes in use at each run.

    As the planner will find: a tensor lives from its first write to its last use, a run that computes again has
    tensors of its own but for those that it writes over, and a result takes the bytes of an operand that dies there
    where its kernel allows it.
    """
    births: list[list[int]] = [[] for _ in schedule]  # sizes
    last: list[int] = []  # by version: the last run that uses it
    size: list[int] = []
    current: dict[int, int] = {}  # base tensor -> version
    of: list[tuple[dict[int, int], dict[int, int]]] = []
    over = written_over(work, schedule)
    for time, run in enumerate(schedule):
        read = work.reads[run.item] if run.first else work.again[run.item]
        assert read is not None
        found = {base: current[base] for base in read}
        written: dict[int, int] = {}
        for base in work.writes[run.item]:
            stays = run.first or base in over[time] or not _begins(work, run.item, base)
            version = current.get(base) if stays else None
            if version is None:
                version = len(size)
                size.append(work.sizes[base])
                last.append(time)
                births[time].append(version)
            written[base] = version
            if base in run.results:
                current[base] = version
        for version in (*found.values(), *written.values()):
            last[version] = time
        of.append((found, written))
    # A result that takes the bytes of its operand isn't counted again.
    in_use, used = 0, []
    dying: list[list[int]] = [[] for _ in schedule]
    for version, time in enumerate(last):
        dying[time].append(version)
    for time, run in enumerate(schedule):
        found, written = of[time]
        in_use += sum(size[version] for version in births[time])
        taken: set[int] = set()
        spared = 0
        for result, operand in work.shared[run.item]:
            source, out = found.get(operand), written.get(result)
            if source is None or out is None or last[source] != time or source in taken or out not in births[time]:
                continue
            taken.add(source)
            spared += work.sizes[operand]
        used.append(in_use - spared + work.extra[run.item])
        in_use -= sum(size[version] for version in dying[time])
    return used


def _begins(work: Work, item: int, base: int) -> bool:
    """Whether an item is the first that writes a base tensor."""
    return work.makers[base][0] == item


def cost_of(work: Work, schedule: Sequence[Run]) -> int:
    """Of all runs."""
    return sum(work.costs[run.item] for run in schedule)


def trimmed(work: Work, schedule: Schedule, limit: int) -> Schedule:
    """The schedule without runs that compute again what may as well stay in memory, the most costly first.

    Args:
        work: the items.
        schedule: needs at most ``limit`` bytes, as does what is returned.
        limit: bytes.
    """
    schedule = _needed(work, schedule)
    tries = max(8, MOST_VISITS // len(schedule))
    repeated = [run for run in schedule if not run.first and all(len(work.makers[base]) == 1 for base in run.results)]
    for run in sorted(repeated, key=lambda run: -work.costs[run.item])[:tries]:
        if any(run is other for other in schedule):
            shorter = _needed(work, [other for other in schedule if other is not run])
            if max(profile(work, shorter)) <= limit:
                schedule = shorter
    return schedule


def _needed(work: Work, schedule: Sequence[Run]) -> Schedule:
    """The schedule without runs that compute again what nobody reads."""
    kept: list[Run] = []
    wanted: set[int] = set()
    for run in reversed(schedule):
        read = work.reads[run.item]
        if not run.first:
            if wanted.isdisjoint(run.results):
                continue
            again = work.again[run.item]
            assert again is not None
            read = again
        wanted.difference_update(base for base in run.results if work.makers[base][0] == run.item)
        wanted.update(read)
        kept.append(run)
    kept.reverse()
    return tuple(kept)
