"""The graph for the inputs of a batch, and the sizes that its data decides about."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np

from ..engine import Engine
from ..errors import InputError
from ..execute.arguments import sizes_of
from ..execute.program import Program
from ..execute.regions import Form, Sizes, run_regions, sized_region, with_wanted
from ..ir.graph import Graph, with_data_of
from ..ir.specialize import Wanted
from ..ir.types import Array, TensorType
from ..ir.value import Value
from ..lower.templates import Sized
from ..ops.dynamic_shape import deferred
from ..passes.bind_shapes import bind
from ..passes.dynamic_regions import Region, choices, deciding, depends_on_data, split, with_choices
from ..passes.size_values import CompletedSizes

CHOICE = "choice/"  # before the names of values that one program computes, and another is given
MOST_SPECIAL = 64  # graphs for some inputs alone that are kept, the least recently used going first
Specialize = Callable[[Mapping[str, TensorType], Mapping[str, Array]], "Graph | Wanted | None"]
"""The model's graph for inputs of these types, and values that it wanted before; None where it has no other."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Undecided(Exception):
    """The graph can't be bound to the sizes of a batch, and data decides which other there is: decide again."""


def decided_again(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """The method, called again where it found that data decides about the graph of a batch."""

    @functools.wraps(method)
    def done(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except Undecided:
            return method(*args, **kwargs)

    return done


class Source:
    """A graph that isn't bound yet.

    Attributes:
        plain: likewise, inference mode.
        names: of the inputs that its choices become.
        graph: with these inputs; ``plain`` itself where no size depends on data.
        depends: some size does.
        completed: adds sizes that are computed from others.
        regions: those that decide about sizes, by kind of program.
    """

    def __init__(self, plain: Graph) -> None:
        self.plain, self.depends = plain, depends_on_data(plain)
        self.names = {v.name: CHOICE + v.name for v in choices(plain)} if self.depends else {}
        self.graph = with_choices(plain, self.names) if self.depends else plain
        self.completed = CompletedSizes(plain)
        self.regions: dict[Hashable, tuple[Region, ...]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """What the data of a batch decided.

    Attributes:
        source: the graph to bind.
        sizes: all that have names; None: those of the inputs are enough.
        arguments: the choices, inputs of the graph beside the model's.
        form: tells programs for it from those for other decisions.
    """

    source: Source
    sizes: Sizes | None = None
    arguments: Mapping[str, Array] = field(default_factory=dict)
    form: Form = ()


class DataSizes:
    """Runs the regions of a graph that decide about its sizes; what they chose is given to the graph behind them.

    Sizes and choices then fit each other whatever the rounding of each program is. Gradients don't go through whole
    numbers, so nothing is missing from them.

    Args:
        graph: the model's; inference mode.
        specialize: gives it for inputs of given types, where it can't be bound to their sizes.
        engine: compiles and keeps the programs of regions.
        build: makes one.
        call: runs one: its arguments, and the arrays that it writes.
    """

    def __init__(
        self,
        graph: Graph,
        specialize: Specialize,
        engine: Engine,
        build: Callable[[Sized], Program],
        call: Callable[[Program, Mapping[str, Array], Mapping[str, Array]], None],
    ) -> None:
        self._source, self._specialize = Source(graph), specialize
        self._engine, self._build, self._call = engine, build, call
        self._kernels = engine.registry.reference_kernels
        self._waits = next((str(node.attributes["why"]) for node in graph.nodes if node.op is deferred), "")
        self._plain = Decided(self._source)
        self._unbound: dict[Hashable, InputError] = {}  # by sizes, why the graph can't be bound to them
        self._special: dict[Hashable, Source | Wanted] = {}  # by sizes and known values, the least recently used first
        self._computing: dict[Hashable, Source] = {}  # what computes a value that is wanted, likewise and by its name

    @property
    def depends(self) -> bool:
        """Whether data decides about some sizes, as far as is known before there is a batch."""
        return self._source.depends or bool(self._waits)

    @property
    def decides(self) -> bool:
        """Whether data decides about the sizes or the graph of some batch so far."""
        return self.depends or bool(self._unbound)

    def decide(self, kind: tuple[Hashable, ...], batch: Mapping[str, Array], form: Callable[[Graph], Graph]) -> Decided:
        """What the data of a batch decides, by the newest weights.

        Args:
            kind: of ``form``.
            batch: the arguments of the program to plan.
            form: makes of the model's graph what that program runs.

        Raises:
            InputError: a size is negative, or doesn't fit the nodes; or a value is too large to decide about sizes.
            KeyboardInterrupt: Ctrl-C.
        """
        if not self.decides:
            return self._plain
        sizes = self._sizes_of(batch)
        shapes = tuple(sizes.items())
        cause = InputError(self._waits) if self._waits else self._unbound.get(shapes)
        if cause is None and not self._source.depends:
            return self._plain
        if cause is None:
            try:
                return self._decided(self._source, (), kind, batch, form, sizes)
            except InputError as error:
                cause = error
        source, known = self._specialized(kind, batch, form, sizes, cause)
        self._remember(self._unbound, shapes, cause)
        return self._decided(source, (shapes, known), kind, batch, form, sizes)

    def named(self, decided: Decided, batch: Mapping[str, Array]) -> Sizes:
        """All sizes that have names in the graph for a batch."""
        return self._sizes_of(batch) if decided.sizes is None else decided.sizes

    def bound(self, decided: Decided, batch: Mapping[str, Array]) -> Graph:
        """The graph for a batch.

        Raises:
            InputError: with these sizes a node's shapes don't fit.
            Undecided: see there.
        """
        if decided.sizes is not None:
            return bind(decided.source.graph, decided.sizes, self._kernels)
        sizes = self._sizes_of(batch)
        try:
            return bind(decided.source.graph, sizes, self._kernels)
        except InputError as error:
            made = self._specialize({v.name: v.type.bind(sizes) for v in self._source.plain.inputs}, {})
            if made is None:
                raise
            if isinstance(made, Wanted) or depends_on_data(made):
                self._remember(self._unbound, tuple(sizes.items()), error)
                raise Undecided from error
            return bind(made, {}, self._kernels)

    def connected(self, decided: Decided, names: Collection[str], outputs: Collection[str]) -> frozenset[str]:
        """Which of these stored tensors some results depend on through floats, whatever data decides.

        Where data decides which graph there is, those too that aren't in that of the batch. None where data decides
        nothing: it is seen in the graph that is planned.

        Args:
            decided: for some batch.
            names: of stored tensors.
            outputs: names of results.
        """
        graph = decided.source.plain
        absent = frozenset(names).difference(v.name for v in graph.initializers) if decided.form else frozenset()
        if not decided.source.depends:
            return absent
        reached: set[Value] = {v for name, v in graph.outputs.items() if name in set(outputs)}
        for node in reversed(graph.nodes):
            if not reached.isdisjoint(v for v in node.outputs if v is not None):
                reached |= {v for v in node.inputs if v is not None and v.type.dtype.is_float}
        return absent | (frozenset(v.name for v in reached) & frozenset(names))

    def _sizes_of(self, batch: Mapping[str, Array]) -> dict[str, int]:
        graph = self._source.plain
        return sizes_of(graph, {v.name: np.asarray(batch[v.name]) for v in graph.inputs})

    # ---- one graph ------------------------------------------------------------------------------------

    def _decided(
        self,
        source: Source,
        key: Form,
        kind: tuple[Hashable, ...],
        batch: Mapping[str, Array],
        form: Callable[[Graph], Graph],
        sizes: Sizes,
    ) -> Decided:
        if not source.depends:
            return Decided(source, sizes, form=key)
        if kind not in source.regions:
            source.regions[kind] = deciding(form(source.plain))
        values, sizes = self._run(source, source.regions[kind], (*key, *kind), batch, sizes)
        given = {name: values[choice] for choice, name in source.names.items()}
        return Decided(source, sizes, given, (*key, *sorted(sizes.items())))

    def _run(
        self, source: Source, regions: tuple[Region, ...], key: Form, batch: Mapping[str, Array], sizes: Sizes
    ) -> tuple[dict[str, Array], dict[str, int]]:
        def program_of(index: int, region: Region, given: Mapping[str, Array], sizes: Sizes, form: Form) -> Program:
            def make() -> Program:
                return self._build(sized_region(region, given, sizes, self._kernels))

            return self._engine.program(("sizes", index), (*key, *form), make)

        return run_regions(
            regions,
            batch,
            sizes,
            lambda sizes: source.completed.of(sizes, self._kernels),
            program_of,
            self._call,
        )

    # ---- for some inputs alone ------------------------------------------------------------------------

    def _specialized(
        self,
        kind: tuple[Hashable, ...],
        batch: Mapping[str, Array],
        form: Callable[[Graph], Graph],
        sizes: Sizes,
        cause: InputError,
    ) -> tuple[Source, Form]:
        """The graph for these sizes, and for the values that it wants to know; and what tells these values."""
        types = {v.name: v.type.bind(sizes) for v in self._source.plain.inputs}
        shapes = tuple(sizes.items())

        def make(values: Mapping[str, Array], known: Form) -> tuple[Source, Form] | Wanted:
            made = self._special.get((shapes, known))
            if made is None:
                found = self._specialize(types, values)
                if found is None:
                    raise cause
                made = Source(found) if isinstance(found, Graph) else found
            self._remember(self._special, (shapes, known), made)
            return made if isinstance(made, Wanted) else (made, known)

        def compute(wanted: Wanted, known: Form) -> Array:
            key = (shapes, known, wanted.name, *kind)
            source = self._computing.get(key) or Source(form(with_data_of(wanted.graph, self._source.plain)))
            regions = source.regions[kind] = source.regions.get(kind) or split(source.plain)
            self._remember(self._computing, key, source)
            values, _ = self._run(source, regions, key, batch, {})
            return values[source.plain.outputs[wanted.name].name]

        return with_wanted(make, compute)

    @staticmethod
    def _remember(kept: dict[Hashable, _T], key: Hashable, value: _T) -> None:
        kept.pop(key, None)
        kept[key] = value  # the most recently used one
        while len(kept) > MOST_SPECIAL:
            del kept[next(iter(kept))]
