"""Batches whose sizes lie on a line, like sequences of any length: a series of plans made at once for all of them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from ...engine import Engine
from ...errors import GradientError, InputError, LimitExceeded, ModelError, OutOfMemoryError
from ...execute.arguments import sizes_of_shapes
from ...execute.series import SeriesMember, SeriesProgram
from ...ir.graph import Graph
from ...ir.plan import Plan
from ...ir.series import Line, NotInSeries, Shapes, line_through
from ...ir.types import Array, TensorType
from ...ir.value import Value
from ...passes.bind_shapes import dims_of, has_names
from ...passes.even_sizes import EvenSizes
from ...passes.size_values import Kernels, SizeValues
from ...planning.series import why_uneven
from .sizes import Sizes

log = logging.getLogger("dataflow")

BuildSeries = Callable[[Sequence[Sizes], int], "SeriesProgram | str"]
"""``build(several, count)``: of the program for the first sizes of a series, the second and the last; see
``Engine.build_series``."""
MOST_AHEAD = 1 << 26  # bytes of scratch memory for sizes twice as large as any that came
_SEEN = 8  # sizes planned by themselves, of which it is known whether others lie on a line with them
_FOUND = 8  # lines, of each kind of program
_KNOWN = 8  # numbers of a series whose data from sizes is kept
_FIRST_WAIT = 4  # sizes planned by themselves after a series could not be made


class _NoSeries(Exception):
    """For some sizes there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A series of which the program is kept by the engine.

    Attributes:
        line: of the shapes of a batch.
        sizes: the named ones.
        graph: in which what depends on sizes alone is fed.
        fed: what that is.
        values: of the graph in which it is computed.
        known: what is fed, by number, of those that came last.
    """

    line: Line
    sizes: EvenSizes
    graph: Graph
    fed: tuple[Value, ...]
    values: SizeValues
    known: dict[int, Mapping[str, Array]] = field(default_factory=dict)

    def fed_at(self, t: int, kernels: Kernels) -> Mapping[str, Array]:
        """What is fed to number ``t``, as folding computes it."""
        found = self.known.get(t)
        if found is None:
            arrays = {value.name: self.values.compute(value, self.sizes.at(t), kernels) for value in self.fed}
            found = {name: array for name, array in arrays.items() if array is not None}
            if len(found) < len(arrays):
                raise _NoSeries("what depends on sizes can't be computed from them alone")
            self.known[t] = found
            while len(self.known) > _KNOWN:
                del self.known[next(iter(self.known))]
        return found


_REFUSALS = (_NoSeries, GradientError, InputError, ModelError, OutOfMemoryError, LimitExceeded)


class BatchSeries:
    """The series of a training, each for one kind of program; made where a fourth size lies on a line with others.

    A series is made of three plans and moves from one size to another in a fraction of the time of a plan. Its sizes
    reach from the lowest to twice the largest that came; but no further than those that came where values take much
    memory, or larger sizes aren't possible.

    Args:
        graph: of named sizes, its inputs among the entries of a batch.
        engine: keeps the programs.
    """

    def __init__(self, graph: Graph, engine: Engine) -> None:
        self._graph, self._engine = graph, engine
        self._kernels = engine.registry.reference_kernels
        self._seen: dict[Hashable, list[Shapes]] = {}
        self._found: dict[Hashable, list[_Found]] = {}
        named = dims_of(graph)
        self._has_data = any(not node.inputs and has_names(node, named) for node in graph.nodes)
        self._vain: dict[Hashable, tuple[int, int]] = {}  # see ``_waits``

    def forget(self) -> None:
        """Forgets all that was found: programs are others from now on."""
        self._seen.clear()
        self._found.clear()
        self._vain.clear()

    def member(
        self, kind: tuple[Hashable, ...], types: Mapping[str, TensorType], build: BuildSeries
    ) -> SeriesMember | None:
        """The plan of a series for a batch; None where it is to be planned by itself.

        Args:
            kind: of program.
            types: of the entries of the batch, also those that the program adds to it.
            build: makes a series.
        """
        key = (kind, tuple((name, t.dtype) for name, t in types.items()))
        shapes = tuple(t.sizes for t in types.values())
        for found in self._found.get(key, ()):
            t = found.line.number(shapes)
            if t is not None and 0 <= t <= found.line.count:
                try:
                    return self._moved(kind, found, t, types, build)
                except _REFUSALS as why:  # it was forgotten, and can't be made any more
                    log.debug("no series of plans for %s: %s", shapes, why)
                    self._found[key].remove(found)
                    break
        seen = [s for s in self._seen.get(key, ()) if s != shapes]
        lines = (line_through((*several, shapes)) for several in itertools.combinations(reversed(seen), 3))
        line = next(filter(None, lines), None)
        if line is not None and not self._waits(key):
            like = self._are_alike(kind, tuple(types), line, seen)
            made = self._first(kind, line, shapes, types, build) if like else None
            if made is not None:
                found, member = made
                self._vain.pop(key, None)
                others = [f for f in self._found.get(key, ()) if f.line.number(shapes) is None]
                self._found[key] = [found, *others][:_FOUND]
                # Sizes beyond those that it has lie on a line with its ends.
                ends = [found.line.at(t) for t in (0, 1, found.line.count)]
                self._seen[key] = [*(s for s in seen if found.line.number(s) is None), *ends][-_SEEN:]
                return member
            _, waited = self._vain.get(key, (0, _FIRST_WAIT // 2))
            self._vain[key] = (2 * waited, 2 * waited)
        self._seen[key] = [*seen, shapes][-_SEEN:]
        return None

    def _waits(self, key: Hashable) -> bool:
        """Whether there was no series lately: some sizes are special, and after twice as many they may not be."""
        left, waited = self._vain.get(key, (0, 0))
        if left:
            self._vain[key] = (left - 1, waited)
        return left > 0

    def _are_alike(self, kind: tuple[Hashable, ...], names: Sequence[str], line: Line, seen: Sequence[Shapes]) -> bool:
        """Whether the plans for sizes on a line may be of one series, as far as they are kept: asking costs little."""
        if self._has_data:  # which plans by themselves have folded
            return True
        programs = self._engine.programs
        numbered = sorted((t, s) for s in seen if (t := line.number(s)) is not None)
        found = [(t, programs.get((kind, (tuple(zip(names, s, strict=True)),)))) for t, s in numbered]
        kept = [(t, program.plan) for t, program in found if program is not None]
        why = why_uneven([plan for _, plan in kept], [t for t, _ in kept]) if len(kept) > 2 else None
        if why is not None:
            log.debug("no series of plans for %s: %s", numbered, why)
        return why is None

    def _first(
        self,
        kind: tuple[Hashable, ...],
        line: Line,
        shapes: Shapes,
        types: Mapping[str, TensorType],
        build: BuildSeries,
    ) -> tuple[_Found, SeriesMember] | None:
        """The series of the first line of those that reach less and less far."""
        single = line.finest()
        larger = [single.around(single.count), single.doubled()]
        peaks = [program.plan.peak_bytes for (known, _), program in self._engine.programs.items() if known == kind]
        ahead = 2 * max(peaks, default=MOST_AHEAD) <= MOST_AHEAD
        for chosen in dict.fromkeys((*(larger if ahead else []), single, line)):
            t = chosen.number(shapes)
            if t is None or not 0 <= t <= chosen.count or chosen.count < 2:
                continue
            try:
                found = self._made(chosen, types)
                member = self._moved(kind, found, t, types, build)
                if member is not None:
                    return found, member
            except _REFUSALS as why:
                log.debug("no series of plans for %s: %s", shapes, why)  # perhaps because of other sizes alone
        return None

    def _made(self, line: Line, types: Mapping[str, TensorType]) -> _Found:
        """What is known of a line before plans are made."""
        first, second = self._named(types, line.at(0)), self._named(types, line.at(1))
        sizes = EvenSizes(first, {name: second[name] - size for name, size in first.items()}, line.count)
        why = sizes.why_uneven(self._graph, self._kernels)
        if why is not None:
            raise _NoSeries(why)
        return _Found(line, sizes, *sizes.feeding(self._graph), SizeValues.of(self._graph))

    def _moved(
        self, kind: tuple[Hashable, ...], found: _Found, t: int, types: Mapping[str, TensorType], build: BuildSeries
    ) -> SeriesMember | None:
        """Plan ``t``; the program is made where it isn't kept. None where a kernel wants another plan."""
        line, names = found.line, tuple(types)
        form = (names, line.start, line.step, line.count)
        alone: list[tuple[int, Plan]] = []  # numbers and plans of single sizes

        def made() -> SeriesProgram:
            varying = found.sizes.varying(self._graph)
            several = []
            for number in (0, 1, line.count):
                at = dict(zip(names, line.at(number), strict=True))
                entries = {name: TensorType(types[name].dtype, shape) for name, shape in at.items()}
                several.append(Sizes(found.sizes.at(number), entries, found.graph, varying))
            program = build(several, line.count)
            if isinstance(program, str):
                raise _NoSeries(program)
            if not any(number not in (0, 1, line.count) for number, _ in alone):  # of which it was not made
                raise _NoSeries("no plan of a size between is kept")
            if not all(program.runs_as(number, plan) for number, plan in alone):
                raise _NoSeries("a plan of one size alone runs otherwise")
            return program

        program = self._engine.find(("series", *kind), form)
        if program is None:
            for (known, other), kept in self._engine.programs.items():
                number = self._number(line, names, other) if known == kind else None
                if number is not None:
                    alone.append((number, kept.plan))
            program = self._engine.program(("series", *kind), form, made)
        assert isinstance(program, SeriesProgram)
        try:
            return SeriesMember(program, t, found.fed_at(t, self._kernels))
        except NotInSeries as why:
            log.debug("%s", why)
            return None

    @staticmethod
    def _number(line: Line, names: Sequence[str], form: Hashable) -> int | None:
        """Which number of a line a program alone is for, by the engine's name for it; None: none of it."""
        entries = form[0] if isinstance(form, tuple) and form and isinstance(form[0], tuple) else ()
        if tuple(name for name, _ in entries) != tuple(names):
            return None
        t = line.number(tuple(shape for _, shape in entries))
        return t if t is not None and 0 <= t <= line.count else None

    def _named(self, types: Mapping[str, TensorType], shapes: Shapes) -> dict[str, int]:
        """The named sizes of a batch of these shapes."""
        given = dict(zip(types, shapes, strict=True))
        return sizes_of_shapes(self._graph.inputs, [given[value.name] for value in self._graph.inputs])
