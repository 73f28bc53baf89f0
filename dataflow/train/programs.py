"""Compiles and runs the programs of training: forward and backward, optimizer, evaluate, predict."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ..compile import to_differentiate
from ..engine import Engine
from ..errors import Cancelled, InputError
from ..execute.arguments import checked_inputs
from ..execute.bound import Stages
from ..execute.execution import Execution
from ..execute.marks import last_uses
from ..execute.profile import Profile, profile_program
from ..execute.program import Program
from ..execute.regions import Form
from ..execute.scratch import Scratch
from ..host.limits import limited
from ..ir.graph import Graph
from ..ir.kernel import HOST
from ..ir.plan import Plan
from ..ir.specialize import Listed, Wanted
from ..ir.types import Array, TensorType
from ..model import Model
from ..passes.bind_shapes import dims_of
from ..passes.dead_code import eliminate_dead_code
from ..planning.offsets import lie_apart
from .data_sizes import DataSizes, Decided
from .graphs import KEY_INPUT, Graphs, types_of
from .joint import ACCUMULATOR, BACKWARD, FORWARD, HYPER, OPTIMIZER, SCALE, SQUARES, VALUES, WEIGHT, reading
from .objective import Objective
from .optimizers.updates import Updates
from .parallel.gradient_sums import GradientSums
from .parallel.shards import Shards
from .tied_weights import Tie, tied
from .trained import Trained

PLANS = 16  # per program; the least recently used goes


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A forward program that ran, whose values lie in scratch memory until its backward program has read them."""

    program: Program
    arguments: Mapping[str, Array]
    results: Mapping[str, Array]
    first: bool


