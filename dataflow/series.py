"""Runs whose sizes grow in equal steps, like those of a decoder with a cache: a series of plans made at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

from .engine import Engine
from .errors import Cancelled, DataflowError, InputError, LimitExceeded, ModelError, OutOfMemoryError
from .execute.arguments import sizes_of_shapes
from .execute.series import SeriesProgram
from .host.fork import renew_in_child
from .ir.graph import Graph, Node
from .ir.lowered import Lowered
from .ir.series import Line, NotInSeries, Shapes, step_between
from .ir.types import Array
from .passes.bind_shapes import array_of_sizes, bind
from .passes.even_sizes import EvenSizes

log = logging.getLogger("dataflow")

MOST_AHEAD = 1 << 26  # bytes of scratch memory for sizes that may never come, where no state says that they will
_FIRST_WAIT = 4  # runs after a series could not be made
_UNMADE = (InputError, ModelError, OutOfMemoryError, LimitExceeded)  # perhaps of other sizes alone


class _NoSeries(DataflowError):
    """For some sizes there is none."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A series of which the programs are kept by the engine.

    Attributes:
        line: of its shapes.
        form: the engine's name for it.
        sizes: the named ones.
        fed: nodes of sizes by the name of the input that they have become.
    """

    line: Line
    form: Hashable
    sizes: EvenSizes
    fed: Mapping[str, Node]


class RunSeries:
    """The series of a graph: found from how the sizes of runs grow, made where a third run follows two others in a row.

    Safe to use from several threads.

    Args:
        graph: with the weights, its shapes known when sizes are.
        engine: compiles and keeps them.
        judge: sees the placement of the nodes and may refuse it.
        cap: the most runs of one series at one time.
        kind: of its programs.
        form: what else tells its programs from others of the engine.
        computing: gives the graph that computes the outputs of some names.
    """

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        judge: Callable[[Lowered], None],
        cap: int,
        kind: tuple[Hashable, ...],
        form: Hashable,
        computing: Callable[[Graph, tuple[str, ...]], Graph],
    ) -> None:
        self._graph, self._engine, self._judge, self._cap, self._form = graph, engine, judge, cap, form
        self._kind = kind
        self._computing = computing
        self._last: dict[tuple[str, ...], tuple[Shapes, Shapes | None]] = {}  # by outputs: shapes, and their step
        self._found: dict[tuple[str, ...], list[_Found]] = {}
        self._following: _Following | None = None  # where a session's state is what the last run left
        self._vain: dict[tuple[tuple[str, ...], Shapes], tuple[int, int]] = {}  # by outputs and step, see ``_waits``
        self._lock = threading.Lock()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    def run(
        self, names: tuple[str, ...], arguments: Mapping[str, Array], out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """The outputs by name; see ``Session.run``. None where these sizes have to be planned for themselves.

        Args:
            names: of the outputs; empty: all.
            arguments: in the order of the model's inputs.
            out: arrays to write into, by output name.
        """
        shapes = tuple(a.shape for a in arguments.values())
        member = self._member(names, shapes)
        results = None if member is None else member.run(arguments, out)
        if member is not None and results is not None:
            self._follow(names, member)
        return results

    def run_next(
        self, names: tuple[str, ...], given: Mapping[str, Array], out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """As ``run``, where state grew by a step since the last run, and the other inputs are as large as a step wants.

        Args:
            names: of the outputs; empty: all.
            given: the inputs that aren't state, in the model's order.
            out: arrays to write into, by output name.
        """
        next_, state = self._following, self._engine.state
        if next_ is None or state is None or next_.changes != state.changes or next_.names != names:
            return None
        member = next_.member
        if tuple([array.shape for array in given.values()]) != next_.shapes:
            return None
        kept = self._engine.recent is member.program  # which costs less to see
        if not kept and self._engine.find(self._kind, member.found.form) is not member.program:
            return None
        results = member.run(given, out)
        if results is None:
            return None
        if member.number < member.found.line.count:
            member.number += 1
            if next_.varies:
                next_.shapes = member.found.line.at(member.number, next_.fed)
            next_.changes = state.changes  # last: Ctrl-C before it leaves a run that follows none
        else:
            self._following = None
        return results

    def _follow(self, names: tuple[str, ...], member: _Member) -> None:
        """Notes which run comes next, where what each plan leaves is as large as the next wants it."""
        state, line, program = self._engine.state, member.found.line, member.program
        self._following = None
        if state is None:
            return
        kept = {name: output for output, name in state.state.pairs.items()}
        fed = tuple(index for index, value in enumerate(self._graph.inputs) if value.name not in kept)
        for t in (0, line.count - 1):  # and so in all between
            left, wanted = program.types_left(t), line.at(t + 1)
            for value, shape in zip(self._graph.inputs, wanted, strict=True):
                if value.name in kept and left[kept[value.name]].sizes != shape:
                    return
        number = member.number + 1
        if number <= line.count:
            after = _Member(program, number, member.found)
            varies = any(any(line.step[index]) for index in fed)
            self._following = _Following(names, fed, line.at(number, fed), varies, after, state.changes)

    def _member(self, names: tuple[str, ...], shapes: Shapes) -> _Member | None:
        """The program of a series for inputs of these shapes; None where there is none, and is to be none yet."""
        for found in self._found.get(names, ()):
            t = found.line.number(shapes)
            if t is None:
                continue
            if 0 <= t <= found.line.count:
                program = self._engine.find(self._kind, found.form)
                if isinstance(program, SeriesProgram):
                    return _Member(program, t, found)
            return self._make(names, found.line.around(t), shapes)
        with self._lock:
            before, step = self._last.get(names, ((), None))
            by = step_between(before, shapes)
            self._last[names] = (shapes, by)
        # With state, runs go on from each other: sizes that grew by one will go on so.
        goes_on = self._engine.state is not None and by is not None and max(max(b, default=0) for b in by) == 1
        if by is None or not (by == step or goes_on):
            return None
        return self._make(names, Line(shapes, by, 0).around(0), shapes)

    def _make(self, names: tuple[str, ...], line: Line, shapes: Shapes) -> _Member | None:
        if not self._engine.makes_series or self._waits(names, line.step):
            return None
        t = line.number(shapes)
        assert t is not None
        for chosen in self._lines(names, line, t):
            try:
                found, program = self._made(names, chosen)
            except _NoSeries as why:
                log.debug("no series of plans for %s: %s", shapes, why)
                continue
            with self._lock:
                kept = [f for f in self._found.get(names, ()) if f.line.number(shapes) is None]
                self._found[names] = [found, *kept][:8]
            self._vain.pop((names, line.step), None)
            number = chosen.number(shapes)
            assert number is not None
            return _Member(program, number, found)
        _, waited = self._vain.get((names, line.step), (0, _FIRST_WAIT // 2))
        self._vain[names, line.step] = (2 * waited, 2 * waited)
        return None

    def _lines(self, names: tuple[str, ...], line: Line, t: int) -> Iterator[Line]:
        """A line, and shorter ones for where it has no series."""
        yield line
        # Where the lowest sizes are special in this graph, those of now on are not.
        rest = Line(line.at(t), line.step, line.count - t)
        if t:
            yield rest
        # Where it refuses the last sizes, as those beyond a cache that keeps its size, those up to there are left.
        if not self._binds(names, rest, rest.count):
            begin, end = 0, rest.count
            while end - begin > 1:
                middle = (begin + end) // 2
                begin, end = (middle, end) if self._binds(names, rest, middle) else (begin, middle)
            if begin > 1:
                yield Line(rest.start, rest.step, begin)

    def _binds(self, names: tuple[str, ...], line: Line, t: int) -> bool:
        """Whether the graph can be bound to the sizes of number ``t``."""
        graph = self._computing(self._graph, names)
        try:
            bind(graph, sizes_of_shapes(self._graph.inputs, line.at(t)), self._engine.registry.reference_kernels)
        except _UNMADE:
            return False
        return True

    def _waits(self, names: tuple[str, ...], step: Shapes) -> bool:
        """Whether there was no series lately: some sizes are special, and after twice as many runs they may not be."""
        left, waited = self._vain.get((names, step), (0, 0))
        if left:
            self._vain[names, step] = (left - 1, waited)
        return left > 0

    def _made(self, names: tuple[str, ...], line: Line) -> tuple[_Found, SeriesProgram]:
        count, graph = line.count, self._computing(self._graph, names)
        try:
            first, second, last = (sizes_of_shapes(self._graph.inputs, line.at(t)) for t in (0, 1, count))
            even = EvenSizes(first, {name: second[name] - size for name, size in first.items()}, count)
            form = (self._form, names, "series", line.start, line.step, count)
            found = _Found(line, form, even, even.fed(graph))
            kernels = self._engine.registry.reference_kernels
            why = even.why_uneven(graph, kernels)
            if why is not None:
                raise _NoSeries(why)

            def make() -> SeriesProgram:
                bound = [bind(graph, sizes, kernels, even.grown) for sizes in (first, second, last)]
                varying = even.varying(graph)
                most = MOST_AHEAD if self._engine.state is None else None
                made = self._engine.build_series(
                    bound, count, varying=varying, judge=self._judge, cap=self._cap, most=most
                )
                if isinstance(made, str):
                    raise _NoSeries(made)
                return made

            program = self._engine.program(self._kind, form, make)
        except _UNMADE as error:
            raise _NoSeries(str(error)) from error
        assert isinstance(program, SeriesProgram)
        return found, program


@dataclass(slots=True)
class _Member:
    """One plan of a series, ready to run."""

    program: SeriesProgram
    number: int
    found: _Found

    def run(self, arguments: Mapping[str, Array], out: Mapping[str, Array] | None) -> dict[str, Array] | None:
        """See ``RunSeries.run``."""
        results = self.program.results_at(self.number).arrays(out, arguments)
        fed = self.found.fed
        if fed:
            sizes = self.found.sizes.at(self.number)
            arguments = {**arguments, **{name: array_of_sizes(node, sizes) for name, node in fed.items()}}
        try:
            self.program.run_at(self.number, arguments, results)
        except NotInSeries as why:
            log.debug("%s", why)
            return None
        except Cancelled as error:
            raise KeyboardInterrupt(str(error)) from None
        return results


@dataclass(slots=True)
class _Following:
    """The run that comes next, which becomes the one behind it when it is done.

    Attributes:
        names: of its outputs.
        fed: the inputs that aren't state, by number.
        shapes: of these; ``varies``: they are not the same in all runs of the series.
        member: its plan.
        changes: of the state before it; see ``KeptState``.
    """

    names: tuple[str, ...]
    fed: tuple[int, ...]
    shapes: Shapes
    varies: bool
    member: _Member
    changes: int
