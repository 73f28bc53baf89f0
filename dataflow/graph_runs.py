"""One graph, planned for the sizes that come and run: at once, in a series, or region by region."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from .engine import Engine
from .errors import Cancelled, InputError, ModelError
from .execute.arguments import check_out, sizes_of, write_out
from .execute.program import Program
from .execute.program_calls import noted
from .execute.regions import run_regions, sized_region
from .execute.scratch import Scratch
from .host import checks
from .host.fork import renew_in_child
from .ir.graph import Graph
from .ir.lowered import Lowered
from .ir.types import Array
from .ir.value import Value
from .lower.templates import Sized
from .passes.bind_shapes import bind
from .passes.dead_code import computing, with_outputs
from .passes.dynamic_regions import Region, depends_on_data, split
from .passes.size_values import CompletedSizes
from .series import RunSeries


class Unbound(Exception):
    """A graph can't be bound to the sizes of inputs; the cause says why."""

    def __init__(self, cause: InputError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NoPlan(ModelError):
    """Data decide about shapes, so that there is no plan before they are known."""


class GraphRuns:
    """Runs a graph. Safe to use from several threads.

    Args:
        graph: with the weights.
        engine: compiles it.
        judge: sees the placement of the nodes and may refuse it.
        cap: the most runs of one program at one time.
        kind: of its programs.
        form: what else tells them from others of the engine.
        more: how many times as many are kept as of other graphs; where they are, they use one scratch memory in turn.

    Attributes:
        graph: this one.
        series: of runs whose sizes grow; None where no size can, or they leave none of the engine's state.
    """

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        judge: Callable[[Lowered], None],
        cap: int,
        kind: tuple[Hashable, ...] = ("run",),
        form: tuple[Hashable, ...] = (),
        more: int = 1,
    ) -> None:
        self.graph, self._engine, self._judge, self._cap = graph, engine, judge, cap
        self._kind, self._form, self._more = kind, form, more
        self._scratch = Scratch(engine.devices) if more > 1 else None
        self._depends, self._sizes = depends_on_data(graph), CompletedSizes(graph)
        # by the outputs that are wanted: those of the graph, and its regions
        self._regions: dict[tuple[str, ...], tuple[Mapping[str, Value], tuple[Region, ...]]] = {}
        complete = engine.state is None or engine.state.state.pairs.keys() <= graph.outputs.keys()
        grows = complete and any(not value.type.is_bound for value in graph.inputs)
        self.series = RunSeries(graph, engine, judge, cap, kind, form, computing) if grows else None
        self._lock = threading.Lock()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    def run(
        self, arguments: Mapping[str, Array], outputs: Sequence[str] | None, out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """The outputs by name; see ``Session.run``.

        Args:
            arguments: of the graph's inputs, checked but for their shapes; others are left out.
            outputs: names of results or of inner values; None: all outputs.
            out: arrays to write into, by output name.

        Raises:
            Unbound: the graph can't be bound to the sizes.
        """
        if len(arguments) != len(self.graph.inputs):
            arguments = {value.name: arguments[value.name] for value in self.graph.inputs}
        if self._depends:
            return self._run_regions(arguments, outputs, out or {})
        names = () if outputs is None else checks.texts("outputs", outputs)
        shapes = tuple(a.shape for a in arguments.values())
        program = self._engine.find(self._kind, (self._form, names, shapes))
        if program is None:
            found = None if self.series is None or noted() is not None else self.series.run(names, arguments, out)
            if found is not None:
                return found
            program = self.program(arguments, outputs)
        results = program.results.arrays(out, arguments)
        _call(program, arguments, results)
        return results

    def has_plan(self, arguments: Mapping[str, Array], outputs: Sequence[str] | None) -> bool:
        """Whether a plan for these arguments is kept, as for ``run``; False where data decide about shapes."""
        names = () if outputs is None else checks.texts("outputs", outputs)
        shapes = tuple(arguments[value.name].shape for value in self.graph.inputs)
        return not self._depends and self._engine.find(self._kind, (self._form, names, shapes)) is not None

    def _run_regions(
        self, arguments: Mapping[str, Array], outputs: Sequence[str] | None, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The same, where sizes are read off tensors: region by region, each planned when its sizes are known."""
        names = tuple(outputs) if outputs is not None else ()
        with self._lock:
            known = self._regions.get(names)
            if known is None:
                graph = with_outputs(self.graph, names) if names else self.graph
                known = self._regions[names] = graph.outputs, split(graph)
        results, regions = known
        check_out(out, results)

        def program_of(
            index: int, region: Region, given: Mapping[str, Array], sizes: Mapping[str, int], form: Hashable
        ) -> Program:
            key = (self._form, names, index, form)
            # each region has as many plans as a model without any: one run needs one of each
            return self._engine.program(
                (*self._kind, index), key, lambda: self._region_program(region, given, sizes), self._more
            )

        values, _ = run_regions(regions, arguments, sizes_of(self.graph, arguments), self._completed, program_of, _call)
        found = {name: values[value.name] for name, value in results.items()}
        write_out(out, found)
        return found

    def _completed(self, sizes: Mapping[str, int]) -> dict[str, int]:
        try:
            return self._sizes.of(sizes, self._engine.registry.reference_kernels)
        except InputError as error:
            raise Unbound(error) from error

    def program(self, arguments: Mapping[str, Array], outputs: Sequence[str] | None) -> Program:
        """The program for these arguments, as for ``run``, of which only the shapes are looked at.

        Raises:
            Unbound: the graph can't be bound to the sizes.
            NoPlan: shapes depend on data, so that there is no plan before it runs.
        """
        if self._depends:
            node = next(n for n in self.graph.nodes if n.op.name == "read_shape")
            raise NoPlan(
                f"{node.origin or node.describe()}: what follows has a shape that depends on data, so it has no plan "
                "before it runs; session.plans has those of the runs so far"
            )
        if len(arguments) != len(self.graph.inputs):
            arguments = {value.name: arguments[value.name] for value in self.graph.inputs}
        names = () if outputs is None else checks.texts("outputs", outputs)
        form = (self._form, names, tuple(a.shape for a in arguments.values()))
        return self._engine.program(self._kind, form, lambda: self._compile(arguments, names), self._more)

    def _compile(self, arguments: Mapping[str, Array], outputs: tuple[str, ...]) -> Program:
        kernels = self._engine.registry.reference_kernels

        def bound(at: Mapping[str, Any]) -> Graph:
            return bind(computing(self.graph, outputs), at, kernels)

        return self._build(Sized((self.graph, outputs), sizes_of(self.graph, arguments), bound))

    def _region_program(self, region: Region, given: Mapping[str, Array], sizes: Mapping[str, int]) -> Program:
        try:
            sized = sized_region(region, given, sizes, self._engine.registry.reference_kernels)
        except InputError as error:
            raise Unbound(error) from error
        return self._build(sized)

    def _build(self, sized: Sized) -> Program:
        def bound(at: Mapping[str, Any]) -> Graph:
            try:
                return sized.make(at)
            except InputError as error:
                raise Unbound(error) from error

        made = dataclasses.replace(sized, make=bound)
        return self._engine.build(made, judge=self._judge, cap=self._cap, scratch=self._scratch)


def _call(program: Program, arguments: Mapping[str, Array], results: Mapping[str, Array]) -> None:
    calls = noted()
    if calls is not None:
        calls.append((program, arguments))
    try:
        program.run(arguments, results)
    except Cancelled as error:
        raise KeyboardInterrupt(str(error)) from None
