"""Trainer: the user's handle for training."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import InputError, ModelError
from ..execute.execution import Execution
from ..host import checks
from ..host.limits import Limits
from ..host.numbers import whole
from ..ir.types import Array
from ..model import Model
from ..passes.dropout import has_inactive
from ..passes.dynamic_regions import without_data
from ..planning.algorithms import Algorithms
from ..plugin.device import Precision
from ..plugin.registry import Registry, registry_of
from .callbacks import Callback, EarlyStop
from .dataset import Batch, Dataset, as_array, as_dataset, check_keys
from .history import History
from .interrupts import InterruptsHeld
from .joint import SQUARES
from .metrics import Metric, Tally, figures
from .names import Names
from .nonfinite import NonFiniteLoss
from .objective import SAMPLE_WEIGHT, LossChoice, MetricChoice, Objective
from .optimizers import Optimizer
from .parameters import select
from .tied_weights import find_ties

if TYPE_CHECKING:
    from ..execute.profile import Profile
    from .programs import Programs

_log = logging.getLogger("dataflow")


class Trainer:
    """Trains parameters of a model; owns its weights until closed.

    Calls from several threads run one after the other.

    Args:
        model: what to train.
        loss: a registered name, a df.losses object, ``{output: (loss, label_key, weight)}``, a function
            ``(g, outputs, batch) -> Value``, or ``df.losses.output(name)``.
        optimizer: a df.optim object; a name or ``"module:object"`` as on the command line; AdamW by default.
        output: the value that the loss reads, inner ones too; needed when the model has several outputs.
        trainable: names and patterns, see ``train.trainable.select``; by default what the model says.
        metrics: names, ``"module:object"`` and functions; by default what fits the loss.
        devices, threads, fuse, precision, algorithms, pin, registry, limits: as for Session; seconds are of a step.
        accumulate: micro-batches per optimizer step.
        clip_norm: the largest norm of the averaged gradient.
        seed: of the order of the data and the split.
        batch_norm: ``fixed`` statistics, or ``update`` them with those of the batches.
        dropout: the model's dropout nodes drop in training, by ``seed`` and the number of the micro-batch.
        tie: stored tensors that are equal bit for bit, directly or transposed, and not of one value train as one: an
            embedding and the output layer that exporters wrote apart. All copies follow.

    Raises:
        InputError: an option doesn't fit, or another Trainer owns the model.
    """

    def __init__(
        self,
        model: Model,
        loss: LossChoice = "cross_entropy",
        optimizer: Optimizer | str | None = None,
        *,
        output: str | None = None,
        trainable: Sequence[str] | str | None = None,
        metrics: Sequence[MetricChoice] | None = None,
        devices: Any = None,
        threads: int | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        seed: int = 0,
        batch_norm: Literal["fixed", "update"] = "fixed",
        dropout: bool = False,
        tie: bool = True,
        fuse: bool = True,
        precision: Precision = "float32",
        algorithms: Algorithms | None = None,
        pin: Mapping[str, str] | None = None,
        registry: Registry | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._closed = True  # until it owns the weights
        accumulate, seed = whole("accumulate", accumulate), whole("seed", seed, 0)
        if clip_norm is not None and not (isinstance(clip_norm, (int, float, np.number)) and clip_norm > 0):
            raise InputError(f"clip_norm is {clip_norm!r}; expected a number above 0")
        checks.instance("model", model, Model)
        checks.text("batch_norm", batch_norm, ("fixed", "update"))
        for name, flag in (("dropout", dropout), ("tie", tie), ("fuse", fuse)):
            checks.instance(name, flag, bool, np.bool_)
        checks.optional("output", output, str)
        for metric in checks.optional("metrics", metrics, list, tuple) or ():
            if not isinstance(metric, (str, Metric)) and not callable(metric):
                raise InputError(f"metrics: {checks.shown(metric)} is neither a name nor a function")
        if dropout and not has_inactive(model.graph):
            raise InputError("dropout=True: the model has no dropout node; exporters leave it out in inference mode")
        self.model, self.dropout = model, dropout
        self.names = Names(registry_of(registry).named)
        self.optimizer = self.names.optimizer("adamw" if optimizer is None else optimizer)
        self.accumulate, self.clip_norm, self.seed, self.batch_norm = accumulate, clip_norm, seed, batch_norm
        self.algorithms = Algorithms() if algorithms is None else algorithms
        self.execution = Execution(
            devices, threads, True, bool(fuse), precision, self.algorithms, pin, registry, limits
        )
        self.objective = Objective(model, loss, output, metrics, self.names)
        self._graph = without_data(self.objective.graph, self.objective.read)
        self.ties = find_ties(model) if tie else {}
        chosen = select(model, trainable)
        self.trainable = tuple(dict.fromkeys(self.ties[name].of if name in self.ties else name for name in chosen))
        self.steps = 0
        self.schedule = self.names.schedule(self.optimizer.schedule)
        self._pending = 0  # micro-batches since the last optimizer step
        self._sums = (0.0, 0.0)  # of their losses and weights
        self._outputs = tuple(name for name in model.graph.outputs if name in self._graph.outputs)
        self.programs = self._compile()
        with InterruptsHeld():
            model.own(self.programs.newest)
            self._closed = False

    def _compile(self) -> Programs:
        from .programs import Programs

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

    # ---- one step -------------------------------------------------------------------------------------

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
        arrays = {key: as_array(value, repr(key)) for key, value in checks.mapping("batch", batch).items()}
        tally = Tally()
        with self.model.lock:
            self.micro_batch(Batch(arrays, None), {"loss": tally})
            if self._pending >= self.accumulate:
                self.update()
        return tally.mean

    def micro_batch(self, batch: Batch, tallies: Mapping[str, Tally]) -> None:
        """Adds the gradients of a micro-batch to those that wait for ``update``, and its figures to ``tallies``."""
        with self.model.lock:
            self._check_open()
            feeds = self._feeds(batch)
            draw = {"draw": self.steps * self.accumulate + self._pending} if self.dropout else {}
            try:
                terms = self.programs.forward_backward(feeds, first=self._pending == 0, **draw)
                self._check_finite(terms, batch, feeds)
                self._sums = (self._sums[0] + float(terms["loss"]), self._sums[1] + float(terms["weight"]))
                self._pending += 1
            except BaseException:
                self.discard()
                raise
            _count(tallies, terms)

    def discard(self) -> None:
        """Forgets the micro-batches since the last optimizer step, as if they had not been."""
        self._pending, self._sums = 0, (0.0, 0.0)

    @property
    def pending(self) -> int:
        """Micro-batches since the last optimizer step."""
        return self._pending

    def update(self) -> dict[str, float]:
        """Runs the optimizer on what was gathered; its figures: step, loss, lr, and gradient_norm with ``clip_norm``.

        When no sample counted (all labels ignored) nothing changes and there are no figures. Ctrl-C waits for the end.

        Raises:
            InputError: the schedule's factor is no finite number.
        """
        with self.model.lock:
            self._check_open()
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
            if self._pending:
                raise InputError(
                    f"profile: {self._pending} micro-batches wait for update(), and it would lose their gradients"
                )
            feeds = self._feeds(Batch({key: as_array(value, repr(key)) for key, value in batch.items()}, None))
            lr = self.optimizer.lr * self.schedule(self.steps)
            return self.programs.profile(feeds, self.optimizer.hyper(self.steps + 1, lr), rounds)

    def _check_finite(self, terms: Mapping[str, Array], batch: Batch, feeds: Mapping[str, Array]) -> None:
        """Raises NonFiniteLoss where the loss of a micro-batch or a gradient isn't finite."""
        loss = float(terms["loss"])
        if not math.isfinite(loss):
            raise NonFiniteLoss(loss, self.steps, batch.indices, self._first_bad(feeds))
        if math.isfinite(float(terms[SQUARES])):
            return
        gradients = self.programs.gradients()
        bad = next((repr(name) for name, array in gradients.items() if not np.isfinite(array).all()), None)
        if bad is None and self.clip_norm is not None:
            bad = "all parameters together, whose norm exceeds float32,"
        if bad is not None:
            raise NonFiniteLoss(loss, self.steps, batch.indices, None, bad)

    def _feeds(self, batch: Batch) -> dict[str, Array]:
        """What the programs read, checked and in the right dtypes."""
        inputs = self.model.inputs
        required = (*inputs, *self.objective.keys)
        known = (*batch.arrays,) if self.objective.open else (SAMPLE_WEIGHT,)
        check_keys(batch.arrays, required, known)
        feeds = {name: _cast(name, batch.arrays[name], type_) for name, type_ in inputs.items()}
        return feeds | self.objective.prepare(batch.arrays, batch.indices)

    def _first_bad(self, feeds: Mapping[str, Array]) -> str | None:
        """The first node of the model whose result is not finite for these inputs, or a parameter that isn't."""
        from ..session import Session

        for name in self.trainable:
            if not np.isfinite(self.model.parameters[name].array.astype(np.float64)).all():
                return f"parameter {name!r}, which the last update made so"
        computed = [(v, node) for node in self.model.graph.nodes for v in node.outputs if v is not None]
        made = {v.name: node for v, node in computed if v.type.dtype.is_float}
        how = self.execution
        session = Session(self.model, how.devices, threads=how.threads, registry=how.registry, limits=how.limits)
        found = session.run({name: feeds[name] for name in self.model.inputs}, outputs=list(made))
        for name, node in made.items():
            if not np.isfinite(found[name].astype(np.float64)).all():
                return node.describe()
        return None

    # ---- many steps -----------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        validation: Any = None,
        *,
        val_split: float = 0.0,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        callbacks: Iterable[Callback | str] = (),
        checkpoint: str | Path | None = None,
        every: Literal["epoch"] | int = "epoch",
        keep: int = 3,
        resume: str | Path | None = None,
        early_stop: EarlyStop | None = None,
        progress: bool | None = None,
    ) -> History:
        """The figures of training on ``data`` for some epochs.

        Args:
            data: a Dataset or what one is made of.
            validation: the same, evaluated after each epoch; figures ``val_...``.
            val_split: the part of ``data`` that is validation instead, chosen at random by seed.
            epochs: passes over the data.
            batch_size: samples per micro-batch; the optimizer sees ``batch_size * accumulate``.
            shuffle: a new order in each epoch, by seed and epoch.
            callbacks: called with each Event; names and ``"module:object"`` too.
            checkpoint: folder for checkpoints.
            every: ``"epoch"``, or a number of optimizer steps between checkpoints.
            keep: how many of them stay.
            resume: ``"auto"`` goes on from the newest checkpoint that can be read, when there is one; or a file.
            early_stop: when to end before the last epoch.
            progress: False shows nothing, True a bar; None a bar in terminals and notebooks, lines elsewhere.

        Raises:
            InputError: data or options that don't fit, or a checkpoint of another model.
            NonFiniteLoss: the loss or a gradient became NaN or infinite.
        """
        from .loop import Fit, Saving

        self._check_open()
        checks.number("val_split", val_split, 0.0, 1.0)
        checks.optional("early_stop", early_stop, EarlyStop)
        if isinstance(callbacks, np.ndarray) or not isinstance(callbacks, Iterable):
            raise InputError(f"callbacks is {checks.shown(callbacks)}; expected functions of an event")
        called = [self.names.callback(callback) for callback in callbacks]
        for callback in called:
            if not callable(callback):
                raise InputError(f"callbacks: {checks.shown(callback)} can't be called; expected functions of an event")
        dataset = as_dataset(data)
        held: Dataset | None = None
        if validation is not None:
            if val_split:
                raise InputError("fit: give validation= or val_split=, not both")
            held = as_dataset(validation)
        elif val_split:
            dataset, held = dataset.split(val_split, self.seed)
        for part in (dataset, held):
            if part is not None:
                self._check_data(part)
        if checkpoint is None and resume == "auto":
            raise InputError("fit: resume='auto' needs checkpoint=, the folder to look in")
        saving = None if checkpoint is None else Saving(Path(checkpoint), every, keep)
        fit = Fit(self, dataset, held, epochs, batch_size, shuffle, called, saving, early_stop, progress)
        return fit.run(resume)

    def evaluate(self, data: Any, *, batch_size: int = 32) -> dict[str, float]:
        """The loss and metrics over ``data`` in inference mode, each with its standard error ``..._error``."""
        self._check_open()
        dataset = as_dataset(data)
        self._check_data(dataset)
        tallies = self.tallies()
        with self.model.lock:
            for batch in dataset.batches(batch_size, tuple_keys=self.tuple_keys):
                _count(tallies, self.programs.evaluate(self._feeds(batch)))
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

    @property
    def tuple_keys(self) -> tuple[str, ...]:
        """Names for the parts of samples that are tuples."""
        return (*self.model.inputs, *self.objective.keys)

    def _check_data(self, dataset: Dataset) -> None:
        if not self.objective.open:
            required = (*self.model.inputs, *self.objective.keys)
            dataset.check_keys(required, (SAMPLE_WEIGHT,), self.tuple_keys)
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

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _count(tallies: Mapping[str, Tally], terms: Mapping[str, Array]) -> None:
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
