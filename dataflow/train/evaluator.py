"""Evaluator: owns a model's weights while they are trained, and evaluates and predicts with the newest ones."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from ..errors import InputError, ModelError, PluginError, blamed
from ..execute.arguments import named_inputs
from ..execute.execution import Execution
from ..host import checks
from ..ir.types import Array
from ..model import Model
from ..passes.dynamic_regions import without_data
from .data.batch import SAMPLE_WEIGHT, Batch, Request, check_keys
from .data.columns import listed
from .data.dataset import Dataset, as_dataset
from .data.reading import as_in_training
from .graphs import Draws
from .interrupts import InterruptsHeld
from .losses.loss import LABELS
from .metrics import Gathered, RunningMean, figures
from .metrics.sample_moments import SampleMoments, moments_of, with_moments
from .objective import Objective
from .optimizers.updates import Updates
from .parameters import left_out
from .prediction import cast, check_batches, chosen_outputs, is_dataset, predictions
from .programs import Programs
from .tied_weights import Tie

_log = logging.getLogger("dataflow")


class Evaluator:
    """Holds the compiled programs of a training; owns the model's weights until closed.

    Args:
        model: what is trained.
        objective: loss and metrics.
        updates: what an optimizer step does.
        trainable: names of parameters.
        ties: stored tensors that are copies of others.
        execution: devices, and how they compile and run.
        batch_norm: ``fixed`` statistics, or ``update`` them with those of the batches.
        draws: random numbers of training; None: nothing draws any.
        sites: values behind which there are more of them, each with the share that is dropped.
        scaled: gradients are those of the loss times a factor, see ``Programs``.
        as_ready: see ``Programs``.

    Attributes:
        updates: what an optimizer step does to each parameter.
        optimizer: the one that was given.
        programs: the compiled programs.
        tuple_keys: names for the parts of samples that are tuples.
        classes: by label key the names of the classes of the data that was trained on, in the order of their numbers.
        numbered: labels may be numbers of these classes, too: the names are the model's, not those of other data.

    Raises:
        InputError: another Trainer owns the model, or an option doesn't fit it.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        updates: Updates,
        trainable: Sequence[str],
        ties: Mapping[str, Tie],
        execution: Execution,
        *,
        batch_norm: str,
        draws: Draws | None,
        sites: Mapping[str, float] = MappingProxyType({}),
        scaled: bool = False,
        as_ready: bool = False,
    ) -> None:
        self._closed = True  # until it owns the weights
        self.model, self.objective = model, objective
        self.updates, self.optimizer = updates, updates.rule
        self.trainable, self.ties, self.execution = tuple(trainable), ties, execution
        self.batch_norm, self._draws, self._sites = batch_norm, draws, sites
        self._scaled, self._as_ready = scaled, as_ready
        self._graph = without_data(objective.graph, objective.read)
        self._outputs = tuple(name for name in model.graph.outputs if name in self._graph.outputs)
        self._inputs = dict(model.inputs)
        self.tuple_keys = (*self._inputs, *objective.keys)
        self.classes: Mapping[str, Sequence[str]] = {}
        self.numbered = False
        self.programs = self._compile()
        with InterruptsHeld():
            model.own(self.programs.newest, self.programs.assign)
            self._closed = False

    def _compile(self) -> Programs:
        return Programs(
            self.model.with_graph(self._graph, self.model.specialize),
            self.objective,
            self.updates,
            self.trainable,
            self.execution,
            batch_norm=self.batch_norm,
            ties=self.ties,
            draws=self._draws,
            sites=self._sites,
            scaled=self._scaled,
            as_ready=self._as_ready,
        )

    def evaluate(self, data: Any, *, batch_size: int = 32) -> dict[str, Any]:
        """The loss and metrics over ``data`` in inference mode.

        Means have their standard error under ``..._error``. A metric of several numbers is an array.
        """
        return self._evaluated(data, batch_size, self._terms)

    def _terms(self, batch: Batch) -> Mapping[str, Array]:
        """The terms of a batch in inference mode; of what it gives of each sample the moments."""
        arguments = self._arguments(batch)
        with self.objective.naming_samples(batch):
            terms = self.programs.evaluate(arguments)
        return with_moments(terms, self.objective.factors)

    def _evaluated(
        self, data: Any, batch_size: int, terms_of: Callable[[Batch], Mapping[str, Array]]
    ) -> dict[str, Any]:
        self._check_open()
        dataset = self._dataset(data)
        check_batches("evaluate", self._inputs, dataset, batch_size, training=False)
        means, gathered, moments = self.means(), self.objective.gathered(), SampleMoments()
        with self.model.lock, contextlib.closing(dataset.batches(batch_size)) as batches:
            for batch in batches:
                terms = terms_of(batch)
                count(means, terms)
                moments.add(terms)
                for name, metric in gathered.items():
                    metric.update(*_values(terms, name))
        found: dict[str, Any] = figures(means, errors=moments.errors(self.objective.factors))
        found |= {name: _result(name, metric) for name, metric in gathered.items()}
        if self.objective.factors:  # of all samples, whatever the batches: labels may not count
            known = {name: means[name].mean for name in self.objective.factors if means[name].sums[1]}
            found["loss"] = sum(self.objective.factors[name] * mean for name, mean in known.items())
        return found

    def predict(
        self,
        inputs: Any,
        *,
        batch_size: int | None = None,
        outputs: Sequence[str] | str | None = None,
        progress: bool | None = None,
    ) -> dict[str, Array]:
        """The model's outputs with the newest weights, by name.

        Args:
            inputs: arrays of one run, as for ``Session.run``, and floats of other widths; or a Dataset, or what one
                is made of, read in batches.
            batch_size: samples per run; where it is given, arrays are read in batches too. By default 32.
            outputs: names of some of the model's outputs.
            progress: in batches; as for ``fit``.

        Raises:
            InputError: data that doesn't fit; in batches an output without an axis of samples.
        """
        names = chosen_outputs({name: self._graph.outputs[name].type for name in self._outputs}, outputs)
        unknown = [name for name in names if name not in self._outputs]
        if unknown:
            raise InputError(f"predict: {unknown} are none of the outputs {', '.join(self._outputs)}")

        def run(arrays: Any) -> dict[str, Array]:
            found = self.programs.predict(arrays)
            return {name: found[name] for name in names}

        with self.model.lock:
            self._check_open()
            declared, keys = self._graph.inputs, self.objective.keys
            if not is_dataset(inputs, batch_size):
                given = named_inputs(declared, inputs)
                return run({name: cast(name, type_, given[name]) for name, type_ in self._inputs.items()})
            types = {name: self._graph.outputs[name].type for name in names}
            dataset = as_in_training(inputs, self.model.metadata, labels=False)
            return predictions(run, declared, types, dataset, keys, batch_size, progress)

    @property
    def averaged(self) -> bool:
        """Whether averages of weights are used, where the optimizer keeps some (EMA, SWA, schedule-free).

        They are then what ``evaluate``, ``predict`` and ``model.parameters`` read, and what the model has after
        ``close``. It can be assigned to; at first it is true.
        """
        return self.programs.averaged

    @averaged.setter
    def averaged(self, averaged: bool) -> None:
        checks.instance("averaged", averaged, bool)
        with self.model.lock:
            self.programs.averaged = averaged

    def means(self) -> dict[str, RunningMean]:
        """An empty running mean per figure."""
        fractions = self.objective.fractions
        return {"loss": RunningMean(), **{name: RunningMean(fraction) for name, fraction in fractions.items()}}

    def _dataset(self, data: Any) -> Dataset:
        """A dataset of ``data`` that gives what the programs read; of a path one that is read as in training.

        Raises:
            InputError: it can't.
        """
        given = as_dataset(as_in_training(data, self.model.metadata, labels=True))
        dataset = given.bound(self._request(self.classes))
        if not given.names_classes:
            names = self._names_of_model(dataset.classes)
            dataset = dataset if names is None else given.bound(self._request({**self.classes, LABELS: names}))
        if not self.objective.open:
            dataset.check_keys(self.tuple_keys, (SAMPLE_WEIGHT,))
        dataset.refuse_nan((*self.objective.complete_keys, SAMPLE_WEIGHT))
        return dataset

    def _request(self, classes: Mapping[str, Sequence[str]]) -> Request:
        objective = self.objective
        return Request(
            self._inputs,
            tuple(objective.keys),
            classes,
            objective.open,
            numbered=self.numbered,
            numbers=objective.number_keys,
        )

    def _names_of_model(self, classes: Mapping[str, Sequence[str]]) -> Sequence[str] | None:
        """The model's own names of classes, by which labels are numbered whose names are among them; else None.

        Args:
            classes: of the data, by label key: the names that occur.

        Raises:
            InputError: some of the names are the model's, and some aren't.
        """
        known, found = self.model.classes, classes.get(LABELS)
        if known is None or found is None or LABELS in self.classes or tuple(found) == known:
            return None
        others = [name for name in found if name not in known]
        if not others:
            return known
        if len(others) < len(found):
            raise InputError(
                f"the labels {listed(others)} are none of the model's classes, {listed(known)}, and others are: "
                "df.replace_head(model, classes=N) makes a head for new classes; Dataset(data, classes=[...]) numbers "
                "labels in that order whatever the model's classes are"
            )
        _log.warning(
            "the data's classes are other ones than the model's, %s, and take their numbers: %s", listed(known),
            listed(found),
        )  # fmt: skip
        return None

    def _arguments(self, batch: Batch) -> dict[str, Array]:
        """What the programs read, checked and in the right dtypes."""
        known = batch.arrays if self.objective.open else (SAMPLE_WEIGHT,)
        check_keys(batch.arrays, self.tuple_keys, known)
        found = {name: cast(name, type_, batch.arrays[name]) for name, type_ in self._inputs.items()}
        found |= self.objective.prepare(batch.arrays, batch.indices)
        names = self.objective.arguments
        return {names.get(key, key): found[key] for key in batch.arrays if key in found}

    def described(self) -> str:
        """How much is trained, and what of a file's is not."""
        left = left_out(self.model, self.trainable)
        parameters = self.model.parameters
        count = sum(parameters[name].type.elements for name in self.trainable)
        total = sum(p.type.elements for p in parameters.values())
        return (
            f"training {len(self.trainable)} of {len(parameters)} stored tensors, {count:,} of {total:,} numbers: "
            + ", ".join(self.trainable[:4])
            + (", ..." if len(self.trainable) > 4 else "")
            + "".join(f"; {name} with {tie.of}" for name, tie in self.ties.items() if tie.of in self.trainable)
            + (f"; not trained unless trainable= names them: {', '.join(left[:4])}" if left else "")
            + (", ..." if len(left) > 4 else "")
        )

    def close(self) -> None:
        """Gives the weights back to the model; the Trainer can't be used any more."""
        with self.model.lock, InterruptsHeld():
            if self._closed:
                return
            self.programs.end_steps()  # before weights are copied
            found = {value.name: self.programs.newest(value.name) for value in self.model.graph.initializers}
            own = {name: a.copy() if name in self.ties else a for name, a in found.items() if a is not None}
            self.model.release(own)
            self._closed = True
            self.programs.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ModelError("this Trainer is closed; make a new one")
        self.model.check_complete()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # this module may be gone
        if not getattr(self, "_closed", True) and not is_finalizing():
            with InterruptsHeld(later=True):
                self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def count(means: Mapping[str, RunningMean], terms: Mapping[str, Array]) -> None:
    """Adds the figures of a batch, whose terms are ``with_moments``, to their running means."""
    for name, mean in means.items():
        moments = moments_of(terms, name)
        if moments is not None:
            mean.add_samples(*moments)
            continue
        keys = ("loss", "weight") if name == "loss" else (f"{name}:sum", f"{name}:weight")
        mean.add(float(terms[keys[0]]), float(terms[keys[1]]))


def _values(terms: Mapping[str, Array], name: str) -> list[Array]:
    """What a batch gave for a metric that is no mean."""
    found: list[Array] = []
    while (key := f"{name}:{len(found)}") in terms:
        found.append(terms[key])
    return found


def _result(name: str, metric: Gathered) -> Any:
    """The figure of a metric.

    Raises:
        PluginError: it is neither a number nor an array of numbers.
    """
    with blamed(f"metric {name!r}: result()"):
        found = metric.result()
        kind = np.asarray(found).dtype.kind
    if kind not in "biuf":
        raise PluginError(
            f"metric {name!r}: result() gave {checks.shown(found)}; expected a number or an array of some"
        )
    return found
