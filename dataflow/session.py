"""Session: the user's handle for running a model."""

from __future__ import annotations

import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from .engine import Engine
from .errors import Cancelled, DataflowError, InputError, LimitExceeded, ModelError, OutOfMemoryError
from .execute.arguments import check_result, checked_inputs, checked_shapes, sizes_of
from .execute.execution import DeviceChoice, Execution
from .execute.program import Program
from .execute.report import AssignedNode, assigned_nodes, work_elsewhere
from .execute.sequences import checked_arguments, flat_names, flattened, grouped, types_of
from .host import checks
from .host.fork import renew_in_child
from .host.garbage_collection import collection_paused
from .host.limits import Limits, limited
from .host.numbers import integer
from .ir.graph import Graph, with_data_of
from .ir.lowered import Lowered
from .ir.plan import Plan
from .ir.specialize import Form, Given, Listed, Wanted
from .ir.types import Array
from .ops.dynamic_shape import forms_of
from .passes.bind_shapes import bind, dims_of
from .passes.dead_code import eliminate_dead_code
from .passes.dynamic_regions import Region, depends_on_data, split
from .passes.size_values import MOST_BYTES, Kernels, completed, take_sizes
from .planning.algorithms import Algorithms
from .plugin.device import Precision
from .plugin.registry import Registry

if TYPE_CHECKING:
    from .execute.profile import Profile

_T = TypeVar("_T")
log = logging.getLogger("dataflow")
_MOST_SPECIAL = 64  # forms of inputs and values of which the graphs that were made for them alone are kept


@runtime_checkable
class Weighted(Protocol):
    """What a session runs: see ``Model``."""

    @property
    def graph(self) -> Graph:
        """Immutable."""

    def graph_with_data(self) -> Graph:
        """The graph with today's data in its initializers."""

    def specialized(self, types: Mapping[str, Given], values: Mapping[str, Array]) -> Graph | Wanted | Listed | None:
        """The graph for inputs of these types, or None; see ``ir.specialize``."""


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A graph whose data never change."""

    graph: Graph

    def graph_with_data(self) -> Graph:
        """The graph."""
        return self.graph

    def specialized(self, types: Mapping[str, Given], values: Mapping[str, Array]) -> Graph | Wanted | Listed | None:
        """None: it has no other form."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Loaded:
    """What a session made of the weights of one moment; each call uses that of its begin.

    Attributes:
        depends: some of its sizes depend on data.
        regions: by names of results.
        form: of inputs and values that it was specialized for; empty: it is for all.
        forms: inputs and outputs that are no tensors.
        lengths: of outputs that are sequences or absent, where it was specialized.
        special: the same for some inputs and values alone, or what must be known first, the least recently used first.
        unbound: by shapes of inputs, why the graph can't be bound to them.
    """

    graph: Graph
    engine: Engine
    depends: bool
    regions: dict[tuple[str, ...], tuple[Region, ...]]
    form: tuple[Hashable, ...] = ()
    forms: Mapping[str, Form] = field(default_factory=dict)
    lengths: Mapping[str, int | None] = field(default_factory=dict)
    special: OrderedDict[tuple[Hashable, ...], _Loaded | Wanted] = field(default_factory=OrderedDict)
    unbound: dict[Hashable, InputError] = field(default_factory=dict)


