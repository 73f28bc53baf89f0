"""A model with the weights of one moment: compiled and run for all sizes, by regions, or for some inputs alone."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from .engine import Engine
from .errors import Cancelled, DataflowError, InputError, LimitExceeded, ModelError, OutOfMemoryError
from .execute.arguments import DeclaredInputs, check_result, sizes_of
from .execute.program import Program
from .execute.regions import run_regions, sized_region, value_key, with_wanted
from .execute.sequences import types_of
from .execute.special_forms import SpecialForms, shapes_of
from .host import checks
from .host.fork import renew_in_child
from .host.garbage_collection import collection_paused
from .ir.graph import Graph, with_data_of
from .ir.lowered import Lowered
from .ir.specialize import Given, Listed, Wanted
from .ir.types import Array
from .lower.templates import Sized
from .ops.dynamic_shape import forms_of
from .passes.bind_shapes import bind
from .passes.dead_code import computing, with_outputs
from .passes.dynamic_regions import Region, depends_on_data, split
from .passes.size_values import completed, static_reads
from .series import RunSeries

Convert = Callable[[Mapping[str, Given], Mapping[str, Array]], "Graph | Wanted | Listed | None"]
"""The graph for inputs of given types alone, see ``ir.specialize``; None where the model has no other than its own."""
_T = TypeVar("_T")


class Unbound(Exception):
    """A graph can't be bound to the sizes of inputs; the cause says why."""

    def __init__(self, cause: InputError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Loaded:
    """What a session made of the weights of one moment; each call uses that of its begin.

    Safe to use from several threads.

    Args:
        graph: with the weights.
        engine: compiles it.
        convert: makes the graph for some inputs alone.
        judge: sees the placement of the nodes and may refuse it.
        cap: the most runs of one program at one time.
        form: of inputs and values that it was made for alone; empty: it is for all.
        lengths: of outputs that are sequences, or None of those that are absent, where it was made for some inputs.

    Attributes:
        declared: the graph's inputs.
        forms: inputs and outputs that are no tensors.
        series: of runs whose sizes grow; None where no size can.
    """

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        convert: Convert,
        judge: Callable[[Lowered], None],
        cap: int,
        form: tuple[Hashable, ...] = (),
        lengths: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        self.graph, self.engine, self.lengths, self.forms = graph, engine, lengths, forms_of(graph)
        self.declared = DeclaredInputs(graph.inputs)
        self._convert, self._judge, self._cap, self._form = convert, judge, cap, form
        # One run may need a program for each number of values that are known: each has as many plans as a model.
        level = len(form[1]) if len(form) > 1 and isinstance(form[1], tuple) else 0
        self._kind: tuple[Hashable, ...] = ("run", "known", level) if level else ("run",)
        self._depends, self._reads = depends_on_data(graph), static_reads(graph)
        self._regions: dict[tuple[str, ...], tuple[Region, ...]] = {}
        self._special: SpecialForms[Loaded | Wanted] = SpecialForms()  # the latter: what must be known first
        grows = any(not value.type.is_bound for value in graph.inputs)
        self.series = RunSeries(graph, engine, judge, cap, form, computing) if grows else None
        self._lock = threading.Lock()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    # ---- for any inputs -------------------------------------------------------------------------------

    def run(
        self, arguments: Mapping[str, Array], outputs: Sequence[str] | None, out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """The outputs by name; see ``Session.run``.

        Args:
            arguments: of the model's inputs, checked but for their shapes.
            outputs: names of results or of inner values; None: all outputs.
            out: arrays to write into, by output name.

        Raises:
            InputError: the model takes no such inputs, or a kernel refuses their data.
            KeyboardInterrupt: Ctrl-C.
        """
        if self._special and self.engine.state is None:  # a wrong guess would change what the next run finds
            found = self._run_guessed(arguments, outputs, out)
            if found is not None:
                return found
        return self._where_bound(arguments, lambda loaded: loaded._run(arguments, outputs, out))

    def program(self, arguments: Mapping[str, Array], outputs: Sequence[str] | None) -> Program:
        """The program for these inputs, of which only the shapes are looked at.

        Raises:
            ModelError: shapes depend on data, so that there is no plan before it runs.
        """
        return self._where_bound(arguments, lambda loaded: loaded._program(arguments, outputs), runs=False)

    def run_special(
        self, types: Mapping[str, Given], arguments: Mapping[str, Array], names: Callable[[Loaded], Sequence[str]]
    ) -> tuple[dict[str, Array], Loaded]:
        """The outputs of the model that is made for inputs of these types, and that model.

        Args:
            types: of the inputs, which may be sequences or absent.
            arguments: of its inputs: the elements of sequences are inputs of their own.
            names: of the results, by that model.
        """
        special = self._specialized(types, arguments, InputError("the model has sequences or optionals"))
        wanted = names(special)
        try:
            return (special._run(arguments, wanted, None) if wanted else {}), special
        except Unbound as error:
            raise error.cause from None

    def _where_bound(self, arguments: Mapping[str, Array], use: Callable[[Loaded], _T], *, runs: bool = True) -> _T:
        """What ``use`` gives for the model, or for the model made for these inputs, where it can't be bound to them.

        Args:
            arguments: inputs.
            use: raises ``Unbound`` where the graph can't be bound to their sizes.
            runs: see ``_specialized``.
        """
        # Most models can be bound to any sizes: they don't pay for the others.
        cause = self._special.cause(shapes_of(types_of(self.graph, arguments))) if self._special else None
        if cause is None:
            try:
                return use(self)
            except Unbound as error:
                cause = error.cause
        special = self._specialized(types_of(self.graph, arguments), arguments, cause, runs=runs)
        try:
            return use(special)
        except Unbound as error:
            raise error.cause from None

    # ---- for some inputs alone ------------------------------------------------------------------------

    def _specialized(
        self, types: Mapping[str, Given], arguments: Mapping[str, Array], cause: InputError, *, runs: bool = True
    ) -> Loaded:
        """What the model is for these inputs, where its graph can't be bound to their sizes.

        Args:
            types: of its inputs.
            arguments: by names of inputs of the graph that is made.
            cause: why it can't.
            runs: values that it wants to know are computed; the inputs have data.

        Raises:
            InputError: the model is nothing for these inputs either.
        """

        def make(values: Mapping[str, Array], known: Hashable) -> Loaded | Wanted:
            form = (shapes_of(types), known)
            made = self._special.find(form)
            if made is None:
                converted = self._converted(types, values, cause)
                made = converted if isinstance(converted, Wanted) else self._made(converted, form)
                self._special.keep(form, made, cause)
            return made

        def compute(wanted: Wanted, known: Hashable) -> Array:
            if not runs:
                raise ModelError(f"{wanted.why}: it depends on data, so there is no plan before it runs")
            form = (shapes_of(types), known, wanted.name)
            found = self._special.find(form)
            if found is None:
                found = self._made(wanted.graph, form)
                self._special.keep(form, found, cause)
            assert isinstance(found, Loaded)
            return found._run(arguments, None, None)[wanted.name]

        made = with_wanted(make, compute)
        if runs:
            self._special.came(*made._form)  # type: ignore[arg-type]
        return made

    def _run_guessed(
        self, arguments: Mapping[str, Array], outputs: Sequence[str] | None, out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """The outputs, where the values that decide what the model is are those of the runs before; else None."""
        shapes = shapes_of(types_of(self.graph, arguments))
        values = self._special.guess(shapes)
        special = self._special.find((shapes, values)) if values else None
        if not isinstance(special, Loaded):
            return None
        names = list(special.graph.outputs) if outputs is None else list(checks.texts("outputs", outputs))
        deciding = [name for name, *_ in values]
        try:
            found = special._run(arguments, [*dict.fromkeys([*names, *deciding])], out)
        except (Unbound, DataflowError):  # other values may be the cause; what fails whatever they are fails again
            return None
        if tuple(value_key(name, found[name]) for name in deciding) != values:
            return None
        return {name: found[name] for name in names}

    def _converted(
        self, types: Mapping[str, Given], values: Mapping[str, Array], cause: InputError
    ) -> Graph | Wanted | Listed:
        try:
            made = collection_paused(lambda: self._convert(types, values))
        except (Cancelled, LimitExceeded, OutOfMemoryError):
            raise
        except DataflowError as error:
            raise InputError(f"{cause}; made for these sizes alone it fails too: {error}") from None
        if made is None:
            raise cause
        return made

    def _made(self, made: Graph | Listed, form: tuple[Hashable, ...]) -> Loaded:
        """The same of a graph for some inputs, with the weights of this moment."""
        lengths: Mapping[str, int | None] = {}
        graph: Graph | None
        if isinstance(made, Graph):
            graph = made
        elif self.forms:
            graph, lengths = made.graph, made.lengths
        else:
            raise InputError(f"for these inputs some outputs are no tensors: {', '.join(map(repr, made.lengths))}")
        # Where there is nothing to compute, nothing is wanted of the graph.
        graph = self.graph if graph is None else with_data_of(graph, self.graph)
        return Loaded(graph, self.engine, self._convert, self._judge, self._cap, form, lengths)

    # ---- one graph ------------------------------------------------------------------------------------

    def _run(
        self, arguments: Mapping[str, Array], outputs: Sequence[str] | None, out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """As ``run``; raises Unbound where the graph can't be bound to the sizes."""
        if self._depends:
            return self._run_regions(arguments, outputs, out or {})
        names = () if outputs is None else checks.texts("outputs", outputs)
        shapes = tuple(a.shape for a in arguments.values())
        program = self.engine.find(self._kind, (self._form, names, shapes))
        if program is None:
            found = None if self.series is None else self.series.run(names, arguments, out)
            if found is not None:
                return found
            program = self._program(arguments, outputs)
        results = program.results.arrays(out, arguments)
        _call(program, arguments, results)
        return results

    def _run_regions(
        self, arguments: Mapping[str, Array], outputs: Sequence[str] | None, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The same, where sizes are read off tensors: region by region, each planned when its sizes are known."""
        names = tuple(outputs) if outputs is not None else ()
        graph = self.graph if not names else with_outputs(self.graph, names)
        with self._lock:
            regions = self._regions.get(names)
            if regions is None:
                regions = self._regions[names] = split(graph)
        for name, array in out.items():
            if name not in graph.outputs:
                raise InputError(f"out: there is no output {name!r}; there are: {', '.join(graph.outputs)}")
            check_result(name, array)

        def program_of(
            index: int, region: Region, given: Mapping[str, Array], sizes: Mapping[str, int], form: Hashable
        ) -> Program:
            key = (self._form, names, index, form)
            # each region has as many plans as a model without any: one run needs one of each
            return self.engine.program((*self._kind, index), key, lambda: self._region_program(region, given, sizes))

        values, _ = run_regions(regions, arguments, sizes_of(self.graph, arguments), self._completed, program_of, _call)
        found = {name: values[value.name] for name, value in graph.outputs.items()}
        for name in out:
            if out[name].dtype != found[name].dtype or out[name].shape != found[name].shape:
                raise InputError(f"out[{name!r}]: expected {found[name].dtype}{list(found[name].shape)}")
            out[name][...] = found[name]
            found[name] = out[name]
        return found

    def _completed(self, sizes: Mapping[str, int]) -> dict[str, int]:
        try:
            return completed(self._reads, sizes, self.engine.registry.reference_kernels)
        except InputError as error:
            raise Unbound(error) from error

    def _program(self, arguments: Mapping[str, Array], outputs: Sequence[str] | None) -> Program:
        if self._depends:
            node = next(n for n in self.graph.nodes if n.op.name == "read_shape")
            raise ModelError(
                f"{node.origin or node.describe()}: what follows has a shape that depends on data, so it has no plan "
                "before it runs; session.plans has those of the runs so far"
            )
        names = () if outputs is None else checks.texts("outputs", outputs)
        form = (self._form, names, tuple(a.shape for a in arguments.values()))
        return self.engine.program(self._kind, form, lambda: self._compile(arguments, names))

    def _compile(self, arguments: Mapping[str, Array], outputs: tuple[str, ...]) -> Program:
        kernels = self.engine.registry.reference_kernels

        def bound(at: Mapping[str, Any]) -> Graph:
            return bind(computing(self.graph, outputs), at, kernels)

        return self._build(Sized((self.graph, outputs), sizes_of(self.graph, arguments), bound))

    def _region_program(self, region: Region, given: Mapping[str, Array], sizes: Mapping[str, int]) -> Program:
        try:
            sized = sized_region(region, given, sizes, self.engine.registry.reference_kernels)
        except InputError as error:
            raise Unbound(error) from error
        return self._build(sized)

    def _build(self, sized: Sized) -> Program:
        def bound(at: Mapping[str, Any]) -> Graph:
            try:
                return sized.make(at)
            except InputError as error:
                raise Unbound(error) from error

        return self.engine.build(dataclasses.replace(sized, make=bound), judge=self._judge, cap=self._cap)


def _call(program: Program, arguments: Mapping[str, Array], results: Mapping[str, Array]) -> None:
    try:
        program.run(arguments, results)
    except Cancelled as error:
        raise KeyboardInterrupt(str(error)) from None
