"""A series of plans that can run: bound to memory once, it moves from plan to plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..cdevice.backend import CBackend
from ..cdevice.sequence import NativeItems
from ..cdevice.series import SeriesCSegment
from ..errors import LimitExceeded, OutOfMemoryError
from ..ir.lowered import Lowered
from ..ir.plan import Plan, Segment, Transfer
from ..ir.series import NotInSeries, Series
from ..ir.types import Array, TensorType
from ..planning.series import runs_as
from ..plugin.device import Buffer
from .arguments import Results
from .bound import Bound, Stages
from .bound_items import in_sequence
from .devices import Devices
from .program import Program, Seat
from .run_state import KeptState
from .scratch import Scratch
from .variables import Variables


def can_move(plan: Plan, devices: Devices) -> bool:
    """Whether a series of such plans can run: in segments of devices that move from plan to plan."""
    segments = [item for item in plan.items if isinstance(item, Segment)]
    return all(isinstance(devices.backends[item.device], CBackend) for item in segments)


class SeriesBound(Bound):
    """A series with addresses.

    Args:
        series: what runs.
        devices: the open devices.
        persistent: memory that outlives a run, by the name of its arena.
        scratch: buffers that programs use in turn; None: its own.
        state: memory of a session's state, by kind and name of the arena.
    """

    def __init__(
        self,
        series: Series,
        devices: Devices,
        persistent: Mapping[str, Buffer],
        scratch: Scratch | None,
        state: Mapping[tuple[str, str], Buffer],
    ) -> None:
        self._series = series
        self._at = -1  # the plan that it can run now
        super().__init__(series.plan, devices, persistent, scratch, state=state)

    def _bind_items(self, table: Sequence[tuple[Any, int, int]]) -> list[Any]:
        self._table = table
        constants = self.plan.constants  # kernels know the same as of the plan
        self._items: list[Any] = []
        self._segments: list[SeriesCSegment] = []
        self._transfers: list[tuple[int, Transfer, Transfer]] = []  # index, and those of the first and the last plan
        series = self._series
        between = series.first if series.second is None else series.second
        for first, second, last in zip(series.first.items, between.items, self.plan.items, strict=True):
            if isinstance(first, Segment) and isinstance(last, Segment):
                backend = self._devices.backends[last.device]
                assert isinstance(backend, CBackend)
                own = self._arenas_of(last.device, table)
                allocate = partial(self._devices.allocate, self._devices.memories[last.device])
                count, threads = self._series.count, self._devices.threads
                bent = second if series.second is not None and isinstance(second, Segment) else None
                made = SeriesCSegment(backend, first, last, count, own, threads, constants, allocate, bent)
                self._segments.append(made)
                self._items.append(made)
                continue
            if isinstance(first, Transfer) and isinstance(last, Transfer):
                self._transfers.append((len(self._items), first, last))
            self._items.append(self._bind(last, table))
        return self._items

    def move(self, t: int) -> None:
        """Becomes plan ``t``.

        Raises:
            NotInSeries: it is not like the others, and has to be planned for itself.
        """
        if t == self._at:
            return
        if not 0 <= t <= self._series.count:
            raise NotInSeries(f"it has no number {t}")
        self._at = -1
        for segment in self._segments:
            segment.move(t)
        for index, first, last in self._transfers:
            self._items[index] = self._bind(self._series.transfer(first, last, t), self._table)
        if not self._transfers:
            for stage in (self._complete, *self._stages.values()):
                for item in stage.items:
                    if isinstance(item, NativeItems):
                        item.refill()
        else:
            self._complete.items = in_sequence(self._items)
            self._stages.clear()
        self._at = t


class SeriesProgram(Program):
    """The programs of a series, of which one runs at a time per seat; see ``Program``."""

    def __init__(
        self,
        series: Series,
        lowered: Lowered,
        devices: Devices,
        variables: Variables,
        cap: int,
        scratch: Scratch | None,
        state: KeptState | None,
    ) -> None:
        super().__init__(series.plan, lowered, devices, variables, cap, scratch, state)
        self._series = series
        firsts = series.first.outputs
        self._results: Results | None = None
        self._outputs = {name: (firsts[name].type, last.type) for name, last in series.plan.outputs.items()}
        self._returned = tuple(self.returned(series.plan))
        self._left = self._outputs.keys() - {*self._returned}  # for the next run
        grows = any(first != last for first, last in map(self._outputs.__getitem__, self._returned))
        self._results = None if grows else self.results_at(0)  # of each plan

    def runs_as(self, t: int, plan: Plan) -> bool:
        """Whether plan ``t`` gives what a plan for the same sizes gives, bit for bit."""
        return runs_as(self._series, t, plan)

    def _type_at(self, first: TensorType, last: TensorType, t: int) -> TensorType:
        return TensorType(last.dtype, self._series.numbers(first.sizes, last.sizes, t))

    def types_left(self, t: int) -> dict[str, TensorType]:
        """The types of what plan ``t`` leaves for the next run, by output."""
        return {name: self._type_at(*self._outputs[name], t) for name in self._left}

    def results_at(self, t: int) -> Results:
        """Makes the arrays of the outputs of plan ``t``."""
        if self._results is not None:
            return self._results
        return Results({name: self._type_at(*self._outputs[name], t) for name in self._returned})

    def _moved(self, seat: Seat, t: int) -> SeriesBound:
        try:
            bound = self._bind(seat)
        except (OutOfMemoryError, LimitExceeded) as error:  # one plan alone may need less than all of them
            raise NotInSeries(str(error)) from None
        assert isinstance(bound, SeriesBound)
        bound.move(t)
        return bound

    def move(self, t: int) -> None:
        """Becomes plan ``t``, so that its next run at it can't fail by that; where ``cap`` is one.

        Raises:
            NotInSeries: see ``SeriesBound.move``.
        """
        seat = self._seat()
        with seat.lock:
            self._moved(seat, t)

    def run_at(
        self,
        t: int,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        *,
        interruptible: bool = True,
        stage: Stages | None = None,
    ) -> None:
        """Runs plan ``t``, or some of its ranges; see ``Program.run``.

        Raises:
            NotInSeries: see ``SeriesBound.move``.
        """
        seat = self._seat()
        with seat.lock:
            bound = self._moved(seat, t)
            bound.run(inputs, outputs, interruptible=interruptible, stage=stage)
            if self._state is not None and self._advances is not None:
                self._state.advance(self._advances, partial(self.types_left, t))

    def _make_bound(self) -> Bound:
        return SeriesBound(self._series, self._devices, self.persistent, self._scratch, self._buffers())


class SeriesMember:
    """One plan of a series, that runs like a program of its own; where its ``cap`` is one.

    Args:
        program: the series.
        number: of the plan.
        fed: inputs that the plan has beside those that it is called with: sizes as data.

    Attributes:
        plan: the last of the series, in whose memory all of them lie.
        results: makes the arrays of its outputs.

    Raises:
        NotInSeries: it is not like the others, and has to be planned for itself.
    """

    def __init__(self, program: SeriesProgram, number: int, fed: Mapping[str, Array]) -> None:
        program.move(number)
        self._program, self._number, self._fed = program, number, fed
        self.plan, self.results = program.plan, program.results_at(number)

    def checked(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """See ``Program.checked``."""
        return self._program.checked({**given, **self._fed})

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        *,
        interruptible: bool = True,
        stage: Stages | None = None,
    ) -> None:
        """See ``Program.run``."""
        self._program.run_at(self._number, inputs, outputs, interruptible=interruptible, stage=stage)

    def kept(self, name: str) -> Array:
        """See ``Program.kept``."""
        return self._program.kept(name)
