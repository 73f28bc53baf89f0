"""The objective of a run: losses and metrics bound to values of a model and to keys of its data."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from ..errors import InputError, ModelError
from ..host import checks
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph
from ..ir.types import Array, TensorType, dtype
from ..ir.value import Value
from ..model import Model
from .batch_objective import BatchObjective, Build, WeightedLoss, samples, with_figures
from .data.batch import SAMPLE_WEIGHT, Batch, checked_weight, in_dtype, refuse_nan
from .losses.before import before
from .losses.logits import Read, logits_of
from .losses.loss import Allowed, Loss, OutputLoss, at_class_axis, compares_numbers, keys_of, others_of
from .metrics import Gathered, Metric
from .metrics.fitting import fits, refuse_unfit
from .metrics.metric import mode_of
from .names import CORE_ONLY, Names

MOST_FORMS = 256  # of labels whose dtype is remembered
_log = logging.getLogger("dataflow")

LossChoice = Union[str, Loss, OutputLoss, Build, Mapping[str, Any], list[Any]]
MetricChoice = Union[str, Metric, Gathered, Build]
_Wanted = tuple[tuple[tuple[str, np.dtype[Any]], ...], Union[Allowed, None]]  # dtypes by key, and labels


class Objective:
    """What a run makes small and what it reports; builds its subgraph.

    Attributes:
        graph: the model's, with the inner values that are read as further outputs.
        fractions: metric name to whether it is a share of right answers.
        waiting: names of the metrics that the user chose and that only evaluation computes.
        weighted_losses, factors: none where a callable is the loss; of several the factors by name among the figures.
        keys: the keys that a batch must have beside the model's inputs.
        open: True when a callable of the user's may read any key of a batch.
        arguments: by key the name of a program's input, where a stored tensor of the model is called as the key is.
    """

    def __init__(
        self,
        model: Model,
        loss: LossChoice,
        output: str | None = None,
        chosen: Sequence[MetricChoice] | None = None,
        names: Names = CORE_ONLY,
    ) -> None:
        if model.forms:
            listed = ", ".join(f"{name!r} is a {form}" for name, form in model.forms.items())
            raise ModelError(f"{listed}: a model with sequences or optionals can run, but not be trained")
        self._outputs = dict(model.graph.outputs)
        self._model = model.graph  # with what gives logits, where it has none
        self._made: dict[str, str] = {}  # such outputs, by the outputs that the losses were given
        self._inputs = tuple(model.inputs)
        self.arguments = _arguments([value.name for value in model.graph.initializers])
        self._build: Build | None = None
        self.weighted_losses: list[WeightedLoss] = []
        if isinstance(loss, (str, type)):
            loss = names.loss(loss)
        if isinstance(loss, list) and len(loss) == 1 and not isinstance(loss[0], tuple):
            loss = names.loss(loss[0])
        if isinstance(loss, OutputLoss):
            self._build = _Returned(self._output(loss.name))
        elif isinstance(loss, (Mapping, list)):
            for name, choice in loss.items() if isinstance(loss, Mapping) else [(self._chosen(output), loss)]:
                for each in choice if isinstance(choice, list) else [choice]:
                    self.weighted_losses.append(self._weighted_loss(name, *_entry(each, names)))
        elif isinstance(loss, Loss):
            self.weighted_losses = [self._weighted_loss(self._chosen(output), loss, None, 1.0)]
        elif callable(loss):
            self._build = loss
        else:
            raise InputError(f"loss: {loss!r} is no loss; expected a name, a df.losses object, a dict or a callable")
        found = None if chosen is None else [names.metric(m) for m in chosen]
        labelled = self._labelled(found, names)
        self._metrics = [(name, m, index) for name, m, index in labelled if isinstance(m, Metric)]
        self._gathered = [(name, m, index) for name, m, index in labelled if isinstance(m, Gathered)]
        self._free = [(_name_of(m), m) for m in found or () if not isinstance(m, (Metric, Gathered))]
        self.keys = tuple(key for key in self.label_keys if key not in self._inputs)
        self.open = bool(self._free) or (self._build is not None and not isinstance(self._build, _Returned))
        self._entries = frozenset((*self.keys, SAMPLE_WEIGHT))  # what programs read unless it is open
        self._seen: dict[Any, _Wanted] = {}  # by form of labels: saves a twentieth of a small step
        self.fractions = {name: metric.fraction for name, metric, _ in self._metrics}
        self.fractions |= {name: False for name, _ in self._free}
        self.modes = {name: mode_of(metric) for name, metric, _ in labelled}
        self.modes |= {name: mode_of(metric) for name, metric in self._free}
        self.factors: dict[str, float] = {}
        if len(self.weighted_losses) > 1:
            self.weighted_losses = with_figures(self.weighted_losses)
            self.fractions |= {entry.figure: False for entry in self.weighted_losses}
            self.factors = {entry.figure: entry.factor for entry in self.weighted_losses}
        self.waiting = tuple(name for name, _, _ in self._gathered) if chosen is not None else ()
        known = {*self.fractions, *(name for name, _, _ in self._gathered)}
        reserved = {"loss", "weight", "lr", "epoch", "seconds"} & known
        each = len(self.weighted_losses) if len(self.weighted_losses) > 1 else 0
        if reserved or len(known) < len(labelled) + len(self._free) + each:
            raise InputError(f"metrics: names must differ from each other and from {sorted(reserved) or 'loss'}")
        self.graph = dataclasses.replace(self._model, outputs=self._outputs)

    # ---- what it reads --------------------------------------------------------------------------------

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the graph's outputs that the loss reads; a callable may read all."""
        if isinstance(self._build, _Returned):
            return (self._build.name,)
        return tuple(self._outputs) if self.open else tuple(n for e in self.weighted_losses for n in e.outputs)

    @property
    def label_keys(self) -> tuple[str, ...]:
        """The keys of labels and of what else losses read of a batch; an input of the model may be one."""
        return tuple(dict.fromkeys(key for entry in self.weighted_losses for key in entry.keys))

    @property
    def complete_keys(self) -> tuple[str, ...]:
        """Those of the label keys of which no entry may be NaN."""
        partial = {e.keys[0] for e in self.weighted_losses if e.leaves_out}
        return tuple(key for key in self.label_keys if key not in partial)

    @property
    def number_keys(self) -> tuple[str, ...]:
        """The keys of labels that are numbers, not classes."""
        return tuple(e.keys[0] for e in self.weighted_losses if e.keys and compares_numbers(e.loss))

    def prepare(self, arrays: Mapping[str, Array], indices: Array | None) -> dict[str, Array]:
        """What the programs read of a batch beside the model's inputs, in the dtypes that they want.

        Raises:
            InputError: labels that don't fit the values, have a NaN, or are out of range.
        """
        entries = {key: array for key, array in arrays.items() if key not in self._inputs}
        for index, entry in enumerate(self.weighted_losses):
            form: tuple[Any, ...] = (index,)
            for key in entry.keys:
                array = arrays[key]
                form = (*form, array.dtype, array.shape)
            wanted, allowed = self._seen.get(form) or self._wanted(form, arrays)
            counting = entry.counting(arrays)
            for key, kind in wanted:
                refuse_nan(key, counting[key], indices)
                if key in entries:
                    entries[key] = in_dtype(key, counting[key], kind, indices)
            if allowed is not None:
                self._refuse_others(allowed, entry, counting, indices)
        if SAMPLE_WEIGHT in entries:
            labels = [arrays[key] for entry in self.weighted_losses for key in entry.keys if key in arrays]
            size = samples(array.shape for array in (*labels, *arrays.values()))
            entries[SAMPLE_WEIGHT] = checked_weight(entries[SAMPLE_WEIGHT], size, indices)
        return entries if self.open else {key: a for key, a in entries.items() if key in self._entries}

    def _refuse_others(
        self, allowed: Allowed, entry: WeightedLoss, arrays: Mapping[str, Array], indices: Array | None
    ) -> None:
        key = entry.keys[0]
        allowed.refuse_others(f"{key!r} for {type(entry.loss).__name__}", arrays[key], indices)

    def _wanted(self, form: tuple[Any, ...], arrays: Mapping[str, Array]) -> _Wanted:
        """The dtypes that a loss wants of entries of this form, by key, and the labels it allows.

        The class axis that the first labels have is kept: those of another length may fit another axis as well.
        """
        entry = self.weighted_losses[form[0]]
        types = {key: TensorType(dtype(arrays[key]), arrays[key].shape) for key in entry.keys}
        target = entry.target({name: self._outputs[name].type for name in entry.outputs}, types)
        self.weighted_losses[form[0]] = dataclasses.replace(entry, loss=at_class_axis(entry.loss, target.axis))
        if len(self._seen) >= MOST_FORMS:
            self._seen.clear()
        if (known := target.allowed or target.checked) and known.advice and not self._seen:
            _log.warning("%s: %s", type(entry.loss).__name__, known.advice)
        kinds = [type_.dtype.numpy for type_ in (target.labels, *target.entries)]
        return self._seen.setdefault(form, (tuple(zip(entry.keys, kinds, strict=False)), target.allowed))

    @contextlib.contextmanager
    def naming_samples(self, batch: Batch) -> Iterator[None]:
        """A context in which a kernel's error about labels of this batch becomes one that names the sample."""
        try:
            yield
        except InputError as error:
            for entry in self.weighted_losses:
                types = {key: TensorType(dtype(array), array.shape) for key, array in batch.arrays.items()}
                known = entry.target({name: self._outputs[name].type for name in entry.outputs}, types).checked
                if known is not None:
                    try:
                        self._refuse_others(known, entry, batch.arrays, batch.indices)
                    except InputError as named:
                        raise named from error
            raise

    def on(self, graph: Graph) -> Graph:
        """The model's graph, made for some inputs alone, with what the loss reads among its outputs.

        Raises:
            ModelError: the loss would read the result of an op whose input it wants.
        """
        given = graph.outputs

        def found(name: str) -> Value:
            return given[name] if name in given else graph.find(self._outputs[name].name)

        outputs = {name: found(name) for name in self._outputs if name not in self._made}
        for entry in self.weighted_losses:
            if entry.output in self._made:
                read = self._logits(graph, found(self._made[entry.output]), entry.loss)
                if read is None:
                    raise ModelError(f"for these inputs {entry.name!r} isn't shown to be a probability; give output=")
                graph, outputs[entry.output] = read.graph, read.value
                continue
            inner = before(graph, outputs[entry.output], entry.loss.skips)
            if inner is not None:
                text = f"the loss reads {entry.output!r}, the result of {inner[0]}, and wants the input of that"
                raise ModelError(f"{text}: give output={inner[1].name!r}")
        return dataclasses.replace(graph, outputs=outputs)

    def gathered(self) -> dict[str, Gathered]:
        """A copy of each metric that only evaluation computes, for one evaluation."""
        return {name: copy.deepcopy(metric) for name, metric, _ in self._gathered}

    # ---- what it adds to the graph --------------------------------------------------------------------

    def for_batch(self, types: Mapping[str, TensorType]) -> BatchObjective:
        """The objective for a batch whose entries, inputs of the model too, have these types; samples first.

        The class axis of each loss is decided here, from the labels' type and the declared type of what it reads.
        """
        losses = []
        declared = {name: value.type for name, value in self._outputs.items()}
        keys = {name: key for key, name in self.arguments.items()}
        types = {keys.get(name, name): type_ for name, type_ in types.items()}
        for entry in self.weighted_losses:
            target = entry.target(declared, types)
            losses.append(dataclasses.replace(entry, loss=at_class_axis(entry.loss, target.axis)))
        entries = {key: type_ for key, type_ in types.items() if key not in self._inputs}
        size = samples(type_.sizes for type_ in types.values())
        return BatchObjective(
            self._build, tuple(losses), self._metrics, self._gathered, self._free, types, entries, size, self.arguments
        )

    # ---- what the user chose --------------------------------------------------------------------------

    def _chosen(self, output: str | None) -> str:
        if output is not None:
            return output
        if len(self._model.outputs) == 1:
            return next(iter(self._model.outputs))
        raise InputError(
            f"the model has several outputs: {', '.join(map(repr, self._model.outputs))}; choose the one that the loss "
            "reads with output="
        )

    def _weighted_loss(self, name: str, loss: Loss, key: str | None, factor: float) -> WeightedLoss:
        value = self._output(name)
        read = self._logits(self._model, self._outputs[value], loss)
        if read is not None:
            given, made = value, read.graph is not self._model
            self._model = read.graph
            value = self._add_output(read.value)
            if made:
                self._made[value] = given
            _log.info("%r: the loss reads %r instead, %s", name, read.value.name, read.what)
        others = tuple(self._output(other) for other in others_of(loss))
        return WeightedLoss(loss, name, value, others, keys_of(loss, key), factor)

    @staticmethod
    def _logits(graph: Graph, value: Value, loss: Loss) -> Read | None:
        return logits_of(graph, value, loss.skips, logarithms=getattr(loss, "logarithms", False))

    def _output(self, name: str) -> str:
        """The name under which the graph returns the output or inner value ``name``."""
        return name if name in self._outputs else self._add_output(self._model.find(name))

    def _add_output(self, value: Value) -> str:
        for name, known in self._outputs.items():
            if known is value:
                return name
        name = value.name
        while name in self._outputs:
            name += "'"
        self._outputs[name] = value
        return name

    def _labelled(self, chosen: Sequence[Any] | None, names: Names) -> list[tuple[str, Metric | Gathered, int]]:
        """Metrics of a value and its labels: the chosen ones, or those that fit each loss."""
        own = [m for m in chosen or () if isinstance(m, (Metric, Gathered))]
        labelled: dict[str, int] = {}  # of several losses of a value the first one that has labels
        for index, entry in enumerate(self.weighted_losses):
            if entry.keys:
                labelled.setdefault(entry.name, index)
        found: list[tuple[str, Metric | Gathered, int]] = []
        for name, index in labelled.items():
            prefix = f"{name}_" if len({entry.name for entry in self.weighted_losses}) > 1 else ""
            loss = self.weighted_losses[index].loss
            chosen_here = own if chosen is not None else map(names.metric, loss.metrics)
            found += [(prefix + m.name, m, index) for m in chosen_here if chosen is None or fits(m, loss)]
        if own and not labelled:
            text = f"metrics {[m.name for m in own]} need a loss that names its labels"
            raise InputError(f"{text}; give functions (g, outputs, batch)")
        refuse_unfit(own, [metric for _, metric, _ in found])
        return found


