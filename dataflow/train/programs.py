"""Compiles and runs the programs of training: forward and backward, optimizer, evaluate, predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ..compile import to_differentiate
from ..engine import Engine
from ..errors import Cancelled
from ..execute.arguments import checked_array, checked_inputs, result_arrays, sizes_of
from ..execute.execution import Execution
from ..execute.profile import Profile, profile_program
from ..execute.program import Program, Scratch
from ..host.limits import limited
from ..ir.graph import Graph
from ..ir.kernel import HOST
from ..ir.plan import Plan
from ..ir.types import Array, TensorType
from ..ir.value import Value
from ..model import Model
from ..ops.random import KEY
from ..passes.bind_shapes import bind, dims_of
from ..passes.dead_code import without_dead
from ..passes.dropout import with_dropout
from .joint import (
    ACCUMULATOR,
    HYPER,
    PENDING,
    SQUARES,
    WEIGHT,
    forward_graph,
    joint_graph,
    optimizer_graph,
    with_batch_statistics,
)
from .tied_weights import Tie, tied

KEY_INPUT = "dropout/key"
PLANS = 16  # per program; the least recently used goes


class Objective(Protocol):
    """What is minimized and measured: a loss with metrics."""

    def entries(self, outputs: Mapping[str, TensorType]) -> Mapping[str, TensorType]:
        """What a batch must have beside the model's inputs, for outputs of these types (dims may be named)."""

    def build(self, g: Any, outputs: Mapping[str, Value], batch: Mapping[str, Value]) -> Mapping[str, Value]:
        """The terms: ``loss`` and ``weight`` (sums over the micro-batch, rank 0), and those of metrics."""