class _Unbound(Exception):
    """The graph can't be bound to the sizes of inputs; the cause says why."""

    def __init__(self, cause: InputError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Session:
    """Runs a model; safe to use from several threads.

    It keeps the weights of the moment it was made; ``reload`` takes today's. A plan is made per set of input
    shapes and kept, the least recently used going first.

    Args:
        model: what to run.
        devices: ids in order of preference, each alone or with its options; by default the best available.
        threads: the most to use; by default what the machine lends.
        fallback: ``warn`` says once when more than 1% of the work runs on a device that wasn't named;
            ``error`` refuses.
        plans: how many plans are kept.
        concurrency: how many runs of one plan may be in progress at once; more wait.
        fold: compute at compile time what depends on constants alone.
        fuse: let one kernel compute a chain of ops where a device has one for it.
        precision: how products of float32 may be computed; ``"bf16x6"``, ``"tf32"`` and ``"bf16"`` are for devices that
            are faster so (others compute as float32). See ``dataflow.plugin.device.Precision``.
        algorithms: which one a kernel uses where it has several; by default what it finds best. See ``Algorithms``.
        pin: device ids by pattern: where nodes of that name, or that compute a value or read a parameter of that
            name, run if the device takes them.
        registry: of plugins; the installed ones by default.
        limits: the most memory and time that the model may take; for models that are not trusted. See ``Limits``.

    Raises:
        InputError: an unknown device, option or precision.
        DeviceError: a named device is unavailable.
    """

    def __init__(
        self,
        model: Weighted | Graph,
        devices: Sequence[DeviceChoice] | DeviceChoice | None = None,
        *,
        threads: int | None = None,
        fallback: Literal["warn", "error"] = "warn",
        plans: int = 16,
        concurrency: int = 4,
        fold: bool = True,
        fuse: bool = True,
        precision: Precision = "float32",
        algorithms: Algorithms | None = None,
        pin: Mapping[str, str] | None = None,
        registry: Registry | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.model: Weighted = _Fixed(model) if isinstance(model, Graph) else _checked(model)
        algorithms = Algorithms() if algorithms is None else algorithms
        how = Execution(devices, threads, fold, fuse, precision, algorithms, pin, registry, limits)
        checks.text("fallback", fallback, ("warn", "error"))
        self._fallback, self._warned = fallback, False
        self._concurrency = integer("concurrency", concurrency)
        engine = Engine(how, self.model.graph, plans=integer("plans", plans, 0), borrows=True)
        self._placement, self._devices = engine.placement, engine.devices
        self._lock, self._reloading = threading.Lock(), threading.Lock()
        self._now: _Loaded | None = self._load(engine)
        renew_in_child(self)

    def _load(self, engine: Engine) -> _Loaded:
        graph = self.model.graph_with_data()
        return _Loaded(graph, engine, depends_on_data(graph), {}, forms=forms_of(graph))

    def _loaded(self) -> _Loaded:
        if self._now is None:
            raise ModelError("this Session is closed; make a new one")
        return self._now

    def _plain(self) -> _Loaded:
        """The model, of tensors alone.

        Raises:
            ModelError: it has sequences or optionals.
        """
        loaded = self._loaded()
        if loaded.forms:
            listed = ", ".join(f"{name!r} is a {form}" for name, form in loaded.forms.items())
            raise ModelError(f"{listed}: there is no plan before it runs; session.plans has those of the runs so far")
        return loaded

    @property
    def devices(self) -> tuple[str, ...]:
        """Device ids in order of preference."""
        return self._placement.devices

    @property
    def threads(self) -> int:
        """The most threads that a kernel uses."""
        return self._devices.threads

    def reload(self) -> None:
        """Takes the model's newest weights; runs in progress end with the old ones."""
        with self._reloading:
            self._now = self._load(self._loaded().engine.renewed())

    def close(self) -> None:
        """Lets go of weights and plans; runs in progress end, and what begins later is refused with ModelError."""
        with self._reloading:
            self._now = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def renew(self) -> None:
        """In a forked child: new locks."""
        self._lock, self._reloading = threading.Lock(), threading.Lock()

    # ---- running --------------------------------------------------------------------------------------

    def run(
        self,
        inputs: Any = None,
        outputs: Sequence[str] | None = None,
        *,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """The outputs by name, in the model's order; the arrays belong to the caller.

        Of a model with sequences or optionals, some are lists of arrays, or None; see ``Model.forms``.

        Args:
            inputs: a mapping from name to array, a tuple in order, or one array for a single input.
            outputs: names of results or of inner values; all outputs by default.
            out: arrays to write into, by output name; they must have the exact dtype and shape, and no bytes in
                common with inputs or with each other.

        Raises:
            InputError: unknown, missing or unfitting inputs; data that a kernel refuses.
            OutOfMemoryError: a memory can't hold the plan or its results.
            LimitExceeded: ``limits`` don't allow the memory or the time.
            ModelError: the session is closed.
            KeyboardInterrupt: Ctrl-C; also inside a native segment.
        """
        with limited(self._devices.account, "the run"):
            return self._run(inputs, outputs, out)

    def _run(self, inputs: Any, outputs: Sequence[str] | None, out: Mapping[str, Array] | None) -> dict[str, Array]:
        loaded = self._loaded()
        if loaded.forms:
            return self._run_lists(loaded, inputs, outputs, out)
        arguments = checked_inputs(loaded.graph, inputs)
        return self._bound(loaded, arguments, lambda form: self._run_on(form, arguments, outputs, out))

    def _bound(
        self, loaded: _Loaded, arguments: Mapping[str, Array], use: Callable[[_Loaded], _T], *, runs: bool = True
    ) -> _T:
        """What ``use`` gives for the model, or for the model made for these inputs, where it can't be bound to them.

        Args:
            loaded: the model for all sizes.
            arguments: inputs.
            use: raises ``_Unbound`` where the graph can't be bound to their sizes.
            runs: see ``_specialized``.
        """
        # Most models can be bound to any sizes: they don't pay for the others.
        cause = loaded.unbound.get(_shapes(types_of(loaded.graph, arguments))) if loaded.unbound else None
        if cause is None:
            try:
                return use(loaded)
            except _Unbound as error:
                cause = error.cause
        special = self._specialized(loaded, types_of(loaded.graph, arguments), arguments, cause, runs=runs)
        try:
            return use(special)
        except _Unbound as error:
            raise error.cause from None

    def _run_lists(
        self, loaded: _Loaded, inputs: Any, outputs: Sequence[str] | None, out: Mapping[str, Array] | None
    ) -> dict[str, Any]:
        """As ``run``, of a model with inputs or outputs that are no tensors: its graph is that of their lengths."""
        if out:
            raise InputError("out: a model with sequences or optionals gives new arrays; leave it out")
        given = checked_arguments(loaded.graph, loaded.forms, inputs)
        types, arguments = types_of(loaded.graph, given), flattened(given)
        special = self._specialized(loaded, types, arguments, InputError("the model has sequences or optionals"))
        names = tuple(loaded.graph.outputs) if outputs is None else checks.texts("outputs", outputs)
        flat = flat_names(names, special.lengths)
        try:
            results = self._run_on(special, arguments, flat, None) if flat else {}
        except _Unbound as error:
            raise error.cause from None
        return grouped(results, names, special.lengths)

    def _run_on(
        self,
        loaded: _Loaded,
        arguments: Mapping[str, Array],
        outputs: Sequence[str] | None,
        out: Mapping[str, Array] | None,
    ) -> dict[str, Array]:
        if loaded.depends:
            return self._run_regions(loaded, arguments, outputs, out or {})
        program = self._program(loaded, arguments, outputs)
        results = program.results.arrays(out, arguments)
        try:
            program.run(arguments, results)
        except Cancelled as error:
            raise KeyboardInterrupt(str(error)) from None
        return results

    def _specialized(
        self,
        loaded: _Loaded,
        types: Mapping[str, Given],
        arguments: Mapping[str, Array],
        cause: InputError,
        *,
        runs: bool = True,
    ) -> _Loaded:
        """What the model is for these inputs, where its graph can't be bound to their sizes.

        Args:
            loaded: the model for all sizes.
            types: of its inputs.
            arguments: by names of inputs of the graph that is made.
            cause: why it can't.
            runs: values that it wants to know are computed; the inputs have data.

        Raises:
            InputError: the model is nothing for these inputs either.
        """
        values: dict[str, Array] = {}
        while True:
            known = tuple((name, array.dtype.str, array.shape, array.tobytes()) for name, array in values.items())
            form = (_shapes(types), known)
            made = self._known_special(loaded, form)
            if made is None:
                converted = self._convert(types, values, cause)
                made = converted if isinstance(converted, Wanted) else self._special_of(loaded, converted, form)
                self._keep_special(loaded, form, made, cause)
            if isinstance(made, _Loaded):
                return made
            if not runs:
                raise ModelError(f"{made.why}: it depends on data, so there is no plan before it runs")
            before = self._special_of(loaded, made.graph, (*form, made.name))
            found = self._run_on(before, arguments, None, None)[made.name]
            if found.nbytes > MOST_BYTES:
                raise InputError(f"{made.why}: it takes {found.nbytes} bytes; expected at most {MOST_BYTES}")
            values[made.name] = found

    def _convert(
        self, types: Mapping[str, Given], values: Mapping[str, Array], cause: InputError
    ) -> Graph | Wanted | Listed:
        try:
            made = collection_paused(lambda: self.model.specialized(types, values))
        except (Cancelled, LimitExceeded, OutOfMemoryError):
            raise
        except DataflowError as error:
            raise InputError(f"{cause}; made for these sizes alone it fails too: {error}") from None
        if made is None:
            raise cause
        return made

    def _special_of(self, loaded: _Loaded, made: Graph | Listed, form: tuple[Hashable, ...]) -> _Loaded:
        if isinstance(made, Graph):
            graph = with_data_of(made, loaded.graph)  # of the moment at which the session took it
            return _Loaded(graph, loaded.engine, depends_on_data(graph), {}, form)
        if not loaded.forms:
            raise InputError(f"for these inputs some outputs are no tensors: {', '.join(map(repr, made.lengths))}")
        # Where there is nothing to compute, nothing is wanted of the graph.
        graph = loaded.graph if made.graph is None else with_data_of(made.graph, loaded.graph)
        return _Loaded(graph, loaded.engine, depends_on_data(graph), {}, form, lengths=made.lengths)

    def _known_special(self, loaded: _Loaded, form: tuple[Hashable, ...]) -> _Loaded | Wanted | None:
        with self._lock:
            if form in loaded.special:
                loaded.special.move_to_end(form)
            return loaded.special.get(form)

    def _keep_special(
        self, loaded: _Loaded, form: tuple[Hashable, ...], made: _Loaded | Wanted, cause: InputError
    ) -> None:
        with self._lock:
            loaded.special[form] = made
            while len(loaded.special) > _MOST_SPECIAL:
                loaded.special.popitem(last=False)
            loaded.unbound[form[0]] = cause
            while len(loaded.unbound) > _MOST_SPECIAL:
                del loaded.unbound[next(iter(loaded.unbound))]

    def _run_regions(
        self, loaded: _Loaded, arguments: Mapping[str, Array], outputs: Sequence[str] | None, out: Mapping[str, Array]
    ) -> dict[str, Array]:
        """As ``run``, where sizes are read off tensors: region by region, each planned when its sizes are known."""
        names = tuple(outputs) if outputs is not None else ()
        graph = loaded.graph if not names else _with_outputs(loaded.graph, names)
        with self._lock:
            regions = loaded.regions.get(names)
            if regions is None:
                regions = loaded.regions[names] = split(graph)
        for name, array in out.items():
            if name not in graph.outputs:
                raise InputError(f"out: there is no output {name!r}; there are: {', '.join(graph.outputs)}")
            check_result(name, array)
        kernels = loaded.engine.registry.reference_kernels
        sizes = sizes_of(loaded.graph, arguments)
        values = dict(arguments)
        for index, region in enumerate(regions):
            sizes = _completed(loaded.graph, sizes, kernels)
            given = {v.name: values[v.name] for v in region.graph.inputs}
            needed = tuple((name, sizes[name]) for name in sorted(dims_of(region.graph)))
            shapes = tuple(np.shape(a) for a in given.values())
            make = functools.partial(self._region_for, loaded, region, given, sizes)
            program = loaded.engine.program(("run",), (loaded.form, names, index, shapes, needed), make)
            results = program.results.arrays()
            try:
                program.run(given, results)
            except Cancelled as error:
                raise KeyboardInterrupt(str(error)) from None
            values.update(results)
            for node, value in region.reads:
                take_sizes(node, values[value.name], sizes)
        found = {name: values[value.name] for name, value in graph.outputs.items()}
        for name in out:
            if out[name].dtype != found[name].dtype or out[name].shape != found[name].shape:
                raise InputError(f"out[{name!r}]: expected {found[name].dtype}{list(found[name].shape)}")
            out[name][...] = found[name]
            found[name] = out[name]
        return found

    def profile(self, inputs: Any = None, outputs: Sequence[str] | None = None, *, rounds: int = 20) -> Profile:
        """The time of each step of the plan for these inputs; they, and ``outputs``, as in ``run``.

        Args:
            inputs: arrays; how long a kernel takes may depend on them.
            outputs: names of results or of inner values; all outputs by default.
            rounds: how often everything runs; medians are taken.

        Raises:
            InputError: as ``run``.
            ModelError: shapes depend on data, so that there is no plan before it runs.
        """
        from .execute.profile import profile_program

        loaded = self._plain()
        arguments = checked_inputs(loaded.graph, inputs)
        try:
            with limited(self._devices.account, "the profile"):
                return profile_program(self._plannable(loaded, arguments, outputs), self._devices, arguments, rounds)
        except Cancelled as error:
            raise KeyboardInterrupt(str(error)) from None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far that are still kept; of a model whose shapes depend on data, one per region."""
        return tuple(program.plan for program in self._loaded().engine.programs.values())

    def plan(self, inputs: Any = None, outputs: Sequence[str] | None = None) -> Plan:
        """The plan for these inputs.

        Args:
            inputs: shapes (or arrays) by name; a tuple in order; nothing where all shapes are fixed.
            outputs: as in ``run``.
        """
        with limited(self._devices.account, "the plan"):
            loaded = self._plain()
            return self._plannable(loaded, checked_shapes(loaded.graph, inputs), outputs).plan

    def placement(self, inputs: Any = None) -> list[AssignedNode]:
        """Where each node runs for these inputs, and why not on an earlier device; inputs as in ``plan``."""
        with limited(self._devices.account, "the plan"):
            loaded = self._plain()
            lowered = self._plannable(loaded, checked_shapes(loaded.graph, inputs), None).lowered
        return list(assigned_nodes(lowered))

    def _plannable(self, loaded: _Loaded, arguments: Mapping[str, Array], outputs: Sequence[str] | None) -> Program:
        """The program for these inputs, of which only the shapes are looked at."""
        return self._bound(loaded, arguments, lambda form: self._program(form, arguments, outputs), runs=False)

    def _program(self, loaded: _Loaded, arguments: Mapping[str, Array], outputs: Sequence[str] | None) -> Program:
        if loaded.depends:
            node = next(n for n in loaded.graph.nodes if n.op.name == "read_shape")
            raise ModelError(
                f"{node.origin or node.describe()}: what follows has a shape that depends on data, so it has no plan "
                "before it runs; session.plans has those of the runs so far"
            )
        names = () if outputs is None else checks.texts("outputs", outputs)
        form = (loaded.form, names, tuple(a.shape for a in arguments.values()))
        return loaded.engine.program(("run",), form, lambda: self._compile(loaded, arguments, names))

    def _compile(self, loaded: _Loaded, arguments: Mapping[str, Array], outputs: tuple[str, ...]) -> Program:
        graph = loaded.graph if not outputs else eliminate_dead_code(_with_outputs(loaded.graph, outputs))
        return self._build(loaded, graph, sizes_of(loaded.graph, arguments))

    def _region_for(
        self, loaded: _Loaded, region: Region, given: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> Program:
        """The program of a region, for what the regions before it gave."""
        for value in region.graph.inputs:
            wanted, found = value.type.bind(sizes), given[value.name].shape
            if wanted.shape != found:
                text = f"{value.name!r} has shape {found}; the nodes that read it were made for {wanted}"
                raise _Unbound(InputError(text))
        return self._build(loaded, region.graph, sizes)

    def _build(self, loaded: _Loaded, graph: Graph, sizes: Mapping[str, int]) -> Program:
        try:
            bound = bind(graph, sizes, loaded.engine.registry.reference_kernels)
        except InputError as error:
            raise _Unbound(error) from error
        return loaded.engine.build(bound, judge=self._judge, cap=self._concurrency)

    def _judge(self, lowered: Lowered) -> None:
        """Says, or refuses, when much of the work is not on a named device."""
        if self._warned and self._fallback == "warn":
            return
        text = work_elsewhere(lowered, self._placement)
        if text is None:
            return
        if self._fallback == "error":
            raise ModelError(text + "; name the device, or leave out fallback='error'")
        self._warned = True
        log.warning(text)


def _shapes(types: Mapping[str, Given]) -> Hashable:
    """The shapes of what is given for each input, as a key."""
    return tuple(
        tuple(type_.shape for type_ in given) if isinstance(given, tuple) else getattr(given, "shape", None)
        for given in types.values()
    )


def _completed(graph: Graph, sizes: Mapping[str, int], kernels: Kernels) -> dict[str, int]:
    try:
        return completed(graph, sizes, kernels)
    except InputError as error:
        raise _Unbound(error) from error


def _with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with these results: its own outputs or any value by name."""
    import dataclasses

    chosen = {name: graph.outputs[name] if name in graph.outputs else graph.find(name) for name in names}
    return dataclasses.replace(graph, outputs=chosen)


def _checked(model: Any) -> Weighted:
    """The model; raises InputError where it is something else."""
    if not isinstance(model, Weighted):
        raise InputError(f"model is {checks.shown(model)}; expected a Model or a Graph")
    return model
