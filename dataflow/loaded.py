"""A model with the weights of one moment: compiled and run for all sizes, for some inputs alone, or interpreted."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from .engine import Engine
from .errors import DataflowError, InputError
from .execute.arguments import DeclaredInputs, sizes_of
from .execute.interpreted import Interpreted, Run
from .execute.program import Program
from .execute.program_calls import ProgramCall, calls_noted
from .execute.regions import value_key, with_wanted
from .execute.sequences import flat_names, flattened, grouped, types_of
from .execute.special_forms import NAMED, Convert, SpecialForms, converted, given_value, shapes_of
from .graph_runs import GraphRuns, NoPlan, Unbound
from .host import checks
from .ir.graph import Graph, with_data_of
from .ir.lowered import Lowered
from .ir.specialize import Argument, Given, Interpreter, Listed, SizesRefused, Subgraph, Wanted
from .ir.types import Array
from .ops.dynamic_shape import deferred, forms_of
from .passes.dynamic_regions import of_read_inputs
from .passes.random_keys import KEY_INPUT, RunKeys, draws, with_key

_MOST_VAIN = 8  # attempts at what is of any sizes, where none was one
_MORE = 64  # times as many plans of a subgraph that a loop runs: for the sizes of its iterations
_T = TypeVar("_T")
_numbers = itertools.count()
log = logging.getLogger("dataflow")


class _Repeats(Exception):
    """Data decide about iterations of a loop; the model's interpreter runs them."""


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
        interpreter: runs the model where data decide about iterations, or ever new forms come, or None.
        keys: by which random nodes without a seed draw; None: there are none, whatever comes in.

    Attributes:
        declared: the graph's inputs.
        forms: inputs and outputs that are no tensors.
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
        interpreter: Interpreter | None = None,
        keys: RunKeys | None = None,
    ) -> None:
        self.graph, self.engine, self.lengths, self.forms = graph, engine, lengths, forms_of(graph)
        self.declared = DeclaredInputs(graph.inputs, graph.initializers)
        self._convert, self._judge, self._cap, self._form, self._keys = convert, judge, cap, form, keys
        waiting = next((node for node in graph.nodes if node.op is deferred), None)
        self._deferred = None if waiting is None else InputError(str(waiting.attributes["why"]))
        # One run may need a program for each number of values that are known: each has as many plans as a model.
        level = len(form[1]) if len(form) > 1 and isinstance(form[1], tuple) else 0
        kind: tuple[Hashable, ...] = ("run", "known", level) if level else ("run",)
        self._runs = GraphRuns(self._drawing(graph), engine, judge, cap, kind, form)
        # Of a session with state, a run that is refused halfway would have to give it back.
        self._interpreted = Interpreted(interpreter if engine.state is None else None, self._subgraph)
        self._special: SpecialForms[Loaded | Wanted] = SpecialForms()  # the latter: what must be known first
        self._named_types: Mapping[str, Given] = {value.name: value.type for value in graph.inputs}
        listed = any(value.name in self.forms for value in graph.inputs)
        self._has_names = not listed and any(not value.type.is_bound for value in graph.inputs)
        self._vain = 0  # runs that nothing could be made for of any sizes

    def keyed(self, arguments: Mapping[str, Array]) -> Mapping[str, Array]:
        """The arguments of a run, with the key that it draws random numbers by, where it may draw any."""
        if self._keys is None or KEY_INPUT in arguments:
            return arguments
        return {**arguments, KEY_INPUT: self._keys.next()}

    def _drawing(self, graph: Graph) -> Graph:
        """The graph, whose random nodes without a seed draw by the key among the arguments."""
        return with_key(graph, drops=False) if self._keys is not None and draws(graph) else graph

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
        found = self._interpreted.run(arguments, outputs, out)
        if found is not None:
            return found
        keyed = self.keyed(arguments)
        if self._special and self.engine.state is None:  # a wrong guess would change what the next run finds
            found = self._run_guessed(keyed, outputs, out)
            if found is not None:
                return found
        try:
            return self._where_bound(keyed, keyed, outputs, lambda made: made._runs.run(keyed, outputs, out))
        except _Repeats:
            return self.run(arguments, outputs, out)

    def program(self, arguments: Mapping[str, Array], outputs: Sequence[str] | None) -> Program:
        """The program for these inputs, of which only the shapes are looked at.

        Raises:
            NoPlan: shapes depend on data, so that there is no plan before it runs.
        """
        if self._keys is not None and KEY_INPUT not in arguments:  # no run, so no key goes
            arguments = {**arguments, KEY_INPUT: np.zeros(2, np.uint64)}

        def use(made: Loaded) -> Program:
            return made._runs.program(arguments, outputs)

        return self._where_bound(arguments, arguments, outputs, use, has_data=False)

    def run_next(
        self, names: tuple[str, ...], given: Mapping[str, Array], out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """As ``run``, of ``keyed`` arguments without the session's state, where a series has a plan; else None."""
        series = self._runs.series
        return None if series is None else series.run_next(names, given, out)

    def calls(self, arguments: Mapping[str, Array], outputs: Sequence[str] | None) -> list[ProgramCall]:
        """The programs that a run with these inputs calls, as it does once it came before, with their arguments."""
        for _ in range(2):
            self.run(arguments, outputs, None)
        with calls_noted() as found:
            self.run(arguments, outputs, None)
        return found

    def run_lists(self, given: Mapping[str, Argument], names: Sequence[str]) -> dict[str, Any]:
        """The outputs of a model with inputs or outputs that are no tensors: arrays, lists of them, or None.

        Args:
            given: for each input.
            names: of outputs.
        """
        found = self._interpreted.run(given, names)
        if found is not None:
            return found
        arguments = self.keyed(flattened(given))

        def use(made: Loaded) -> dict[str, Any]:
            wanted = flat_names(names, made.lengths)
            return grouped(made._runs.run(arguments, wanted, None) if wanted else {}, names, made.lengths)

        try:
            return self._where_bound(given, arguments, None, use)
        except _Repeats:
            return self.run_lists(given, names)

    def _where_bound(
        self,
        given: Mapping[str, Argument],
        arguments: Mapping[str, Array],
        outputs: Sequence[str] | None,
        use: Callable[[Loaded], _T],
        *,
        has_data: bool = True,
    ) -> _T:
        """What ``use`` gives for the model, or for what it is made into, where it can't be bound to these inputs.

        Args:
            given: for each input.
            arguments: the same by names of inputs of the graph that is made.
            outputs: names of results or of inner values; None: all outputs.
            use: raises ``Unbound`` where the graph can't be bound to their sizes.
            has_data: see ``_specialized``.
        """
        # Most models can be bound to any sizes: they don't pay for the others.
        cause, alone = self._deferred, None
        if self._special:
            alone = self._special.cause(shapes_of(types_of(self.graph, given)))
            cause = cause if alone is None else alone
            if cause is None and has_data and self._special.named and not self._runs.has_plan(arguments, outputs):
                cause = self._special.named
        if cause is None:
            try:
                return use(self)
            except Unbound as error:
                cause = error.cause
        named = self._named(arguments, cause) if alone is None and has_data else None
        if named is not None:
            with contextlib.suppress(Unbound):  # for these sizes alone it may be something
                found = use(named)
                self._special.named = cause
                return found
        special = self._specialized(types_of(self.graph, given), arguments, cause, has_data=has_data)
        try:
            return use(special)
        except Unbound as error:
            raise error.cause from None

    # ---- for some inputs alone ------------------------------------------------------------------------

    def _named(self, arguments: Mapping[str, Array], cause: InputError) -> Loaded | None:
        """What the model is for the values of these inputs, of any sizes; None where that can't be said."""
        if not self._has_names or (self._vain >= _MOST_VAIN and self._special.named is None):
            return None
        try:
            if self._deferred is not None:
                sizes_of(self.graph, arguments)  # a file may give sizes one name that aren't alike
            return self._specialized(self._named_types, arguments, cause, NAMED)
        except (InputError, Unbound) as error:  # where data are refused, they are again
            log.debug("made for these sizes alone: %s", error)
            self._vain += 1
            return None

    def _specialized(
        self,
        types: Mapping[str, Given],
        arguments: Mapping[str, Array],
        cause: InputError,
        shapes: Hashable = None,
        *,
        has_data: bool = True,
    ) -> Loaded:
        """What the model is for these inputs, where its graph can't be bound to their sizes.

        Args:
            types: of its inputs.
            arguments: by names of inputs of the graph that is made.
            cause: why it can't.
            shapes: ``NAMED`` where it is to be for the values of these inputs, of any sizes.
            has_data: values that it wants to know are computed.

        Raises:
            InputError: the model is nothing for these inputs either.
        """
        shapes, state, fresh = shapes_of(types) if shapes is None else shapes, self.engine.state, set[Hashable]()
        kept = () if state is None else state.state.pairs.values()

        def make(values: Mapping[str, Array], known: Hashable) -> Loaded | Wanted:
            form = (shapes, known)

            def what() -> Loaded | Wanted:
                made = converted(self._convert, types, values, cause)
                if isinstance(made, Wanted):
                    return made
                if shapes is NAMED and not values and self._deferred is None:
                    raise InputError("no data decide which nodes there are")  # it is the graph that couldn't be bound
                fresh.add(known)
                return self._made(made, form)

            return self._special.made(form, cause, what)

        def compute(wanted: Wanted, known: Hashable) -> Array:
            if not has_data:
                raise NoPlan(f"{wanted.why}: it depends on data, so there is no plan before it runs")
            if wanted.repeats and self._interpreted.comes_to_be_needed():
                raise _Repeats
            given = given_value(wanted, arguments, kept)
            if given is not None:
                return given
            form = (shapes, known, wanted.name)
            found = self._special.made(form, cause, lambda: self._made(of_read_inputs(wanted.graph), form))
            assert isinstance(found, Loaded)
            return found._runs.run(arguments, None, None)[wanted.name]

        made = with_wanted(make, compute)
        if has_data:
            self._special.came(*made._form)  # type: ignore[arg-type]
            self._interpreted.form_came(made._form[1], is_new=made._form[1] in fresh)
        return made

    def _run_guessed(
        self, arguments: Mapping[str, Array], outputs: Sequence[str] | None, out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """The outputs, where what decides about the graph is given, or as it was in the runs before; else None."""
        shapes = shapes_of(types_of(self.graph, arguments))
        if self._special.cause(shapes) is None:
            if self._special.named is None or self._runs.has_plan(arguments, outputs):
                return None
            shapes = NAMED
        values = self._special.guess(shapes, arguments)
        special = self._special.find((shapes, values)) if values else None
        if not isinstance(special, Loaded):
            return None
        guessed = {key[0]: key for key in values if key[0] not in arguments}
        try:
            self._interpreted.form_came(values, is_new=False)
            if not guessed:
                return special._runs.run(arguments, outputs, out)
            names = list(special.graph.outputs) if outputs is None else list(checks.texts("outputs", outputs))
            found = special._runs.run(arguments, [*dict.fromkeys([*names, *guessed])], out)
        except (Unbound, DataflowError):  # other values may be the cause; what fails whatever they are fails again
            return None
        if any(value_key(name, found[name]) != key for name, key in guessed.items()):
            return None
        return {name: found[name] for name in names}

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
        return Loaded(graph, self.engine, self._convert, self._judge, self._cap, form, lengths, keys=self._keys)

    def _subgraph(self, subgraph: Subgraph) -> Run:
        """What runs a subgraph, with the weights of this moment."""
        graph = self._drawing(with_data_of(subgraph.graph, self.graph))
        kind, more = ("run", "subgraph", next(_numbers)), _MORE if subgraph.repeats else 1
        runs = GraphRuns(graph, self.engine, self._judge, self._cap, kind, more=more)

        def run(arguments: Mapping[str, Array]) -> dict[str, Array]:
            try:
                return runs.run(self.keyed(arguments), None, None)
            except Unbound as error:
                raise SizesRefused(str(error.cause)) from None

        return run