@dataclass(frozen=True, slots=True)
class _Returned:
    """Builds nothing: the value is there."""

    name: str

    def __call__(self, g: GraphBuilder, outputs: Mapping[str, Value], batch: Mapping[str, Value]) -> Value:
        return outputs[self.name]


def _arguments(stored: Sequence[str]) -> dict[str, str]:
    """Names for inputs of programs instead of keys that are names of stored tensors."""
    taken, found = set(stored), {}
    for name in stored:
        given = f"batch/{name}"
        while given in taken:
            given += "'"
        found[name] = given
    return found


def _entry(choice: Any, names: Names) -> tuple[Loss, str | None, float]:
    """Loss, label key (None: its own) and factor of an entry of a dict of losses."""
    given = choice if isinstance(choice, tuple) else (choice,)
    if not 1 <= len(given) <= 3:
        raise InputError(f"loss: {choice!r}: expected (loss, label_key, weight)")
    key = given[1] if len(given) > 1 else None
    factor = given[2] if len(given) > 2 else 1.0
    loss = names.loss(given[0])
    if not isinstance(loss, Loss) or not isinstance(key, (str, type(None))):
        raise InputError(f"loss: {choice!r}: expected (loss, label_key, weight) with a loss that has labels")
    return loss, key, checks.number("loss: a weight", factor, -sys.float_info.max)


def _name_of(metric: Build) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__))
