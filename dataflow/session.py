"""Session: the user's handle for running a model."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn

from .engine import Engine
from .errors import Cancelled, InputError, ModelError
from .execute.arguments import checked_inputs, checked_shapes
from .execute.execution import DeviceChoice, Execution
from .execute.maps import as_maps, columns_of, from_maps
from .execute.report import AssignedNode, FallbackJudge, assigned_nodes
from .execute.sequences import checked_arguments
from .execute.weighted import Weighted, weighted
from .graph_runs import NoPlan
from .host import checks
from .host.fork import renew_in_child
from .host.keywords import answering, refused
from .host.limits import Limits, limited
from .host.numbers import integer
from .ir.graph import Graph
from .ir.plan import Plan
from .ir.types import Array
from .loaded import Loaded
from .ops.dynamic_shape import maps_of
from .passes.random_keys import RunKeys, may_draw
from .planning.algorithms import Algorithms
from .plugin.device import Precision
from .plugin.registry import Registry
from .state import SessionState, checked_pairs, stays

if TYPE_CHECKING:
    from .execute.profile import Profile


@answering("run")
class Session:
    """Runs a model; safe to use from several threads.

    It keeps the weights of the moment it was made; ``reload`` takes today's. A plan is made per set of input
    shapes and kept, the least recently used going first.

    Args:
        model: what to run.
        devices: ids in order of preference, each alone or with its options; by default the best available.
        threads: the most to use; by default what the machine lends.
        fallback: ``warn`` says once when more than 1% of the work runs on a device that wasn't named;
            ``error`` refuses, ``allow`` says nothing.
        plans: how many plans are kept; of a model whose shapes depend on data, of each region.
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
        state: outputs that are inputs of the next run, like a decoder's cache: ``{"present.0.key": "past.0.key"}``.
            They stay on the first device, are not given to ``run``, and are returned where ``outputs`` names them.
            ``cache_state`` finds those of usual names. At first they are zeros, as large as other inputs say, or empty.
            An output that is empty where other inputs say a size, as an empty batch, leaves its state as it was: so a
            merged decoder hands on the cache of its cross attention.
        memory: ``"small"``: kernels read weights where the model has them, instead of copies in the form that they
            are fastest with, and all plans use one scratch memory, so that runs take turns.
        seed: of random nodes that have none of their own. They draw other numbers in each run; the first run of a
            session draws those of the first of another with this seed, on any device. A forked child and its parent
            go on with the same ones.

    Raises:
        InputError: an unknown device, option or precision; state that the model hasn't, or whose types don't agree.
        DeviceError: a named device is unavailable.
    """

    def __init__(
        self,
        model: Weighted | Graph,
        devices: Sequence[DeviceChoice] | DeviceChoice | None = None,
        *,
        threads: int | None = None,
        fallback: Literal["warn", "error", "allow"] = "warn",
        plans: int = 16,
        concurrency: int = 4,
        fold: bool = True,
        fuse: bool = True,
        precision: Precision = "float32",
        algorithms: Algorithms | None = None,
        pin: Mapping[str, str] | None = None,
        registry: Registry | None = None,
        limits: Limits | None = None,
        state: Mapping[str, str] | None = None,
        memory: Literal["small"] | None = None,
        seed: int = 0,
    ) -> None:
        self.model: Weighted = weighted(model)
        algorithms = Algorithms() if algorithms is None else algorithms
        small = memory is not None and checks.text("memory", memory, ("small",)) == "small"
        how = Execution(devices, threads, fold, fuse, precision, algorithms, pin, registry, limits, small=small)
        checks.text("fallback", fallback, ("warn", "error", "allow"))
        self._concurrency = integer("concurrency", concurrency)
        pairs = {} if state is None else checked_pairs(self.model.graph, state)
        kept = pairs if stays(self.model.graph, pairs) else {}
        most = integer("plans", plans, 0)
        engine = Engine(how, self.model.graph, plans=most, shares=True, state=kept)
        self._placement, self._devices = engine.placement, engine.devices
        self._judge = FallbackJudge(fallback, engine.placement)
        seed = integer("seed", seed, 0, (1 << 63) - 1)
        self._keys = RunKeys(seed) if may_draw(self.model.graph) else None
        self._reloading = threading.Lock()
        self._now: Loaded | None = self._load(engine)
        self._state = SessionState(self._plain().graph, pairs, engine.state) if pairs else None
        self._running = threading.Lock()  # of runs with state
        self._maps = {} if isinstance(model, Graph) else maps_of(model.graph)
        self._fed = columns_of(self.model.graph.inputs, self._maps)
        renew_in_child(self)

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a Session can't be pickled or copied: it holds memory of devices and plans; send its model, "
            "session.model, and make a Session of it there"
        )

    def _load(self, engine: Engine) -> Loaded:
        model, judge, cap = self.model, self._judge, self._concurrency
        graph, interpreter = model.graph_with_data(), model.interpreter
        return Loaded(graph, engine, model.specialized, judge, cap, interpreter=interpreter, keys=self._keys)

    def _loaded(self) -> Loaded:
        if self._now is None:
            raise ModelError("this Session is closed; make a new one")
        return self._now

    def _plain(self) -> Loaded:
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
        self._reloading, self._running = threading.Lock(), threading.Lock()

    # ---- running --------------------------------------------------------------------------------------

    def run(
        self,
        inputs: Any = None,
        outputs: Sequence[str] | None = None,
        *,
        out: Mapping[str, Array] | None = None,
        **unknown: Never,
    ) -> dict[str, Array]:
        """The outputs by name, in the model's order; the arrays belong to the caller.

        Some are lists of arrays, or None, see ``Model.forms``, or lists of maps, see ``Model.maps``, as inputs are.

        Args:
            inputs: a mapping from name to array, a tuple in order, or one array for a single input.
            outputs: names of results or of inner values; all outputs by default.
            out: arrays to write into, by output name; they must have the exact dtype and shape, and no bytes in
                common with inputs or with each other.
            unknown: none; what is given by another name is refused with the nearest of these.

        Raises:
            InputError: unknown, missing or unfitting inputs; data that a kernel refuses.
            OutOfMemoryError: a memory can't hold the plan or its results.
            LimitExceeded: ``limits`` don't allow the memory or the time.
            ModelError: the session is closed.
            KeyboardInterrupt: Ctrl-C; also inside a native segment.
        """
        if unknown:
            refused(Session.run, self, unknown)
        if self._fed:
            inputs = from_maps(self._loaded().graph.inputs, self._fed, inputs)
        with limited(self._devices.account, "the run"):
            results = self._run(inputs, outputs, out)
        return as_maps(results, self._maps, out) if self._maps else results

    def staged(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Copies of arrays, by name, of any shapes and dtypes, in page-locked memory where there is a card.

        It reads and writes them by itself: as inputs or ``out`` of a run they aren't copied on the host.

        Raises:
            InputError: an entry is no array.
            ModelError: the session is closed.
        """
        self._loaded()
        return {name: self._devices.staged(array) for name, array in checks.arrays("arrays", arrays).items()}

    def _run(self, inputs: Any, outputs: Sequence[str] | None, out: Mapping[str, Array] | None) -> dict[str, Array]:
        loaded = self._loaded()
        if self._state is not None:
            return self._run_state(loaded, self._state, inputs, outputs, out)
        if loaded.forms:
            return _run_lists(loaded, inputs, outputs, out)
        return loaded.run(loaded.declared.checked(inputs), outputs, out)

    def _run_state(
        self,
        loaded: Loaded,
        state: SessionState,
        inputs: Any,
        outputs: Sequence[str] | None,
        out: Mapping[str, Array] | None,
    ) -> dict[str, Array]:
        """As ``run``, with state: it changes when a run is done."""
        given = loaded.keyed(state.checked(inputs, out))
        wanted = None if outputs is None else checks.texts("outputs", outputs)
        with self._running:
            names = None if wanted is None else (*wanted, *(n for n in state.outputs if n not in wanted))
            results = loaded.run_next(names or (), given, out)
            if results is None:
                results = loaded.run(state.arguments(given), names, out)
                state.leave(results, given)
            state.complete(results, wanted or ())
        return results if wanted is None else {name: results[name] for name in wanted}

    @property
    def state(self) -> Mapping[str, Array]:
        """Copies of what the runs so far left for the next, by the name of the input; empty before the first.

        Raises ModelError where the session has none.
        """
        with self._running:
            return MappingProxyType(self._kept_state().read())

    def reset(self, values: Mapping[str, Array] | None = None) -> None:
        """Forgets the state that runs left: the next begins anew, or with ``values``, by the name of the input.

        Raises:
            ModelError: the session has no state.
            InputError: an input that is no state, or an array of another dtype, rank or size than it declares.
        """
        with self._running:
            self._kept_state().reset({} if values is None else checks.mapping("reset", values))

    def _kept_state(self) -> SessionState:
        if self._state is None:
            raise ModelError("this Session has no state; name it: Session(model, state={output: input})")
        return self._state

    def profile(self, inputs: Any = None, outputs: Sequence[str] | None = None, *, rounds: int = 20) -> Profile:
        """The time of each step of the plan for these inputs; they, and ``outputs``, as in ``run``.

        Where data decide about shapes, and so a run has several plans, their steps together.

        Args:
            inputs: arrays; how long a kernel takes may depend on them.
            outputs: names of results or of inner values; all outputs by default.
            rounds: how often everything runs; medians are taken.

        Raises:
            InputError: as ``run``.
            ModelError: the session has state, or the model inputs or outputs that are no tensors.
        """
        from .execute.profile import profile_calls, profile_program

        if self._state is not None:
            raise ModelError("a profile would change this session's state; profile one without, Session(model)")
        loaded = self._plain()
        given = from_maps(loaded.graph.inputs, self._fed, inputs) if self._fed else inputs
        arguments = loaded.keyed(checked_inputs(loaded.graph.inputs, given))
        try:
            with limited(self._devices.account, "the profile"):
                try:
                    return profile_program(loaded.program(arguments, outputs), self._devices, arguments, rounds)
                except NoPlan:
                    calls = loaded.calls(arguments, outputs)
                    return profile_calls(calls, lambda: loaded.run(arguments, outputs, None), self._devices, rounds)
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
            return loaded.program(checked_shapes(loaded.graph, inputs), outputs).plan

    def placement(self, inputs: Any = None) -> list[AssignedNode]:
        """Where and by what each node runs for these inputs, why not on an earlier device; inputs as in ``plan``."""
        with limited(self._devices.account, "the plan"):
            program = (loaded := self._plain()).program(checked_shapes(loaded.graph, inputs), None)
        return list(assigned_nodes(program.lowered, program.plan))


def _run_lists(
    loaded: Loaded, inputs: Any, outputs: Sequence[str] | None, out: Mapping[str, Array] | None
) -> dict[str, Any]:
    """As ``Session.run``, of a model with inputs or outputs that are no tensors: its graph is that of their lengths."""
    if out:
        raise InputError("out: a model with sequences or optionals gives new arrays; leave it out")
    names = tuple(loaded.graph.outputs) if outputs is None else checks.texts("outputs", outputs)
    return loaded.run_lists(checked_arguments(loaded.graph, loaded.forms, inputs), names)
