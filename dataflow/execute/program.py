"""A program: a plan, and the places where it runs, one per run in progress."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..host.fork import renew_in_child
from ..host.garbage_collection import collection_paused
from ..ir.lowered import Lowered
from ..ir.plan import Plan
from ..ir.types import Array, TensorType
from ..plugin.device import Buffer
from .arguments import Arguments, Results
from .bound import Bound, Stages
from .devices import Devices
from .marks import Marks
from .run_state import KeptState, Sides
from .scratch import Scratch
from .variables import Variables

PERSISTENT = frozenset({"weights", "state", "prepacks"})  # kinds of arenas that outlive a run


class Seat:
    """A Bound, made when it is first needed, and a lock that is held while it runs."""

    __slots__ = ("bound", "generation", "lock", "sides")

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.bound: Bound | None = None
        self.generation = -1  # of the scratch that it is bound to
        self.sides: dict[Sides, Bound] = {}  # by the memory of a session's state


class Program:
    """A plan that can run: bound to memory once per concurrent run, at most ``cap`` times.

    Ctrl-C may come between any two bytecodes. Seats are therefore held by ``with`` on a lock of C, which has nothing
    between taking the lock and entering the block.

    Attributes:
        plan: what runs.
        lowered: what the plan was made from.
        arguments: checks the arrays of its inputs.
        results: makes the arrays of its outputs.
        persistent: memory that outlives a run, by the name of its arena.
        marks: what runs of the whole plan call between its steps.
    """

    def __init__(
        self,
        plan: Plan,
        lowered: Lowered,
        devices: Devices,
        variables: Variables,
        cap: int = 1,
        scratch: Scratch | None = None,
        state: KeptState | None = None,
        compiled: Sequence[Any] = (),
    ) -> None:
        self.plan, self.lowered = plan, lowered
        self._compiled = compiled  # by devices for the plan's segments, kept for those that are bound
        self._scratch, self._state = scratch, state
        self._advances = None if state is None else state.advances(plan)
        self._devices = devices
        # From now on: constants may be forgotten while a run of this plan is still to begin.
        self.arguments, self.results = Arguments(plan.inputs), Results(self.returned(plan))
        self.persistent = {a.name: variables.buffer(a.name) for a in plan.arenas if a.kind in PERSISTENT}
        self.marks: Marks | None = None
        self._cap = cap if scratch is None else 1  # those that use its memory run in turn
        self._seats: list[Seat] = []
        self._growing = threading.Lock()
        self._queue = 0
        renew_in_child(self)

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        *,
        interruptible: bool = True,
        stage: Stages | None = None,
    ) -> Bound:
        """Runs the items once; waits while ``cap`` runs are in progress. Returns the Bound that did, for its counters.

        Args:
            inputs: see ``Bound.run``.
            outputs: likewise.
            interruptible: likewise.
            stage: likewise; the ranges of one run find what the ones before left only where ``cap`` is one.
        """
        seat = self._seat()
        with seat.lock:
            bound = seat.bound
            if bound is None or self._scratch is not None:
                bound = self._bind(seat)
            bound.run(inputs, outputs, interruptible=interruptible, stage=stage)
            if self._state is not None and self._advances is not None:
                self._state.advance(self._advances, self._types)
        return bound

    def begin(self, inputs: Mapping[str, Array]) -> None:
        """Begins to copy inputs of the next run to their devices; see ``Bound.begin``. Where ``cap`` is one."""
        if self._cap > 1:
            return
        seat = self._seat()
        with seat.lock:
            self._bind(seat).begin(inputs)

    def _types(self) -> dict[str, TensorType]:
        """Of all outputs."""
        return {name: operand.type for name, operand in self.plan.outputs.items()}

    def returned(self, plan: Plan) -> dict[str, TensorType]:
        """The types of the outputs that a run returns: those that aren't state."""
        kept = () if self._state is None else self._state.state.pairs
        return {name: operand.type for name, operand in plan.outputs.items() if name not in kept}

    def checked(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """Contiguous, aligned arrays of its inputs' dtypes, by name; see ``checked_array``."""
        return self.arguments.checked(given)

    def kept(self, name: str) -> Array:
        """A copy of a state that lies in scratch memory, as the run before left it; where ``cap`` is one."""
        (bound,) = self.bounds
        return bound.kept(name)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """Those that were made so far."""
        return tuple(seat.bound for seat in self._seats if seat.bound is not None)

    def _seat(self) -> Seat:
        """A free seat, else one to wait for: they are waited for in turn."""
        for seat in self._seats:
            if not seat.lock.locked():
                return seat
        with self._growing:
            if len(self._seats) < self._cap:
                self._seats.append(Seat(threading.Lock() if self._scratch is None else self._scratch.lock))
                return self._seats[-1]
        self._queue = (self._queue + 1) % self._cap
        return self._seats[self._queue]

    def _bind(self, seat: Seat) -> Bound:
        scratch = self._scratch
        if scratch is not None:
            scratch.reserve(self.plan)
            if seat.generation != scratch.generation:
                seat.bound = None
                seat.generation = scratch.generation
                seat.sides.clear()
        if self._state is not None:
            self._state.reserve(self.plan)
            sides = self._state.sides
            seat.bound = seat.sides.get(sides)
            if seat.bound is None:
                seat.sides = {known: bound for known, bound in seat.sides.items() if known[0] == sides[0]}
                seat.sides[sides] = seat.bound = collection_paused(self._make_bound)
        if seat.bound is None:
            seat.bound = collection_paused(self._make_bound)
        return seat.bound

    def _make_bound(self) -> Bound:
        plan, arrange = (self.plan, None) if self.marks is None else self.marks.in_items(self.plan)
        return Bound(plan, self._devices, self.persistent, self._scratch, arrange, self._buffers())

    def mark(self, marks: Marks) -> None:
        """From now on runs of the whole plan call what ``marks`` say; none may be in progress."""
        self.close()
        self.marks = marks

    def _buffers(self) -> Mapping[tuple[str, str], Buffer]:
        """The memory of a session's state."""
        return {} if self._state is None else self._state.buffers()

    def renew(self) -> None:
        """In a forked child: a Bound that another thread was running is not used again."""
        self._growing = threading.Lock()
        self._seats = [seat for seat in self._seats if not seat.lock.locked()]

    def close(self) -> None:
        """Gives device memory back; no run may be in progress."""
        for bound in self.bounds:
            bound.close()
        self._seats.clear()