class Programs:
    """The compiled programs of one training; they share weights, state and one arena.

    A micro-batch runs forward, then backward, over one plan of memory: as one sequence, or by themselves. There are two
    such plans: the first micro-batch of a logical batch writes the gradient accumulators, later ones add to them. Where
    a logical batch is one micro-batch, its update stands in the same plan, and gradients lie in the arena.

    Args:
        model: whose parameters are trained; the trainer owns its weights.
        objective: loss and metrics.
        updates: what an optimizer step does.
        trainable: names of parameters.
        how: devices, and how they compile and run.
        batch_norm: ``fixed`` statistics, or ``update`` them with the batch's.
        ties: stored tensors that are copies of others; see ``tied_weights``.
        dropout: the seed by which the dropout nodes drop in training; None: they don't.
        sites: values behind which there are more of them in training, each with the share that is dropped.
        scaled: gradients are those of the loss times ``scale``.
        as_ready: in such a plan each parameter is updated as soon as its gradient is complete, see ``step_graph``.

    Attributes:
        scale: what accumulators and their squares have been multiplied by; a power of two.
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
        batch_norm: str = "fixed",
        ties: Mapping[str, Tie] = MappingProxyType({}),
        dropout: int | None = None,
        sites: Mapping[str, float] = MappingProxyType({}),
        scaled: bool = False,
        as_ready: bool = False,
    ) -> None:
        self._scaled, self.scale = scaled, 1.0
        self.sums: GradientSums | None = None
        self.shards: Shards | None = None
        self._updates, self._fuse, self._dropout, self._as_ready = updates, how.fuse, dropout, as_ready
        self.engine = Engine(how, model.graph, plans=PLANS, borrows=True)
        self._scratch = Scratch(self.engine.devices, exact=how.memory is not None and how.memory.is_budget)
        self._graph = tied(model.graph_with_data(), ties)
        self._graphs = Graphs(
            self._graph,
            objective,
            updates,
            batch_norm == "update",
            dropout is not None,
            sites,
            scaled,
        )
        specialize = functools.partial(_specialized, model, objective, ties)
        self._data = DataSizes(self._graph, specialize, self.engine, self._built, self._call)
        self._read = objective.read
        statistics = self._graphs.statistics
        self._trained = Trained(self.engine, self._graph, updates, trainable, statistics, ties)
        self._frozen: frozenset[str] = frozenset()  # parameters
        self._kept: _Kept | None = None
        self._step: _Kept | None = None  # a step's program whose optimizer is still to run
        self._accumulates = True  # the last micro-batch has its gradients in accumulators
        self._last_step: Program | None = None  # otherwise the program whose arena has them, if they are still there
        self._squares: float | None = 0.0  # of the accumulators: the sum after the last micro-batch; None: to be made

    # ---- a training step ------------------------------------------------------------------------------

    def forward_backward(self, batch: Mapping[str, Array], *, first: bool, draw: int = 0) -> dict[str, Array]:
        """The terms of one micro-batch, whose gradients go to the accumulators, and their SQUARES.

        Args:
            batch: the model's inputs and what the objective reads.
            first: of a logical batch: writes the accumulators, otherwise adds.
            draw: number of the micro-batch, of which the random numbers depend.

        Raises:
            InputError: a forward program waits for its backward program.
        """
        with limited(self.engine.devices.account, "the step"):
            program, batch = self._micro_batch(batch, first, draw)
            terms = self._run(program, batch)
        self._accumulates, self._squares = True, float(terms[SQUARES])
        return terms

    def begin_step(
        self, batch: Mapping[str, Array], *, frozen: frozenset[int] = frozenset(), draw: int = 0
    ) -> dict[str, Array]:
        """The terms of the only micro-batch of a logical batch, which ``update`` completes.

        Its gradients were computed, and SQUARES is among the terms; but not where parameters are updated as their
        gradients are ready: then only the forward program ran.

        Args:
            batch: as for ``forward_backward``.
            frozen: as for ``update``.
            draw: as for ``forward_backward``.

        Raises:
            InputError: a forward program waits for its backward program.
        """
        with limited(self.engine.devices.account, "the step"):
            program, batch = self._step_program(batch, draw, frozen)
            arguments, results = program.arguments.checked(batch), program.results.arrays()
            last = FORWARD if self._as_ready else BACKWARD
            self._call(program, arguments, results, stage=(FORWARD, last))
        self._step = _Kept(program, arguments, results, True)
        self._accumulates, self._last_step = False, None if self._as_ready else program
        if self._as_ready:
            return {name: results[name] for name in program.plan.ranges[FORWARD].outputs}
        self._squares = float(results[SQUARES])
        return results

    def forward(
        self, batch: Mapping[str, Array], *, first: bool, draw: int = 0, values: Sequence[str] = ()
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Runs the forward program alone: the terms of one micro-batch, and inner values.

        Args:
            batch: as for ``forward_backward``; what backward reads of it is copied.
            first: likewise.
            draw: likewise.
            values: names of outputs and inner values.

        Raises:
            InputError: another one waits for its backward program.
        """
        with limited(self.engine.devices.account, "the forward program"):
            program, batch = self._micro_batch(batch, first, draw, tuple(values))
            plan = program.plan
            read = plan.ranges[BACKWARD].slots
            arguments = program.arguments.checked(batch)
            arguments = {n: a.copy() if plan.inputs[n].arena in read else a for n, a in arguments.items()}
            results = program.results.arrays()
            self._call(program, arguments, results, stage=(FORWARD, FORWARD))
        self._kept, self._accumulates = _Kept(program, arguments, results, first), True
        found = {
            name: results[name].copy() if plan.outputs[name].arena in read else results[name]
            for name in plan.ranges[FORWARD].outputs
        }
        asked = {name: found.pop(VALUES + name) for name in values}
        return found, asked

    def backward(self, cotangent: float = 1.0) -> dict[str, Array]:
        """Runs the backward program of the forward program that ran last; its SQUARES.

        Args:
            cotangent: of the loss. Gradients of another one than 1 go through the host.

        Raises:
            InputError: no forward program waits for it.
        """
        kept, self._kept = self._kept, None
        if kept is None:
            raise InputError("backward: there is no forward() whose values it could read; call forward(batch) before")
        with limited(self.engine.devices.account, "the backward program"):
            held = {} if cotangent == 1.0 or kept.first else self.gradients()
            for name, array in held.items():
                self._trained.write(ACCUMULATOR + name, np.zeros_like(array))
            self._call(kept.program, kept.arguments, kept.results, stage=(BACKWARD, BACKWARD))
            if cotangent == 1.0:
                self._squares = float(kept.results[SQUARES])
            else:
                for name, array in self.gradients().items():
                    scaled = array * array.dtype.type(cotangent)
                    self.set_gradient(name, held[name] + scaled if name in held else scaled)
        return {SQUARES: np.asarray(self.squares())}

    def discard(self) -> None:
        """Forgets the forward program that waits for its backward program, or a step that waits for its update."""
        self._kept = self._step = None

    def update(self, hyper: Array, weight: float, frozen: frozenset[int] = frozenset()) -> float:
        """Runs the optimizer once: divides the accumulators by ``weight``, clips, changes the parameters.

        Statistics become what the micro-batches made of them. An interrupt waits until all of it is done.

        Args:
            hyper: (K,) float32.
            weight: of the logical batch.
            frozen: the kinds of parameters that stay as they are, see ``Updates``.

        Returns:
            The norm of the averaged gradient before clipping; nan where no norm is clipped.
        """
        if self._step is not None:
            results = self._end_step(self._step, hyper, weight)
            return float(results["norm"]) if "norm" in results else float("nan")
        with limited(self.engine.devices.account, "the optimizer's step"):
            program, batch = self._optimizer_step(hyper, weight, frozen)
        results = self._run(program, batch, interruptible=False)  # outside: no limit ends it before it is complete
        return float(results["norm"]) if "norm" in results else float("nan")

    def _end_step(self, step: _Kept, hyper: Array, weight: float) -> Mapping[str, Array]:
        """The results of a step that ``begin_step`` began; nothing ends it before it is complete."""
        self._step = None
        given = {HYPER: np.array(hyper, np.float32), WEIGHT: np.array(weight * self.scale, np.float32)}
        self._call(
            step.program,
            {**step.arguments, **given},
            step.results,
            interruptible=False,
            stage=(OPTIMIZER, OPTIMIZER),
        )
        if self._as_ready:
            self._squares = float(step.results[SQUARES])
        return step.results

    # ---- gradients ------------------------------------------------------------------------------------

    def gradients(self) -> dict[str, Array]:
        """The accumulated gradients (sums over the logical batch so far), by parameter."""
        return {name: self.gradient(name) for name in self.trained}

    def gradient(self, name: str) -> Array:
        """A copy of the accumulated gradient of a trained parameter.

        Raises:
            InputError: another program ran in the memory where it was.
        """
        found = self._gradient(name)
        return found if self.scale == 1.0 else found * found.dtype.type(1.0 / self.scale)

    def _gradient(self, name: str) -> Array:
        """Likewise, ``scale`` too large."""
        if self._accumulates:
            return self._trained.read(ACCUMULATOR + name)
        if self._last_step is None:
            raise InputError(
                "the gradients of the last step are gone: they lie in memory that evaluate(), predict() and the like "
                "use too. Read them before, or set trainer.keeps_gradients = True before the step; with "
                'update="as_ready" there are none'
            )
        return self._last_step.kept(self._trained.key_of(ACCUMULATOR + name))

    def set_gradient(self, name: str, array: Array) -> None:
        """Replaces an accumulated gradient."""
        scaled = array if self.scale == 1.0 else array * array.dtype.type(self.scale)
        self._trained.write(ACCUMULATOR + name, scaled)
        self._squares = None

    def squares(self) -> float:
        """The sum of the squares of all accumulated gradients, which are ``scale`` too large."""
        if self._squares is None:
            found = float(sum(np.square(g.astype(np.float64)).sum() for g in self.gradients().values()))
            self._squares = found * self.scale**2
        return self._squares

    def set_squares(self, squares: float) -> None:
        """Says what the sum of the squares of the accumulators has become."""
        self._squares = squares

    def view(self, name: str) -> Array:
        """A tensor that training changes: where it lies on the host itself, else a copy."""
        return self._trained.view(name)

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that the loss depends on, but for frozen ones; known after the first micro-batch."""
        return tuple(name for name in self._trained.reached if name not in self._frozen)

    def freeze(self, names: frozenset[str], updates: Updates) -> None:
        """From now on these parameters have no gradients and no updates; what is kept of all of them stays.

        Args:
            names: of all that are frozen.
            updates: what an optimizer step does; with the slots that it had.
        """
        self.engine.forget_programs()
        self._step = self._last_step = None
        self.sums = None
        self._frozen, self._updates, self._graphs.updates = names, updates, updates

    # ---- inference ------------------------------------------------------------------------------------

    def evaluate(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The terms of a batch in inference mode; nothing is kept."""
        with limited(self.engine.devices.account, "the evaluation"):
            averages = self._trained.averages()

            given, decided = self._in_inference(batch, averages)

            def make() -> Graph:
                return self._graphs.evaluation(self._data.bound(decided, batch), types_of(batch), averages)

            program = self._program(("evaluate", *_averaged(averages)), given, make, decided.form)
            return self._run(program, given)

    def predict(self, inputs: Any) -> dict[str, Array]:
        """The model's outputs with the newest weights, in inference mode."""
        arguments = checked_inputs(self._graph.inputs, inputs)
        with limited(self.engine.devices.account, "the prediction"):
            averages = self._trained.averages()
            given, decided = self._in_inference(arguments, averages)

            def make() -> Graph:
                return reading(self._data.bound(decided, arguments), averages)

            program = self._program(("predict", *_averaged(averages)), given, make, decided.form)
            return self._run(program, given)

    def _in_inference(
        self, batch: Mapping[str, Array], averages: Mapping[str, str]
    ) -> tuple[Mapping[str, Array], Decided]:
        """The arguments of a program of inference, and what they decide about its sizes."""
        self._check_idle()
        kind = ("inference", *_averaged(averages))
        decided = self._data.decide(kind, batch, lambda graph: reading(graph, averages))
        return {**batch, **decided.arguments}, decided

    def profile(self, batch: Mapping[str, Array], hyper: Array, rounds: int) -> dict[str, Profile]:
        """The profiles of ``joint`` (forward and backward of a first micro-batch) and ``optimizer``.

        Parameters, statistics and the optimizer's state are afterwards what they were; the accumulators are not.

        Args:
            batch: as for ``forward_backward``.
            hyper: as for ``update``.
            rounds: as for ``profile_program``.
        """
        made = {"joint": self._micro_batch(batch, True, 0), "optimizer": self._optimizer_step(hyper, 1.0)}
        kept = {key.removeprefix("parameters/"): array for key, array in self.state().items()}
        try:
            return {
                name: profile_program(program, self.engine.devices, program.arguments.checked(given), rounds)
                for name, (program, given) in made.items()
            }
        except Cancelled as error:
            raise KeyboardInterrupt(str(error)) from None
        finally:
            for name, array in kept.items():
                self._trained.write(name, array)

    def plans(self) -> dict[str, Plan]:
        """The plans made so far, by program: the newest binding of each."""
        return {"-".join(map(str, kind)): program.plan for (kind, _), program in self.engine.programs.items()}

    def joint_plan(self) -> Plan:
        """The newest plan of forward and backward."""
        return [program.plan for (kind, _), program in self.engine.programs.items() if kind[0] == "joint"][-1]

    # ---- state ----------------------------------------------------------------------------------------

    @property
    def averaged(self) -> bool:
        """Evaluation, prediction and ``newest`` use the average of parameters where the optimizer keeps one."""
        return self._trained.averaged

    @averaged.setter
    def averaged(self, averaged: bool) -> None:
        self._trained.averaged = averaged

    def newest(self, name: str) -> Array | None:
        """The newest data of a parameter or statistic that training changes; None for others."""
        return self._trained.newest(name)

    def tensor(self, name: str) -> Array:
        """A trained parameter, or a tensor of the optimizer; not to be written."""
        return self._trained.read(name)

    def set_tensor(self, name: str, array: Array) -> None:
        """Replaces it."""
        self._trained.write(name, array)

    def slots(self) -> dict[str, str]:
        """The parameter of each of the optimizer's tensors that are there, by its name."""
        return self._trained.slots()

    def state(self, without: Collection[str] = (), *, copies: bool = True) -> dict[str, Array]:
        """What training changes: ``parameters/<name>`` and ``optimizer/<slot>/<name>``.

        Args:
            without: names of slots that are left out; those of other processes' parameters are as at first.
            copies: otherwise arrays on the host are where they lie, and change with the next step.
        """
        return self._trained.state(without, copies=copies)

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replaces what training changes, now or when the programs are made; what ``state`` lacks is as at first."""
        owner = {} if self.shards is None else self.shards.owner
        slots = ((slot, name) for name, held in self._updates.slots.items() for slot in held)
        others = {slot for slot, name in slots if self.shards is not None and owner[name] != self.shards.rank}
        self._trained.load_state({key: array for key, array in state.items() if key not in others})

    def end_steps(self) -> None:
        """Gives the memory back that only programs need; none can run any more, and the newest weights are there."""
        self.discard()
        if self.sums is not None:
            self.sums.close()
        self._last_step = None
        self.engine.forget_programs()
        self._scratch.close()
        self._trained.drop_slots()

    def close(self) -> None:
        """Gives device memory back; the programs can't run any more."""
        self.end_steps()
        self.engine.close()

    # ---- how they are made ----------------------------------------------------------------------------

    def _micro_batch(
        self, batch: Mapping[str, Array], first: bool, draw: int, values: tuple[str, ...] = ()
    ) -> tuple[Program, Mapping[str, Array]]:
        """The program of a micro-batch, and all its arguments."""
        given = batch
        if self._dropout is not None:
            batch = {**batch, KEY_INPUT: np.array([self._dropout, draw], np.uint64)}
        if self._scaled:
            batch = {**batch, SCALE: np.asarray(self.scale, np.float32)}
        batch, decided = self._in_training(batch, first)
        resolved = self._resolve(given, decided) if self._trained.owners is None else None

        def make() -> Graph:
            if resolved and first and not values and not self._frozen:
                return resolved
            return self._joint(given, decided, first, values, self._frozen)

        program = self._program(("joint", first, *values), batch, make, decided.form)
        if self.sums is not None and program.marks is None and not program.plan.asynchronous:
            names = {ACCUMULATOR + name: name for name in self.sums.trained}
            uses = {names[key]: position for key, position in last_uses(program.plan, names).items()}
            if len(uses) == len(names):  # on another memory they have other names
                program.mark(self.sums.marks(uses))
        return program, batch

    def _step_program(
        self, batch: Mapping[str, Array], draw: int, frozen: frozenset[int]
    ) -> tuple[Program, Mapping[str, Array]]:
        """The program of a step, and all its arguments, those of the update still to be written."""
        given = batch
        batch = {**batch, HYPER: np.zeros(self._updates.hyper_size, np.float32), WEIGHT: np.ones((), np.float32)}
        if self._dropout is not None:
            batch[KEY_INPUT] = np.array([self._dropout, draw], np.uint64)
        if self._scaled:
            batch[SCALE] = np.asarray(self.scale, np.float32)
        self._step = None
        batch, decided = self._in_training(batch, True)
        resolved = self._resolve(given, decided, passing=True) if self._trained.owners is None else None

        def make() -> Graph:
            joint = None if self._frozen else resolved
            joint = joint or self._joint(given, decided, True, (), self._frozen, passing=True)
            return self._graphs.step(joint, self.trained, frozen, self._as_ready)

        return self._program(("step", *_without(frozen)), batch, make, decided.form), batch

    def _in_training(self, batch: Mapping[str, Array], first: bool) -> tuple[Mapping[str, Array], Decided]:
        """The arguments of a program of training, and what they decide about its sizes."""
        self._check_idle()
        decided = self._data.decide(("training", first), batch, lambda graph: self._graphs.in_training(graph, first))
        return {**batch, **decided.arguments}, decided

    def _optimizer_step(
        self, hyper: Array, weight: float, frozen: frozenset[int] = frozenset()
    ) -> tuple[Program, Mapping[str, Array]]:
        """The program of the optimizer, and its arguments."""
        batch = {HYPER: np.asarray(hyper, np.float32), WEIGHT: np.asarray(weight * self.scale, np.float32)}
        if self._updates.clips:
            squares = self.squares()
            if squares > float(np.finfo(np.float32).max):  # only assigned ones: others are checked
                raise InputError("update: the norm of the gradients exceeds float32, so they can't be clipped by it")
            if self._updates.reads_squares:
                batch[SQUARES] = np.asarray(squares, np.float32)
        names = self.trained if self.shards is None else self.shards.own(self.trained)
        return self._program(("optimizer", *_without(frozen)), {}, lambda: self._graphs.update(names, frozen)), batch

    def _joint(
        self,
        batch: Mapping[str, Array],
        decided: Decided,
        first: bool,
        values: Sequence[str] = (),
        frozen: frozenset[str] = frozenset(),
        *,
        passing: bool = False,
    ) -> Graph:
        bound = self._graphs.training(self._data.bound(decided, batch), first, values)
        if self._fuse:
            bound = to_differentiate(bound, self.engine.placement, self.engine.registry, self._trained.changed())
        wanted = [name for name in self._trained.wanted if name not in frozen]
        always = self._data.connected(decided, wanted, self._read)
        joint = self._graphs.joint(bound, types_of(batch), wanted, first, passing, always)
        if not frozen:
            self._trained.reached = joint.reached
        return joint.graph

    def _resolve(self, batch: Mapping[str, Array], decided: Decided, *, passing: bool = False) -> Graph:
        """Decides where the tensors lie that training changes, from the joint graph of a first micro-batch."""
        self.engine.forget_programs()  # made before it was known what changes, and where that lies
        graph = self._joint(batch, decided, True, passing=passing)
        on_host = all(memory == HOST for memory in self.engine.devices.memories.values())
        mutable = self._trained.changed()
        self._trained.resolve(None if on_host else self.engine.compile(graph, mutable=mutable).lowered)
        return graph

    def _check_idle(self) -> None:
        """Refuses programs while values wait in the memory that they use, whose last gradients they overwrite."""
        if self._kept is not None or self._step is not None:
            raise InputError(
                "a forward() waits for its backward(), and the values that this one reads lie in the memory that every "
                "other program uses; call backward(), or discard() to forget the logical batch"
            )
        self._last_step = None  # its arena is about to be written

    def _program(
        self, kind: tuple[Any, ...], batch: Mapping[str, Array], make: Callable[[], Graph], decided: Form = ()
    ) -> Program:
        self._check_idle()
        form = (tuple((name, array.shape) for name, array in batch.items()), *decided)
        return self.engine.program(kind, form, lambda: self._built(make()))

    def _built(self, graph: Graph) -> Program:
        """The program of a bound graph, over the tensors that training changes."""
        graph = eliminate_dead_code(graph)
        assert not dims_of(graph)
        trained = self._trained
        made = self.engine.build(
            graph,
            mutable=trained.changed(),
            owners=trained.all_owners(),
            newest=trained.initial,
            scratch=None if lie_apart() else self._scratch,
        )
        trained.drop_loaded()
        return made

    def _run(self, program: Program, batch: Mapping[str, Array], *, interruptible: bool = True) -> dict[str, Array]:
        results = program.results.arrays()
        self._call(program, program.arguments.checked(batch), results, interruptible=interruptible)
        return results

    @staticmethod
    def _call(
        program: Program,
        arguments: Mapping[str, Array],
        results: Mapping[str, Array],
        *,
        interruptible: bool = True,
        stage: Stages | None = None,
    ) -> None:
        try:
            program.run(arguments, results, interruptible=interruptible, stage=stage)
        except Cancelled as error:
            raise KeyboardInterrupt(str(error)) from None


def _without(frozen: frozenset[int]) -> tuple[str, ...]:
    """What tells programs in which some kinds of parameters stay as they are."""
    return tuple(f"without {i}" for i in sorted(frozen))


def _averaged(averages: Mapping[str, str]) -> tuple[str, ...]:
    """What tells programs that read averages from those that don't."""
    return ("averaged",) if averages else ()


def _specialized(
    model: Model,
    objective: Objective,
    ties: Mapping[str, Tie],
    types: Mapping[str, TensorType],
    values: Mapping[str, Array],
) -> Graph | Wanted | None:
    """The model's graph for inputs of these types, with its ties, or what must be known first; see ``Specialize``."""
    made = model.specialized(types, values)
    assert not isinstance(made, Listed)  # a model of tensors
    if isinstance(made, Wanted):
        return dataclasses.replace(made, graph=tied(_with_stored(made.graph, model.graph), ties))
    return None if made is None else tied(objective.on(made), ties)


def _with_stored(graph: Graph, other: Graph) -> Graph:
    """The graph with the stored tensors of another, which it may not read."""
    own = {value.name for value in graph.initializers}
    more = {value: data for value, data in other.initializers.items() if value.name not in own}
    return dataclasses.replace(graph, initializers={**graph.initializers, **more})
