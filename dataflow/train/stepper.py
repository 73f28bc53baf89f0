"""Stepper: one training step after another, whole or program by program, and what evaluates between."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..errors import InputError, ModelError
from ..execute.execution import Execution
from ..host import checks
from ..ir.types import Array
from ..model import Model
from ..passes.dynamic_regions import without_data
from .dataset import Batch, Dataset, as_array, as_dataset, check_keys
from .gradients import Gradients
from .interrupts import InterruptsHeld
from .joint import SQUARES
from .metrics import Tally, figures
from .names import Names
from .nonfinite import NonFiniteLoss, first_bad
from .objective import SAMPLE_WEIGHT, Objective
from .optimizers import Optimizer
from .programs import Programs
from .tied_weights import Tie

if TYPE_CHECKING:
    from ..execute.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """A micro-batch whose forward program ran, and whose backward program did not yet."""

    terms: Mapping[str, Array]
    batch: Batch
    arguments: Mapping[str, Array]


class Stepper:
    """Trains parameters of a model step by step; owns its weights until closed.

    Calls from several threads run one after the other.

    Args:
        model: what to train.
        objective: loss and metrics.
        optimizer: makes the update.
        trainable: names of parameters.
        ties: stored tensors that are copies of others.
        names: what losses, schedules and the like are called.
        execution: devices, and how they compile and run.
        accumulate: micro-batches per optimizer step.
        clip_norm: the largest norm of the averaged gradient.
        seed: of the order of the data and of dropout.
        batch_norm: ``fixed`` statistics, or ``update`` them with those of the batches.
        dropout: the model's dropout nodes drop in training.

    Attributes:
        steps: optimizer steps done.
        schedule: the factor of the learning rate by number of steps.
        programs: the compiled programs.

    Raises:
        InputError: another Trainer owns the model, or an option doesn't fit it.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        optimizer: Optimizer,
        trainable: Sequence[str],
        ties: Mapping[str, Tie],
        names: Names,
        execution: Execution,
        *,
        accumulate: int,
        clip_norm: float | None,
        seed: int,
        batch_norm: str,
        dropout: bool,
    ) -> None:
        self._closed = True  # until it owns the weights
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self.names = names
        self.trainable, self.ties, self.execution = tuple(trainable), ties, execution
        self.accumulate, self.clip_norm, self.seed = accumulate, clip_norm, seed
        self.batch_norm, self.dropout = batch_norm, dropout
        self._graph = without_data(objective.graph, objective.read)
        self._outputs = tuple(name for name in model.graph.outputs if name in self._graph.outputs)
        self._inputs = dict(model.inputs)
        self.tuple_keys = (*self._inputs, *objective.keys)  # names for the parts of samples that are tuples
        self.steps = 0
        self.schedule = names.schedule(optimizer.schedule)
        self._pending = 0  # micro-batches since the last optimizer step
        self._sums = (0.0, 0.0)  # of their losses and weights
        self._forward: _Forward | None = None
        self.programs = self._compile()
        with InterruptsHeld():
            model.own(self.programs.newest)
            self._closed = False

    def _compile(self) -> Programs:
        return Programs(
            self.model.with_graph(self._graph),
            self.objective,
            self.optimizer,
            self.trainable,
            self.execution,
            clip_norm=self.clip_norm,
            batch_norm=self.batch_norm,
            ties=self.ties,
            dropout=self.seed if self.dropout else None,
        )

    # ---- a step at once -------------------------------------------------------------------------------

    def step(self, batch: Mapping[str, Any]) -> float:
        """The weighted mean loss of one micro-batch, before the update.

        The optimizer runs at every ``accumulate``-th call. A batch that doesn't fit changes nothing. One that fails
        while it runs is discarded, with all micro-batches since the last optimizer step.

        Args:
            batch: the model's inputs, the labels, and perhaps ``sample_weight``; samples first.

        Raises:
            InputError: keys, dtypes, shapes or labels that don't fit.
            NonFiniteLoss: the loss or a gradient is NaN or infinite.
        """
        arrays = _arrays(batch)
        tally = Tally()
        with self.model.lock:
            self.micro_batch(Batch(arrays, None), {"loss": tally})
            if self._pending >= self.accumulate:
                self.update()
        return tally.mean

    def micro_batch(self, batch: Batch, tallies: Mapping[str, Tally]) -> None:
        """Adds the gradients of a micro-batch to those that wait for ``update``, and its figures to ``tallies``."""
        with self.model.lock:
            arguments = self._begin("step", batch)
            try:
                terms = self.programs.forward_backward(arguments, first=self._pending == 0, **self._draw())
                self._check_loss(terms, batch, arguments)
                self._check_gradients(terms, batch)
                self._count(terms)
            except BaseException:
                self.discard()
                raise
            _tally(tallies, terms)

    def discard(self) -> None:
        """Forgets the micro-batches since the last optimizer step, as if they had not been."""
        self._pending, self._sums = 0, (0.0, 0.0)
        if self._forward is not None:
            self._forward = None
            self.programs.discard()

    @property
    def pending(self) -> int:
        """Micro-batches since the last optimizer step."""
        return self._pending

    # ---- program by program ---------------------------------------------------------------------------

    def forward(self, batch: Mapping[str, Any], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Runs the forward program on a micro-batch; what its gradients need stays in memory for ``backward``.

        ``forward``, ``backward`` and, after ``accumulate`` of both, ``update`` give what ``step`` gives, bit for bit
        where ``outputs`` is empty. Until ``backward`` no other program can run, since all use the same memory.

        Args:
            batch: as for ``step``.
            outputs: names of outputs and inner values to return too.

        Returns:
            The terms: sums over the micro-batch ``loss``, ``weight``, and ``name:sum`` and ``name:weight`` of each
            metric, of rank 0; and the values asked for.

        Raises:
            InputError: as ``step``; or a forward program waits for ``backward``.
            ModelError: there is no value of a name.
            NonFiniteLoss: the loss is NaN or infinite; the micro-batches since the last optimizer step are discarded.
        """
        given = Batch(_arrays(batch), None)
        names = checks.texts("outputs", outputs)
        with self.model.lock:
            arguments = self._begin("forward", given)
            for name in names:
                if name not in self._graph.outputs:
                    self._graph.find(name)
            try:
                terms, values = self.programs.forward(arguments, first=self._pending == 0, values=names, **self._draw())
                self._check_loss(terms, given, arguments)
                self._forward = _Forward(terms, given, arguments)
            except BaseException:
                self.programs.discard()
                self.discard()
                raise
        both = terms.keys() & values.keys()
        if both:
            raise InputError(f"forward: {sorted(both)} are names of terms, which are returned in any case")
        return {**terms, **values}

    def backward(self, cotangent: float = 1.0) -> None:
        """Runs the backward program of the last ``forward``: its gradients are added to those that wait for ``update``.

        Args:
            cotangent: of the loss: the gradients of this micro-batch are multiplied by it. Those of another one than 1
                go through the host.

        Raises:
            InputError: no ``forward`` waits for it, or the cotangent is no finite number.
            NonFiniteLoss: a gradient is NaN or infinite; the micro-batches since the last optimizer step are discarded.
        """
        cotangent = checks.number("cotangent", cotangent, -sys.float_info.max)
        with self.model.lock:
            self._check_open()
            forward = self._forward
            if forward is None:
                raise InputError("backward: no forward() waits for it; call forward(batch) before each backward()")
            try:
                squares = self.programs.backward(cotangent)
                self._forward = None
                self._check_gradients({**forward.terms, **squares}, forward.batch)
                self._count(forward.terms)
            except BaseException:
                self.discard()
                raise

    @property
    def gradients(self) -> Gradients:
        """The gradients that ``update`` will use, by parameter, as sums; they can be read and assigned to."""
        return Gradients(self.programs, lambda: self._pending)

    def update(self) -> dict[str, float]:
        """Runs the optimizer on what was gathered; its figures: step, loss, lr, and gradient_norm with ``clip_norm``.

        When no sample counted (all labels ignored) nothing changes and there are no figures. Ctrl-C waits for the end.

        Raises:
            InputError: no gradients wait for it, a forward program waits for ``backward``, or the schedule's factor is
                no finite number.
        """
        with self.model.lock:
            self._check_open()
            self.check_idle("update")
            if not self._pending:
                raise InputError("update: no gradients wait for it; call step(), or forward() and backward(), before")
            loss, weight = self._sums
            if weight == 0.0:
                self.discard()
                return {}
            lr = self.optimizer.lr * self.schedule(self.steps)
            if not math.isfinite(lr):
                raise InputError(f"the learning rate is {lr} after {self.steps} optimizer steps; look at the schedule")
            with InterruptsHeld():
                self.discard()
                norm = self.programs.update(self.optimizer.hyper(self.steps + 1, lr), weight)
                self.steps += 1
            found = {"step": float(self.steps), "loss": loss / weight, "lr": lr}
        return found if self.clip_norm is None else {**found, "gradient_norm": norm}

    def profile(self, batch: Mapping[str, Any], *, rounds: int = 20) -> dict[str, Profile]:
        """The time of each step of a training step's programs, ``joint`` and ``optimizer``; training stays where it is.

        Args:
            batch: as for ``step``.
            rounds: how often everything runs; medians are taken.

        Raises:
            InputError: as ``step``, or gradients of a micro-batch wait for ``update``.
        """
        with self.model.lock:
            self._check_open()
            self.check_idle("profile")
            if self._pending:
                raise InputError(
                    f"profile: {self._pending} micro-batches wait for update(), and it would lose their gradients"
                )
            arguments = self._arguments(Batch(_arrays(batch), None))
            lr = self.optimizer.lr * self.schedule(self.steps)
            return self.programs.profile(arguments, self.optimizer.hyper(self.steps + 1, lr), rounds)

    def _begin(self, what: str, batch: Batch) -> dict[str, Array]:
        """The arguments of a micro-batch that fits; nothing has changed when it doesn't."""
        self._check_open()
        self.check_idle(what)
        return self._arguments(batch)

    def check_idle(self, what: str) -> None:
        """Raises InputError where a forward program waits for its backward program."""
        if self._forward is not None:
            raise InputError(
                f"{what}: a forward() waits for its backward(); call backward(), or discard() to forget the "
                "micro-batches since the last optimizer step"
            )

    def _draw(self) -> dict[str, int]:
        """The number of the micro-batch, where random numbers depend on it."""
        return {"draw": self.steps * self.accumulate + self._pending} if self.dropout else {}

    def _count(self, terms: Mapping[str, Array]) -> None:
        """Enters a micro-batch whose gradients were added."""
        self._sums = (self._sums[0] + float(terms["loss"]), self._sums[1] + float(terms["weight"]))
        self._pending += 1

    def _check_loss(self, terms: Mapping[str, Array], batch: Batch, arguments: Mapping[str, Array]) -> None:
        """Raises NonFiniteLoss where the loss of a micro-batch isn't finite."""
        loss = float(terms["loss"])
        if not math.isfinite(loss):
            raise NonFiniteLoss(loss, self.steps, batch.indices, self._first_bad(arguments))

    def _check_gradients(self, terms: Mapping[str, Array], batch: Batch) -> None:
        """Raises NonFiniteLoss where a gradient isn't finite, though the loss is."""
        if math.isfinite(float(terms[SQUARES])):
            return
        gradients = self.programs.gradients()
        bad = next((repr(name) for name, array in gradients.items() if not np.isfinite(array).all()), None)
        if bad is None and self.clip_norm is not None:
            bad = "all parameters together, whose norm exceeds float32,"
        if bad is not None:
            raise NonFiniteLoss(float(terms["loss"]), self.steps, batch.indices, None, bad)

    def _arguments(self, batch: Batch) -> dict[str, Array]:
        """What the programs read, checked and in the right dtypes."""
        known = batch.arrays if self.objective.open else (SAMPLE_WEIGHT,)
        check_keys(batch.arrays, self.tuple_keys, known)
        found = {name: _cast(name, batch.arrays[name], type_) for name, type_ in self._inputs.items()}
        found |= self.objective.prepare(batch.arrays, batch.indices)
        return {name: found[name] for name in batch.arrays if name in found}

    def _first_bad(self, arguments: Mapping[str, Array]) -> str | None:
        """See ``nonfinite.first_bad``."""
        return first_bad(self.model, self.trainable, self.execution, arguments)

    # ---- without training -----------------------------------------------------------------------------

    def evaluate(self, data: Any, *, batch_size: int = 32) -> dict[str, float]:
        """The loss and metrics over ``data`` in inference mode, each with its standard error ``..._error``."""
        self._check_open()
        dataset = as_dataset(data)
        self._check_data(dataset)
        tallies = self.tallies()
        with self.model.lock:
            for batch in dataset.batches(batch_size, tuple_keys=self.tuple_keys):
                _tally(tallies, self.programs.evaluate(self._arguments(batch)))
        return figures(tallies)

    def predict(self, inputs: Any) -> dict[str, Array]:
        """The model's outputs for ``inputs`` with the newest weights, by name."""
        with self.model.lock:
            self._check_open()
            found = self.programs.predict(inputs)
        return {name: found[name] for name in self._outputs}

    def tallies(self) -> dict[str, Tally]:
        """An empty tally per figure."""
        fractions = self.objective.fractions
        return {"loss": Tally(), **{name: Tally(fraction) for name, fraction in fractions.items()}}

    def _check_data(self, dataset: Dataset) -> None:
        if not self.objective.open:
            dataset.check_keys(self.tuple_keys, (SAMPLE_WEIGHT,), self.tuple_keys)
        dataset.refuse_nan((*self.objective.label_keys, SAMPLE_WEIGHT))

    # ---- weights --------------------------------------------------------------------------------------

    def described(self) -> str:
        """How much is trained."""
        parameters = self.model.parameters
        count = sum(parameters[name].type.elements for name in self.trainable)
        total = sum(p.type.elements for p in parameters.values())
        return (
            f"training {len(self.trainable)} of {len(parameters)} stored tensors, {count:,} of {total:,} numbers: "
            + ", ".join(self.trainable[:4])
            + (", ..." if len(self.trainable) > 4 else "")
            + "".join(f"; {name} with {tie.of}" for name, tie in self.ties.items() if tie.of in self.trainable)
        )

    def close(self) -> None:
        """Gives the weights back to the model; the Trainer can't be used any more."""
        with self.model.lock, InterruptsHeld():
            if self._closed:
                return
            found = {value.name: self.programs.newest(value.name) for value in self.model.graph.initializers}
            own = {name: a.copy() if name in self.ties else a for name, a in found.items() if a is not None}
            self.model.release(own)
            self._closed = True
            self.programs.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ModelError("this Trainer is closed; make a new one")
        self.model.check_whole()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # this module may be gone
        if not getattr(self, "_closed", True) and not is_finalizing():
            with InterruptsHeld(later=True):
                self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tally(tallies: Mapping[str, Tally], terms: Mapping[str, Array]) -> None:
    for name, tally in tallies.items():
        keys = ("loss", "weight") if name == "loss" else (f"{name}:sum", f"{name}:weight")
        tally.add(float(terms[keys[0]]), float(terms[keys[1]]))


def _cast(name: str, array: Array, type_: Any) -> Array:
    """The array in the input's dtype, where numpy calls the conversion one of the same kind."""
    wanted = type_.dtype.numpy
    if array.dtype == wanted:
        return array
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise InputError(
            f"input {name!r}: expected {type_}, got {array.dtype}; convert it with .astype(np.{type_.dtype})"
        )
    return array.astype(wanted)


def _arrays(batch: Mapping[str, Any]) -> dict[str, Array]:
    """The entries of a batch as arrays."""
    return {key: as_array(value, repr(key)) for key, value in checks.mapping("batch", batch).items()}
