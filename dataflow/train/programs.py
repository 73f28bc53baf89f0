"""Runs the programs of training: forward and backward, optimizer, evaluate, predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import Cancelled, InputError
from ..execute.arguments import checked_inputs
from ..execute.execution import Execution
from ..execute.profile import Profile, profile_program
from ..execute.program import Program
from ..host.limits import limited
from ..ir.plan import Plan
from ..ir.types import Array, TensorType
from ..model import Model
from .binding.making import Making
from .binding.phases import Phase
from .binding.ready import Ready, call
from .graphs import Draws
from .joint import ACCUMULATOR, BACKWARD, FORWARD, OPTIMIZER, SQUARES, VALUES
from .objective import Objective
from .optimizers.update_graph import update_arguments
from .optimizers.updates import Updates
from .step.gated import GatedSteps, Kept
from .tied_weights import Tie


class Programs(GatedSteps):
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
        draws: random numbers of training; None: nothing draws any.
        sites: values behind which there are more of them in training, each with the share that is dropped.
        scaled: gradients are those of the loss times ``scale``.
        as_ready: in such a plan each parameter is updated as soon as its gradient is complete, see ``step_graph``.
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
        draws: Draws | None = None,
        sites: Mapping[str, float] = MappingProxyType({}),
        scaled: bool = False,
        as_ready: bool = False,
    ) -> None:
        making = Making(
            model,
            objective,
            updates,
            trainable,
            how,
            batch_norm=batch_norm,
            ties=ties,
            draws=draws,
            sites=sites,
            scaled=scaled,
            as_ready=as_ready,
        )
        super().__init__(making)

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
            self._begin()
            program, batch = self._making.micro_batch(batch, first, draw)
            self._last_step, self._cotangent = program, 1.0
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
            step = self._step_of(batch, draw, frozen, gated=False)
            program, results = step.program, step.results
            last = FORWARD if self._making.as_ready else BACKWARD
            call(program, step.arguments, results, stage=(FORWARD, last))
        self._step = step
        self._accumulates, self._last_step = False, None if self._making.as_ready else program
        if self._making.as_ready:
            return {name: results[name] for name in program.plan.ranges[FORWARD].outputs}
        self._squares = float(results[SQUARES])
        return dict(results)

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
            self._begin()
            program, batch = self._making.micro_batch(batch, first, draw, tuple(values))
            plan = program.plan
            read = plan.ranges[BACKWARD].slots
            arguments = program.checked(batch)
            arguments = {n: a.copy() if plan.inputs[n].arena in read else a for n, a in arguments.items()}
            results = program.results.arrays()
            call(program, arguments, results, stage=(FORWARD, FORWARD))
        self._kept, self._accumulates = Kept(program, arguments, results, first), True
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
            if self.passes_gradients:
                self._last_step, self._cotangent = kept.program, cotangent
                call(kept.program, kept.arguments, kept.results, stage=(BACKWARD, BACKWARD))
                return {SQUARES: np.asarray(float(kept.results[SQUARES]) * cotangent**2)}
            held = {} if cotangent == 1.0 or kept.first else self.gradients()
            for name, array in held.items():
                self._trained.write(ACCUMULATOR + name, np.zeros_like(array))
            call(kept.program, kept.arguments, kept.results, stage=(BACKWARD, BACKWARD))
            if cotangent == 1.0:
                self._squares = float(kept.results[SQUARES])
            else:
                for name, array in self.gradients().items():
                    scaled = array * array.dtype.type(cotangent)
                    self.set_gradient(name, held[name] + scaled if name in held else scaled)
        return {SQUARES: np.asarray(self.squares())}

    def update(self, hyper: Array, weight: float, frozen: frozenset[int] = frozenset()) -> float:
        """Runs the optimizer once: divides the accumulators by ``weight``, clips, changes the parameters.

        Statistics become what the micro-batches made of them. An interrupt waits until all of it is done.

        Args:
            hyper: (K,), of the updates' ``dtype``.
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

    def _end_step(self, step: Kept, hyper: Array, weight: float) -> Mapping[str, Array]:
        """The results of a step that ``begin_step`` began; nothing ends it before it is complete."""
        self._step = None
        given = update_arguments(self._making.updates, hyper, weight * self.scale)
        call(
            step.program,
            {**step.arguments, **given},
            step.results,
            interruptible=False,
            stage=(OPTIMIZER, OPTIMIZER),
        )
        if self._making.as_ready:
            self._squares = float(step.results[SQUARES])
        return step.results

    def freeze(self, names: frozenset[str], updates: Updates) -> None:
        """From now on these parameters have no gradients and no updates; what is kept of all of them stays.

        Args:
            names: of all that are frozen.
            updates: what an optimizer step does; with the slots that it had.
        """
        self._step = self._last_step = self._prepared = self._repeated = None
        self._making.freeze(names, updates)

    def stood_still(self, name: str, keep: float) -> None:
        """Takes a parameter that was frozen into its average, of which ``keep`` is left."""
        self._trained.stood_still(name, keep)

    # ---- inference ------------------------------------------------------------------------------------

    def evaluate(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The terms of a batch in inference mode; nothing is kept."""
        with limited(self.engine.devices.account, "the evaluation"):
            self._begin()
            return self._run(*self._making.evaluation(batch))

    def predict(self, inputs: Any) -> dict[str, Array]:
        """The model's outputs with the newest weights, in inference mode."""
        arguments = checked_inputs(self._making.graph.inputs, inputs)
        with limited(self.engine.devices.account, "the prediction"):
            self._begin()
            return self._run(*self._making.prediction(arguments))

    def profile(self, batch: Mapping[str, Array], hyper: Array, rounds: int) -> dict[str, Profile]:
        """The profiles of ``joint`` (forward and backward of a first micro-batch) and ``optimizer``.

        Parameters, statistics and the optimizer's state are afterwards what they were; the accumulators are not.

        Args:
            batch: as for ``forward_backward``.
            hyper: as for ``update``.
            rounds: as for ``profile_program``.
        """
        self._begin()
        made = {"joint": self._making.profiled(batch), "optimizer": self._optimizer_step(hyper, 1.0)}
        self._last_step, self._cotangent = made["joint"][0], 1.0
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
        named = ((kind, program) for (kind, _), program in self.engine.programs.items())
        return {"-".join(str(k) for k in kind if not isinstance(k, Phase)): program.plan for kind, program in named}

    def joint_plan(self) -> Plan:
        """The newest plan of forward and backward."""
        return [program.plan for (kind, _), program in self.engine.programs.items() if kind[0] == "joint"][-1]

    def gradient_type(self, name: str) -> TensorType:
        """The type of a trained parameter's gradient."""
        return self.joint_plan().kept[self._trained.key_of(ACCUMULATOR + name)].type

    def end_steps(self) -> None:
        """Gives the memory back that only programs need; none can run any more, and the newest weights are there."""
        self.discard()
        if self.sums is not None:
            self.sums.close()
        self._last_step = self._repeated = None
        self._making.end()
        self._trained.drop_slots()

    def close(self) -> None:
        """Gives device memory back; the programs can't run any more."""
        self.end_steps()
        self.engine.close()

    # ---- how they run ---------------------------------------------------------------------------------

    def allocate_own(self) -> None:
        """Makes the optimizer's program, and with it the tensors that it reads and writes."""
        updates = self._making.updates
        hyper, squares = np.zeros(updates.hyper_size, updates.dtype.numpy), updates.reads_squares
        with limited(self.engine.devices.account, "the optimizer's step"):
            self._making.optimizer(hyper, 1.0, frozenset(), 0.0 if squares else None)

    def _optimizer_step(
        self, hyper: Array, weight: float, frozen: frozenset[int] = frozenset()
    ) -> tuple[Program, Mapping[str, Array]]:
        """The program of the optimizer, and its arguments.

        Raises:
            InputError: gradients whose norm is to be clipped have none in the updates' ``dtype``.
        """
        self._begin()
        updates, squares = self._making.updates, None
        if updates.clips:
            squares = self.squares()
            if squares > updates.most:  # only assigned ones: others are checked
                dtype = updates.dtype.name
                raise InputError(f"update: the norm of the gradients exceeds {dtype}, so they can't be clipped by it")
        return self._making.optimizer(hyper, weight, frozen, squares if updates.reads_squares else None)

    def _run(self, program: Ready, batch: Mapping[str, Array], *, interruptible: bool = True) -> dict[str, Array]:
        results = program.results.arrays()
        call(program, program.checked(batch), results, interruptible=interruptible)
        return results