class Optimizer(Protocol):
    """Rules of an optimizer.

    Attributes:
        slots: names of its tensors per parameter.
        hyper_size: length of the hyperparameter tensor.
    """

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its tensors per parameter."""

    @property
    def hyper_size(self) -> int:
        """Length of the hyperparameter tensor."""

    def build(
        self, g: Any, param: Value, grad: Value, slots: tuple[Value, ...], hyper: Value, scale: Value
    ) -> Sequence[Value]:
        """The new parameter and slots."""


class Programs:
    """The compiled programs of one training; they share weights, state and one arena.

    A micro-batch runs forward, then backward, over one plan of memory. There are two backward programs: the first
    micro-batch of a logical batch writes the gradient accumulators, later ones add to them.

    Args:
        model: whose parameters are trained; the trainer owns its weights.
        objective: loss and metrics.
        optimizer: makes the update.
        trainable: names of parameters.
        how: devices, and how they compile and run.
        clip_norm: the largest norm of the averaged gradient, or None.
        batch_norm: ``fixed`` statistics, or ``update`` them with the batch's.
        ties: stored tensors that are copies of others; see ``ties``.
        dropout: the seed by which the dropout nodes drop in training; None: they don't.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        optimizer: Optimizer,
        trainable: Sequence[str],
        how: Execution,
        *,
        clip_norm: float | None = None,
        batch_norm: str = "fixed",
        ties: Mapping[str, Tie] = MappingProxyType({}),
        dropout: int | None = None,
    ) -> None:
        self._model, self._objective, self._optimizer = model, objective, optimizer
        self.engine = Engine(how, model.graph, plans=PLANS)
        self._trainable = tuple(trainable)
        self._clip_norm, self._fuse = clip_norm, how.fuse
        self._scratch = Scratch(self.engine.devices)
        self._ties = ties
        self._graph = tied(model.graph_with_data(), ties)
        self._dropout = dropout
        self._training = {first: self._training_graph(batch_norm == "update", first) for first in (True, False)}
        self._statistics = tuple(s.name.removeprefix(PENDING) for s in self._training[True].states)
        self._homes: dict[str, str] | None = None
        self._reached: tuple[str, ...] = ()
        self._first = {v.name: data.array for v, data in self._graph.initializers.items()}
        self._loaded: dict[str, Array] = {}
        self._squares = 0.0  # of the accumulators: the sum after the last micro-batch

    # ---- programs -------------------------------------------------------------------------------------

    def forward_backward(self, batch: Mapping[str, Array], *, first: bool, draw: int = 0) -> dict[str, Array]:
        """The terms of one micro-batch, whose gradients go to the accumulators, and their SQUARES.

        Args:
            batch: the model's inputs and what the objective reads.
            first: of a logical batch: writes the accumulators, otherwise adds.
            draw: number of the micro-batch, of which the random numbers depend.
        """
        with limited(self.engine.devices.account, "the step"):
            terms = self._run(*self._micro_batch(batch, first, draw))
        self._squares = float(terms[SQUARES])
        return terms

    def _micro_batch(self, batch: Mapping[str, Array], first: bool, draw: int) -> tuple[Program, Mapping[str, Array]]:
        """The program of a micro-batch, and all that it is fed."""
        if self._dropout is not None:
            batch = {**batch, KEY_INPUT: np.array([self._dropout, draw], np.uint64)}
        self._before_training(batch)
        program = self._program(("joint", first), batch, lambda sizes: self._joint(batch, sizes, add=not first))
        return program, batch

    def evaluate(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The terms of a batch in inference mode; nothing is kept."""

        def make(sizes: Mapping[str, int]) -> Graph:
            bound = bind(self._graph, sizes)
            return forward_graph(bound, self._entries(bound), self._objective.build)

        with limited(self.engine.devices.account, "the evaluation"):
            return self._run(self._program(("evaluate",), batch, make), batch)

    def predict(self, inputs: Any) -> dict[str, Array]:
        """The model's outputs with the newest weights, in inference mode."""
        feeds = checked_inputs(self._graph, inputs)
        with limited(self.engine.devices.account, "the prediction"):
            program = self._program(("predict",), feeds, lambda sizes: bind(self._graph, sizes))
            return self._run(program, feeds)

    def update(self, hyper: Array, weight: float) -> float:
        """Runs the optimizer once: divides the accumulators by ``weight``, clips, changes the parameters.

        Statistics become what the micro-batches made of them. An interrupt waits until all of it is done.

        Args:
            hyper: (K,) float32.
            weight: of the logical batch.

        Returns:
            The norm of the averaged gradient before clipping; nan without ``clip_norm``.
        """
        with limited(self.engine.devices.account, "the optimizer's step"):
            program, feeds = self._optimizer_step(hyper, weight)
        results = self._run(program, feeds, interruptible=False)  # outside: no limit ends it half-way
        return float(results["norm"]) if "norm" in results else float("nan")

    def _optimizer_step(self, hyper: Array, weight: float) -> tuple[Program, Mapping[str, Array]]:
        """The program of the optimizer, and what it is fed."""
        feeds = {HYPER: np.asarray(hyper, np.float32), WEIGHT: np.asarray(weight, np.float32)}
        if self._clip_norm is not None:
            feeds[SQUARES] = np.asarray(self._squares, np.float32)
        return self._program(("optimizer",), {}, lambda _: self._update_graph()), feeds

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
                name: profile_program(program, self.engine.devices, self._feeds(program, given), rounds)
                for name, (program, given) in made.items()
            }
        except Cancelled as error:
            raise KeyboardInterrupt(str(error)) from None
        finally:
            for name, array in kept.items():
                if self._key_of(name) in self.engine.variables:
                    self.engine.variables.write(self._key_of(name), array)

    def plans(self) -> dict[str, Plan]:
        """The plans made so far, by program: the newest binding of each."""
        return {"-".join(map(str, kind)): program.plan for (kind, _), program in self.engine.programs.items()}

    def gradients(self) -> dict[str, Array]:
        """The accumulated gradients (sums over the logical batch so far), by parameter."""
        return {name: self._read(ACCUMULATOR + name) for name in self._reached}

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that the loss depends on; known after the first micro-batch."""
        return self._reached

    # ---- state ----------------------------------------------------------------------------------------

    def newest(self, name: str) -> Array | None:
        """The newest data of a parameter or statistic that training changes; None for others."""
        tie = self._ties.get(name)
        if tie is not None:
            source = self.newest(tie.of)
            return None if source is None else tie.apply(source)
        if name not in self._reached and name not in self._statistics:
            return self._loaded.get("parameters/" + name)
        return self._read(name)

    def state(self) -> dict[str, Array]:
        """Copies of what training changes: ``parameters/<name>`` and ``optimizer/<slot>/<name>``."""
        found = {f"parameters/{name}": self._read(name) for name in (*self._reached, *self._statistics)}
        for slot in self._optimizer.slots:
            found |= {f"optimizer/{slot}/{name}": self._read(f"optimizer/{slot}/{name}") for name in self._reached}
        return {**self._loaded, **found}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replaces what training changes, now or when the programs are made; what ``state`` lacks is as at first."""
        self._loaded = {key: np.array(value) for key, value in state.items()}
        slots = [f"optimizer/{slot}/{name}" for slot in self._optimizer.slots for name in self._reached]
        changed = {*self._reached, *self._statistics, *slots}
        for stored in self.engine.variables.names():
            name = self._name_of(stored)
            found = self._initial(name)
            if found is None and name in changed:
                found = self._begun(name)
            if found is not None:
                self.engine.variables.write(stored, found)

    def close(self) -> None:
        """Gives device memory back; the programs can't run any more."""
        self.engine.forget_programs()
        self._scratch.close()
        self.engine.close()

    # ---- how they are made ----------------------------------------------------------------------------

    def _training_graph(self, updates: bool, first: bool) -> Graph:
        """What is differentiated, for the first micro-batch of a logical batch or later ones."""
        graph = with_batch_statistics(self._graph, first=first) if updates else self._graph
        return graph if self._dropout is None else with_dropout(graph, KEY_INPUT, KEY)

    def _joint(self, batch: Mapping[str, Array], sizes: Mapping[str, int], *, add: bool) -> Graph:
        bound = bind(self._training[not add], sizes)
        names = self._reached or self._trainable
        if self._fuse:
            bound = to_differentiate(bound, self.engine.placement, self.engine.registry, self._changed())
        joint = joint_graph(bound, self._entries(bound), self._objective.build, names, add=add)
        self._reached = joint.reached
        return joint.graph

    def _entries(self, bound: Graph) -> Mapping[str, TensorType]:
        return self._objective.entries({name: v.type for name, v in bound.outputs.items()})

    def _update_graph(self) -> Graph:
        types = {v.name: v.type for v in self._graph.initializers if v.name in set(self._reached)}
        ordered = {name: types[name] for name in self._reached}
        rule = self._optimizer
        statistics = {v.name: v.type for v in self._graph.initializers if v.name in set(self._statistics)}
        return optimizer_graph(ordered, rule.slots, rule.build, rule.hyper_size, self._clip_norm, statistics)

    def _before_training(self, batch: Mapping[str, Array]) -> None:
        """Decides once where each changing tensor lives: on the first device that reads the parameter."""
        if self._homes is not None:
            return
        self._homes = {}
        self.engine.forget_programs()  # made before it was known what changes, and where that lies
        sizes = sizes_of(self._graph, {v.name: np.asarray(batch[v.name]) for v in self._graph.inputs})
        graph = self._joint(batch, sizes, add=False)
        if all(memory == HOST for memory in self.engine.devices.memories.values()):
            return
        made = self.engine.compile(graph, changed=self._changed())
        for stored in made.lowered.stored.values():
            memory = stored.storage.root.memory
            if memory != HOST and stored.name in self._changed():
                self._homes[stored.name] = memory
        for name in self._reached:
            home = self._homes.get(name, HOST)
            for other in (ACCUMULATOR + name, *(f"optimizer/{slot}/{name}" for slot in self._optimizer.slots)):
                self._homes[other] = home
        for name in self._statistics:
            self._homes[PENDING + name] = self._homes.get(name, HOST)

    def _changed(self) -> set[str]:
        names = {*(self._reached or self._trainable), *self._statistics, *(PENDING + s for s in self._statistics)}
        names |= {ACCUMULATOR + name for name in self._reached}
        return names | {f"optimizer/{slot}/{name}" for slot in self._optimizer.slots for name in self._reached}

    def _program(
        self, kind: tuple[Any, ...], batch: Mapping[str, Array], make: Callable[[Mapping[str, int]], Graph]
    ) -> Program:
        def build() -> Program:
            feeds = {v.name: np.asarray(batch[v.name]) for v in self._graph.inputs if v.name in batch}
            sizes = sizes_of(self._graph, feeds) if len(feeds) == len(self._graph.inputs) and feeds else {}
            graph = without_dead(make(sizes))
            assert not dims_of(graph)
            changed = self._changed()
            homes = {**dict.fromkeys(changed, HOST), **(self._homes or {})}
            return self.engine.build(graph, changed=changed, homes=homes, newest=self._initial, scratch=self._scratch)

        return self.engine.program(kind, tuple((name, np.shape(array)) for name, array in batch.items()), build)

    def _run(self, program: Program, batch: Mapping[str, Array], *, interruptible: bool = True) -> dict[str, Array]:
        plan = program.plan
        feeds = self._feeds(program, batch)
        results = result_arrays(plan.outputs, None)
        try:
            program.run(feeds, results, interruptible=interruptible)
        except Cancelled as error:
            raise KeyboardInterrupt(str(error)) from None
        return results

    def _feeds(self, program: Program, batch: Mapping[str, Array]) -> dict[str, Array]:
        return {name: checked_array(name, o.type, batch[name]) for name, o in program.plan.inputs.items()}

    def _initial(self, name: str) -> Array | None:
        found = self._loaded.get(name)
        return self._loaded.get("parameters/" + name) if found is None else found

    def _name_of(self, key: str) -> str:
        """The tensor's name without the memory before it."""
        for memory in set(self.engine.devices.memories.values()) - {HOST}:
            key = key.removeprefix(memory + "/")
        return key

    def _key_of(self, name: str) -> str:
        home = (self._homes or {}).get(name, HOST)
        return name if home == HOST else f"{home}/{name}"

    def _read(self, name: str) -> Array:
        key = self._key_of(name)
        if key in self.engine.variables:
            return self.engine.variables.read(key)
        array = self._initial(name)
        return self._begun(name) if array is None else array

    def _begun(self, name: str) -> Array:
        """What a tensor is before training: that of the model, or zeros of a slot or accumulator."""
        array = self._first.get(name)
        return np.zeros_like(self._first[name.split("/", 2)[-1]]) if array is None else array
