"""Compiles the programs of a training: a micro-batch's, a step's, the optimizer's, and those that evaluate."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ...compile import to_differentiate
from ...engine import Engine
from ...execute.execution import Execution
from ...execute.marks import last_uses
from ...execute.program import Program
from ...execute.scratch import Scratch
from ...execute.series import SeriesProgram
from ...host.garbage_collection import collection_paused
from ...ir.graph import Graph
from ...ir.kernel import HOST
from ...ir.tracing import active
from ...ir.types import Array
from ...lower.templates import Sized
from ...model import Model
from ...passes.bind_shapes import bind, dims_of
from ...passes.random_keys import KEY_INPUT
from ...planning.offsets import lie_apart
from ..data_sizes import DataSizes, Decided, decided_again
from ..graphs import Draws, Graphs, types_of
from ..joint import ACCUMULATOR, SCALE, WEIGHT, reading
from ..objective import Objective
from ..optimizers.update_graph import update_arguments
from ..optimizers.updates import Updates
from ..parallel.gradient_sums import GradientSums
from ..parallel.shards import Shards
from ..tied_weights import Tie, tied
from ..trained import Trained
from .gates import Gates
from .phases import Phases
from .ready import Ready, call
from .series import BatchSeries
from .sizes import Make, Sizes, averaged, complete, form_of, sized, without
from .specialized import specialized

PLANS = 64  # per program; the least recently used goes. One of a model of four layers takes 1 MB


class Making:
    """Makes the programs of one training; they share weights, state and one arena. See ``Programs`` for the arguments.

    Attributes:
        engine: has the devices and keeps the programs.
        graph: the model's, with its ties and data; inference mode.
        trained: the tensors that training changes.
        updates: what an optimizer step does.
        frozen: names of parameters that have no gradients now.
        scale: what the loss is multiplied by for its gradients.
        as_ready: in a step each parameter is updated as soon as its gradient is complete.
        gates: which steps may be one run.
        data: what the data of batches decides.
        sums: what sums gradients over processes, where they agreed on it.
        shards: whose parameters this process updates; None: all.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        updates: Updates,
        trainable: Sequence[str],
        how: Execution,
        *,
        batch_norm: str,
        ties: Mapping[str, Tie],
        draws: Draws | None,
        sites: Mapping[str, float],
        scaled: bool,
        as_ready: bool,
    ) -> None:
        self.engine = Engine(how, model.graph, plans=PLANS)
        self.graph = tied(model.graph_with_data(), ties)
        self.updates, self.as_ready, self.scale = updates, as_ready, 1.0
        self.frozen: frozenset[str] = frozenset()
        self._phases = Phases()
        self.sums: GradientSums | None = None
        self.shards: Shards | None = None
        self._fuse, self._draws, self._scaled = how.fuse, draws, scaled
        self._scratch = Scratch(self.engine.devices, exact=how.memory is not None and how.memory.is_budget)
        self._graphs = Graphs(self.graph, objective, updates, batch_norm == "update", draws, sites, scaled)
        self.gates = Gates(self._graphs, self.engine, as_ready)
        specialize = functools.partial(specialized, model, objective, ties)
        self.data = DataSizes(self.graph, specialize, self.engine, self._built, call)
        self._read = objective.read
        self.trained = Trained(self.engine, self.graph, updates, trainable, self._graphs.statistics, ties)
        one_plan = self.data.depends or lie_apart() or not (self.engine.makes_series and dims_of(self.graph))
        self._series = None if one_plan else BatchSeries(self.graph, self.engine)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters that the loss depends on, but for frozen ones; known after the first micro-batch."""
        return tuple(name for name in self.trained.reached if name not in self.frozen)

    def freeze(self, names: frozenset[str], updates: Updates) -> None:
        """See ``Programs.freeze``; programs stay for when the same are frozen again."""
        if self.sums is not None or self._phases.are_many:
            self._phases.forget()
            self.forget()
        self.sums = None
        self.frozen, self.updates, self._graphs.updates = names, updates, updates
        self._phases.begin(names, updates)
        self.gates.forget()

    def forget(self) -> None:
        """Drops all programs."""
        self.engine.forget_programs()
        if self._series is not None:
            self._series.forget()

    def end(self) -> None:
        """Gives the memory back that only programs need; none can run any more."""
        self.forget()
        self._scratch.close()

    @decided_again
    def micro_batch(
        self, batch: Mapping[str, Array], first: bool, draw: int, values: tuple[str, ...] = ()
    ) -> tuple[Ready, Mapping[str, Array]]:
        """Forward and backward of a micro-batch, and all arguments.

        Args:
            batch: the model's inputs and what the objective reads.
            first: of a logical batch: writes the accumulators, otherwise adds.
            draw: number of the micro-batch, of which the random numbers depend.
            values: names of outputs and inner values that are returned too.
        """
        kind, given, make, decided = self._of_micro_batch(batch, first, draw, values)
        ready = self._ready if self.sums is None else self._marked
        return ready(kind, given, make, decided), given

    @decided_again
    def profiled(self, batch: Mapping[str, Array]) -> tuple[Program, Mapping[str, Array]]:
        """Likewise of a first micro-batch, planned for its sizes alone."""
        kind, given, make, decided = self._of_micro_batch(batch, True, 0, ())
        return self._marked(kind, given, make, decided), given

    def _marked(self, kind: tuple[Any, ...], batch: Mapping[str, Array], make: Make, decided: Decided) -> Program:
        """The program for the sizes of a batch alone, in which sums of gradients begin where they can."""
        program = self._program(kind, batch, make, decided)
        if self.sums is not None and program.marks is None and not program.plan.asynchronous:
            names = {ACCUMULATOR + name: name for name in self.sums.trained}
            uses = {names[key]: position for key, position in last_uses(program.plan, names).items()}
            if len(uses) == len(names):  # on another memory they have other names
                program.mark(self.sums.marks(uses))
        return program

    def _of_micro_batch(
        self, given: Mapping[str, Array], first: bool, draw: int, values: tuple[str, ...]
    ) -> tuple[tuple[Any, ...], Mapping[str, Array], Make, Decided]:
        passing = self.shards is not None and self.shards.gradients
        first = first or passing  # owners add them up
        batch, decided = self._in_training({**given, **self._drawn(draw)}, first)
        resolved = self._resolve(given, decided, passing=passing) if self.trained.owners is None else None

        def make(sizes: Sizes) -> Graph:
            if resolved and first and not values and not self.frozen:
                return resolved
            return self._joint(given, decided, sizes, first, values, self.frozen, passing=passing)

        return ("joint", first, *values, *self._phases.kind), batch, make, decided

    @decided_again
    def step(
        self, given: Mapping[str, Array], draw: int, frozen: frozenset[int], *, gated: bool = False
    ) -> tuple[Ready, Mapping[str, Array]]:
        """A step of one micro-batch, and all arguments, those of the update still to be written.

        Args:
            given: as for ``micro_batch``.
            draw: likewise.
            frozen: the kinds of parameters that stay as they are, see ``Updates``.
            gated: see ``step_graph``; its output GATE is there where that is possible.
        """
        more = update_arguments(self.updates, np.zeros(self.updates.hyper_size), 1.0)
        batch, decided = self._in_training({**given, **more, **self._drawn(draw)}, True)
        resolved = self._resolve(given, decided, passing=True) if self.trained.owners is None else None
        possible = self.gates.hold(self.names, frozen)
        if gated := gated and possible:
            batch = {name: array for name, array in batch.items() if name != WEIGHT}

        def make(sizes: Sizes) -> Graph:
            joint = None if self.frozen else resolved
            joint = joint or self._joint(given, decided, sizes, True, (), self.frozen, passing=True)
            return self._graphs.step(joint, self.names, frozen, self.as_ready, gated)

        kind = ("step", *without(frozen), *self._phases.kind, *(("checked",) if possible and not gated else ()))
        return self._ready(kind, batch, make, decided), batch

    def optimizer(
        self, hyper: Array, weight: float, frozen: frozenset[int], squares: float | None
    ) -> tuple[Program, Mapping[str, Array]]:
        """The optimizer's program, and its arguments.

        Args:
            hyper: (K,), of the updates' ``dtype``.
            weight: of the logical batch.
            frozen: as for ``step``.
            squares: of the accumulators, where they are read.
        """
        batch = update_arguments(self.updates, hyper, weight * self.scale, squares)
        names = self.names if self.shards is None else self.shards.own(self.names)
        kind = "optimizer", *without(frozen), *self._phases.kind
        return self._program(kind, {}, lambda _: self._graphs.update(names, frozen)), batch

    @decided_again
    def evaluation(self, batch: Mapping[str, Array]) -> tuple[Ready, Mapping[str, Array]]:
        """The terms of a batch in inference mode, and all arguments."""
        averages = self.trained.averages()
        given, decided = self._in_inference(batch, averages)

        def make(sizes: Sizes) -> Graph:
            return self._graphs.evaluation(self._bound(decided, batch, sizes), sizes.of(batch), averages)

        return self._ready(("evaluate", *averaged(averages)), given, make, decided), given

    @decided_again
    def prediction(self, arguments: Mapping[str, Array]) -> tuple[Ready, Mapping[str, Array]]:
        """The model's outputs, and all arguments."""
        averages = self.trained.averages()
        given, decided = self._in_inference(arguments, averages)

        def make(sizes: Sizes) -> Graph:
            return reading(self._bound(decided, arguments, sizes), averages)

        return self._ready(("predict", *averaged(averages)), given, make, decided), given

    def _in_inference(
        self, batch: Mapping[str, Array], averages: Mapping[str, str]
    ) -> tuple[Mapping[str, Array], Decided]:
        """The arguments of a program of inference, and what they decide about its sizes."""
        kind = ("inference", *averaged(averages))
        decided = self.data.decide(kind, batch, lambda graph: reading(graph, averages))
        return {**batch, **decided.arguments}, decided

    def _in_training(self, batch: Mapping[str, Array], first: bool) -> tuple[Mapping[str, Array], Decided]:
        """The arguments of a program of training, and what they decide about its sizes."""
        decided = self.data.decide(("training", first), batch, lambda graph: self._graphs.in_training(graph, first))
        return {**batch, **decided.arguments}, decided

    def _bound(self, decided: Decided, batch: Mapping[str, Array], sizes: Sizes) -> Graph:
        """The model's graph for a batch, whose sizes may be traced, or for those of a series."""
        if sizes.graph is None and active() is None:
            return self.data.bound(decided, batch)
        return bind(sizes.graph or decided.source.graph, sizes.named, self.engine.registry.reference_kernels)

    def _drawn(self, draw: int) -> dict[str, Array]:
        """What a micro-batch reads beside its batch."""
        found: dict[str, Array] = {}
        if self._draws is not None:
            found[KEY_INPUT] = np.array([self._draws.seed, draw], np.uint64)
        if self._scaled:
            found[SCALE] = np.asarray(self.scale, np.float32)
        return found

    def _joint(
        self,
        batch: Mapping[str, Array],
        decided: Decided,
        sizes: Sizes,
        first: bool,
        values: Sequence[str] = (),
        frozen: frozenset[str] = frozenset(),
        *,
        passing: bool = False,
    ) -> Graph:
        bound = self._graphs.training(self._bound(decided, batch, sizes), first, values)
        if self._fuse:
            mutable = self.trained.changed() | sizes.varying
            bound = to_differentiate(bound, self.engine.placement, self.engine.registry, mutable)
        wanted = [name for name in self.trained.wanted if name not in frozen]
        connected = self.data.connected(decided, wanted, self._read).union(self.trained.reached).intersection(wanted)
        always = {v.name: v.type for v in self.graph.initializers if v.name in connected}
        joint = self._graphs.joint(bound, sizes.of(batch), wanted, first, passing, always)
        if not frozen:
            self.trained.reach(joint.reached)
        return joint.graph

    def _resolve(self, batch: Mapping[str, Array], decided: Decided, *, passing: bool = False) -> Graph:
        """Decides where the tensors lie that training changes, from the joint graph of a first micro-batch."""
        self.forget()  # made before it was known what changes, and where that lies
        made = collection_paused(lambda: self._joint(batch, decided, Sizes({}, types_of(batch)), True, passing=passing))
        on_host = all(memory == HOST for memory in self.engine.devices.memories.values())
        self.trained.resolve(None if on_host else self.engine.compile(made, mutable=self.trained.changed()).lowered)
        return made

    def _ready(self, kind: tuple[Any, ...], batch: Mapping[str, Array], make: Make, decided: Decided) -> Ready:
        """The program of a kind for a batch: one that is kept, a plan of a series, or one that is made."""
        program = self.engine.find(kind, form_of(batch, decided.form))
        if program is not None:
            return program
        series = None if decided.form else self._series
        build = functools.partial(self._build_series, kind, make, decided)
        member = None if series is None else series.member(kind, types_of(batch), build)
        return self._program(kind, batch, make, decided) if member is None else member

    def _program(
        self, kind: tuple[Any, ...], batch: Mapping[str, Array], make: Make, decided: Decided | None = None
    ) -> Program:
        """The program of a kind for the sizes of a batch alone."""

        def build() -> Program:
            sizes = Sizes({} if decided is None else self.data.named(decided, batch), types_of(batch))
            return self._built(self._shared(kind, make, decided, sizes) or complete(make(sizes)))

        return self.engine.program(kind, form_of(batch, decided.form if decided else ()), build)

    def _shared(self, kind: tuple[Any, ...], make: Make, decided: Decided | None, sizes: Sizes) -> Sized | None:
        """What makes a graph for some sizes, and for others too."""
        if decided is None:
            return None
        return sized((kind, decided.source), decided.source.graph.inputs, sizes, lambda at: complete(make(at)))

    def _built(self, graph: Graph | Sized) -> Program:
        """The program of a bound graph without dead nodes, over the tensors that training changes."""
        made = self.engine.build(graph, mutable=self.trained.changed(), **self._tensors())
        self.trained.drop_loaded()
        return made

    def _build_series(
        self, kind: tuple[Any, ...], make: Make, decided: Decided, several: Sequence[Sizes], count: int
    ) -> SeriesProgram | str:
        """See ``BuildSeries``; made like the programs of single sizes where nothing is fed to it."""
        alone = several[0].graph is decided.source.graph
        shared = [one for sizes in several if alone and (one := self._shared(kind, make, decided, sizes)) is not None]
        made = self._series_of(shared, count, ()) if shared else ""
        if not isinstance(made, str):
            return made
        return self._series_of([complete(make(sizes)) for sizes in several], count, several[0].varying)

    def _series_of(self, graphs: Sequence[Graph | Sized], count: int, varying: Collection[str]) -> SeriesProgram | str:
        how = {"mutable": self.trained.changed(), "varying": varying, "bends": True, **self._tensors()}
        made = self.engine.build_series(graphs, count, **how)
        self.trained.drop_loaded()
        return made

    def _tensors(self) -> dict[str, Any]:
        """Where a program finds its tensors, for ``Engine.build``."""
        scratch = None if lie_apart() else self._scratch
        return {"owners": self.trained.all_owners(), "newest": self.trained.initial, "scratch": scratch}
