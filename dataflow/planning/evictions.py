"""Which tensors are dropped and computed again, so that a schedule fits in a number of bytes.

The items are run through in their order, as a program would that has so much memory: where it doesn't suffice, the
tensor goes whose next use is far and whose bytes are cheap to compute again; where a tensor is read that is gone, the
items that make it run again, with those that make what they read. After Kirisame et al. 2021 (dynamic tensor
rematerialization), who decide while a program runs; here it is done once, at plan time, and the next use of every
tensor is known, where they have to guess it from the last.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from .schedule import Run, Schedule
from .work import Work

SMALL = 8  # a tensor of an eighth of the bytes of what is dropped is kept for it, rather than computed again
LONG = 64  # runs at most to compute a tensor again, as far as is known when it is dropped
STALE = 1.05  # a score that has grown by more since it was computed is put back


@dataclass(frozen=True, slots=True)
class Setting:
    """What makes a tensor the next to be dropped; which is best depends on the network.

    Attributes:
        power: how much it counts that the next use is far.
        dependents: what is gone and will be computed again from the tensor counts too.
        spacing: what would take more runs to compute again, if it were dropped after its last use, is kept longer, as
            a checkpoint from which others are computed again; 0: nothing is.
    """

    power: float
    dependents: bool
    spacing: int


def evicting(work: Work, limit: int, most: int, how: Setting) -> Schedule | None:
    """A schedule that needs about ``limit`` bytes, or more where that is impossible.

    Args:
        work: the items.
        limit: bytes.
        most: the most that the runs may cost which compute again; None is returned where it would be more.
        how: what is dropped first.
    """
    return _Simulation(work, limit, most, how).run()


class _Simulation:
    def __init__(self, work: Work, limit: int, most: int, how: Setting) -> None:
        self.work, self.limit, self.most, self.how = work, limit, most, how
        self.runs: list[Run] = []
        self.resident: set[int] = set()
        self.held: dict[int, int] = {}  # tensors that items after their last use will read again -> until when
        self.memory = 0
        self.now = 0
        self.spent = 0
        self.checkpoints: set[int] = set()
        self.heap: list[tuple[float, int, int]] = []  # score, tensor, and its entry in ``stamps`` if it counts
        self.stamps = [0] * len(work.bases)
        self.unscored: set[int] = set()
        self.able = [all(work.again[item] is not None for item in makers) for makers in work.makers]
        self.readers: list[list[int]] = [[] for _ in work.bases]  # what is computed again from each tensor
        for item, read in enumerate(work.again):
            for base in read or ():
                self.readers[base] += work.writes[item]

    def run(self) -> Schedule | None:
        work = self.work
        for index in range(len(work.costs)):
            self.now = index
            pinned = {*work.reads[index], *work.writes[index]}
            begun = [base for base in work.writes[index] if work.makers[base][0] != index]
            missing = [base for base in (*work.reads[index], *begun) if base not in self.resident]
            if missing and not self.compute_again(missing, pinned):
                return None
            self.evict_for(self.needed(index, work.reads[index]) + work.extra[index], pinned)
            self.add(work.writes[index])
            self.runs.append(Run(index, work.writes[index], True))
            self.release(pinned)
        return tuple(self.runs)

    # ---- memory ---------------------------------------------------------------------------------------

    def needed(self, index: int, reads: Iterable[int]) -> int:
        """Bytes that the results of an item take."""
        work, reads = self.work, set(reads)
        size = sum(work.sizes[base] for base in work.writes[index] if base not in self.resident)
        taken: set[int] = set()
        for result, operand in work.shared[index]:
            dies = operand in reads and operand not in taken and self.next_use(operand, index + 1) is None
            if dies and self.held.get(operand, -1) <= index and result not in self.resident:
                taken.add(operand)
                size -= work.sizes[operand]
        return size

    def add(self, bases: Iterable[int]) -> None:
        for base in bases:
            if base not in self.resident:
                self.resident.add(base)
                self.memory += self.work.sizes[base]

    def drop(self, base: int) -> None:
        self.resident.discard(base)
        self.memory -= self.work.sizes[base]

    def release(self, bases: Iterable[int]) -> None:
        """Drops those that nothing will read, and scores the others anew."""
        for base in bases:
            if base not in self.resident:
                continue
            if self.next_use(base, self.now + 1) is not None:
                self.queue(base)
            elif self.held.get(base, -1) <= self.now and base not in self.checkpoints:
                if self.is_far(base):
                    self.checkpoints.add(base)
                    self.queue(base)
                else:
                    self.drop(base)

    def is_far(self, base: int) -> bool:
        """Whether a tensor that nothing will read is worth keeping for those that may be computed again from it."""
        if not self.how.spacing or not self.able[base] or self.memory < self.limit // 2:
            return False
        if all(self.next_use(other, self.now + 1) is None for other in self.readers[base]):
            return False
        return self.closure([base], self.now + 1, self.how.spacing) is None

    def next_use(self, base: int, start: int) -> int | None:
        """The first item from ``start`` on that reads or writes a tensor in the order without repetitions."""
        uses = self.work.uses[base]
        at = bisect.bisect_left(uses, start)
        return uses[at] if at < len(uses) else None

    def wanted(self, base: int) -> bool:
        """Whether an item from now on reads a tensor, or one that is held for others."""
        if base in self.checkpoints or self.held.get(base, -1) > self.now:
            return True
        return self.next_use(base, self.now) is not None

    def until(self, base: int) -> int | None:
        """When a tensor in memory is read next; of a checkpoint the end."""
        after = self.next_use(base, self.now + 1)
        return len(self.work.costs) if after is None and base in self.checkpoints else after

    def queue(self, base: int) -> None:
        """Lets a tensor be scored, when memory is wanted."""
        self.stamps[base] += 1
        self.unscored.add(base)

    def score_all(self) -> None:
        for base in sorted(self.unscored & self.resident):
            score = self.score(base)
            if score is not None:
                heapq.heappush(self.heap, (score, base, self.stamps[base]))
        self.unscored.clear()

    def evict_for(self, size: int, pinned: set[int]) -> None:
        """Drops tensors until ``size`` more bytes fit, or nothing is left to drop."""
        aside = []
        if self.memory + size > self.limit:
            self.score_all()
        while self.memory + size > self.limit and self.heap:
            score, base, stamp = heapq.heappop(self.heap)
            if base not in self.resident or stamp != self.stamps[base]:
                continue
            if base in pinned:
                aside.append((score, base, stamp))
                continue
            now = self.score(base)
            if now is not None and now > score * STALE and self.heap and now > self.heap[0][0]:
                heapq.heappush(self.heap, (now, base, stamp))
            elif now is not None:
                self.evict(base)
        for entry in aside:
            heapq.heappush(self.heap, entry)

    def score(self, base: int) -> float | None:
        """What it costs per byte and time to drop a tensor; None where it can't be, or nothing would be won."""
        until = self.until(base)
        if until is None or self.now < self.work.makers[base][-1]:
            return None
        waiting, until = self.waiting(base, until)
        found = self.closure([base], until, LONG)
        if found is None:
            return None
        items, kept = found
        size = self.work.sizes[base] - sum(self.work.sizes[other] for other in kept if other not in self.resident)
        if size <= 0:
            return None
        cost = sum(self.work.costs[item] for item in (*items, *waiting))
        return cost / (size * math.pow(until - self.now, self.how.power))

    def waiting(self, base: int, until: int) -> tuple[set[int], int]:
        """The items that will compute again what was dropped and needs a tensor, and when it is needed first."""
        work = self.work
        items: set[int] = set()
        seen = {base}
        reading = [base] if self.how.dependents else []
        while reading and len(items) < LONG:
            for other in self.readers[reading.pop()]:
                if other in seen or other in self.resident:
                    continue
                seen.add(other)
                at = self.next_use(other, self.now + 1)
                if at is not None and self.now >= work.makers[other][-1]:
                    until = min(until, at)
                    items.update(work.makers[other])
                    reading.append(other)
        return items, until

    def evict(self, base: int) -> None:
        until = self.until(base)
        assert until is not None
        _, until = self.waiting(base, until)
        found = self.closure([base], until, LONG)
        assert found is not None
        for other in found[1]:
            self.held[other] = max(self.held.get(other, -1), until)
            self.add([other])
        self.checkpoints.discard(base)
        self.drop(base)

    # ---- computing again ------------------------------------------------------------------------------

    def closure(self, bases: Iterable[int], time: int, most: int | None = None) -> tuple[list[int], list[int]] | None:
        """The items that compute tensors again at ``time``, and tensors to hold until then for them.

        None where one can't be computed again, or it would take more than ``most`` items.
        """
        work = self.work
        items: set[int] = set()
        kept: list[int] = []
        wanted = [*bases]
        seen = set(wanted)
        while wanted:
            base = wanted.pop()
            for item in work.makers[base]:
                if item in items:
                    continue
                read = work.again[item]
                if read is None or time > work.until[item]:
                    return None
                items.add(item)
                if most is not None and len(items) > most:
                    return None
                for other in read:
                    if other in seen:
                        continue
                    seen.add(other)
                    if self.there(other, time):
                        continue
                    if not self.able_at(other, time) or work.sizes[other] * SMALL <= work.sizes[base]:
                        kept.append(other)
                    else:
                        wanted.append(other)
        return sorted(items), kept

    def able_at(self, base: int, time: int) -> bool:
        """Whether the items that make a tensor may run again at a time."""
        return self.able[base] and all(time <= self.work.until[item] for item in self.work.makers[base])

    def there(self, base: int, time: int) -> bool:
        """Whether a tensor will be in memory at a time, as far as is known now."""
        if base not in self.resident:
            return False
        if time <= self.now or base in self.checkpoints:
            return True
        return max(self.work.uses[base][-1], self.held.get(base, -1)) >= time

    def compute_again(self, bases: list[int], pinned: set[int]) -> bool:
        """Runs the items again that make tensors; False where that costs too much or can't be."""
        work = self.work
        found = self.closure(bases, self.now)
        if found is None:
            return False
        items, kept = found
        self.add(kept)
        reading: dict[int, int] = {}  # tensor -> the last of the items that reads it
        for item in items:
            for base in work.again[item] or ():
                reading[base] = item
        for item in items:
            self.spent += work.costs[item]
            if self.spent > self.most:
                return False
            waiting = {base for base, until in reading.items() if until >= item}
            read = work.again[item] or ()
            results = tuple(
                base
                for base in work.writes[item]
                if base not in self.resident or work.makers[base][0] != item
                if base in waiting or base in pinned or self.next_use(base, self.now) is not None
            )
            self.evict_for(self.needed(item, read) + work.extra[item], pinned | waiting | {*work.writes[item]})
            self.add(results)
            for base in results:
                self.queue(base)
            self.runs.append(Run(item, results, False))
            for base in read:
                last = reading[base] == item and base not in pinned
                if last and base in self.resident and not self.wanted(base):
                    self.drop(base)
        return True
