"""The objective for batches of one form: what it reads of them, and what it adds to the graph."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from .. import ops
from ..errors import DataflowError, InputError
from ..host.checks import shown
from ..ir.builder import GraphBuilder
from ..ir.types import Array, TensorType
from ..ir.value import Value
from .data.batch import SAMPLE_WEIGHT
from .losses.loss import Loss, Target, compared
from .losses.terms import as_dtype, ones, per_sample, reads, summed, upcast, weighed
from .metrics import Gathered, Metric
from .metrics.metric import values_of
from .metrics.sample_moments import EACH, EACH_WEIGHT

_LOSS = "loss"
_Given = TypeVar("_Given")
Build = Callable[[GraphBuilder, Mapping[str, Value], Mapping[str, Value]], Value]


@dataclass(frozen=True, slots=True)
class WeightedLoss:
    """A loss of one value of the model.

    Attributes:
        name: of the output that the user chose.
        output: name under which the graph returns what the loss reads.
        others: likewise, of the further values that it reads.
        keys: of the labels in a batch, and of further entries that it reads.
        factor: its share in the sum of several losses.
        figure: its name among the figures, where there are several.
    """

    loss: Loss
    name: str
    output: str
    others: tuple[str, ...]
    keys: tuple[str, ...]
    factor: float
    figure: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names under which the graph returns all that the loss reads."""
        return (self.output, *self.others)

    @property
    def leaves_out(self) -> bool:
        """Whether an entry of the batch says which labels don't count."""
        return getattr(self.loss, "counting", None) is not None and len(self.keys) > 1

    def counting(self, entries: Mapping[str, Array]) -> Mapping[str, Array]:
        """The entries of a batch, with other numbers in place of labels that don't count."""
        if not self.leaves_out:
            return entries
        labels: Array = cast(Any, self.loss).counting(entries, self.keys)
        return {**entries, self.keys[0]: labels}

    def target(self, outputs: Mapping[str, TensorType], entries: Mapping[str, TensorType]) -> Target:
        """What is compared, given types by name; raises InputError where they don't fit."""
        types = [outputs[name] for name in self.outputs] + [entries[key] for key in self.keys]
        what = f"target() of the loss {type(self.loss).__name__}"
        found = _called(what, self.loss.target, *types)
        if not isinstance(found, Target):
            raise InputError(f"{what} gave {found!r}; expected a Target")
        return found


def with_figures(losses: Sequence[WeightedLoss]) -> list[WeightedLoss]:
    """Several losses, named among the figures: by their values, then by their classes, then by numbers from 2 on.

    What is twice the same has one name twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    named = []
    for entry in losses:
        alone = sum(other.name == entry.name for other in losses) == 1
        figure = name = f"{entry.name}_loss" if alone else f"{entry.name}_{type(entry.loss).__name__}"
        what = (repr(entry.loss), *entry.keys)
        number = 1
        while found.setdefault(figure, what) != what:
            number += 1
            figure = f"{name}_{number}"
        named.append(replace(entry, figure=figure))
    return named


@dataclass(frozen=True, slots=True, eq=False)
class _Mean:
    """A mean over a batch: a sum and a weight of rank 0, and what they are sums of, samples first, where that is known.

    Attributes:
        sum: float32 or wider, as what it is of.
        weight: likewise.
        elements: the elements times their weights, and these.
        share: of right answers.
    """

    sum: Value
    weight: Value
    elements: tuple[Value, Value] | None = None
    share: bool = False


def _mean_of(elements: Value, weight: Value, sample_weight: Value | None) -> _Mean:
    elements, weight = weighed(elements, weight, sample_weight)
    return _Mean(summed(elements), summed(weight), (elements, weight))


@dataclass(frozen=True, slots=True, eq=False)
class BatchObjective:
    """The objective for batches of one form; see ``Objective.for_batch``.

    Attributes:
        chosen: a callable of the user's instead of losses.
        losses: losses, whose class axis is known.
        metrics: name, metric and index of the entry whose labels it reads.
        gathered: likewise those that only evaluation computes.
        free: callables of the user's by name.
        types: of all entries of a batch.
        extra: of those that are no inputs of the model.
        size: number of samples.
        arguments: by key the name of a program's input, where it is another.
    """

    chosen: Build | None
    losses: tuple[WeightedLoss, ...]
    metrics: Sequence[tuple[str, Metric, int]]
    gathered: Sequence[tuple[str, Gathered, int]]
    free: Sequence[tuple[str, Build]]
    types: Mapping[str, TensorType]
    extra: Mapping[str, TensorType]
    size: int
    arguments: Mapping[str, str]

    def entries(self, outputs: Mapping[str, TensorType]) -> Mapping[str, TensorType]:
        """The batch entries beside the model's inputs, by the names of a program's inputs.

        Args:
            outputs: types of the model's outputs for that batch.

        Raises:
            InputError: labels that don't fit them.
        """
        for entry in self.losses:
            entry.target(outputs, self.types)
        return {self.arguments.get(key, key): type_ for key, type_ in self.extra.items()}

    def build(self, g: GraphBuilder, outputs: Mapping[str, Value], batch: Mapping[str, Value]) -> dict[str, Value]:
        """The sums and weights: ``loss`` and ``weight``, and ``name:sum`` and ``name:weight`` of each metric.

        And of shares of right answers where a sample has several the sums (B,) of each sample, ``name:each`` and
        ``name:each_weight``.

        Args:
            g: gets their nodes.
            outputs: the model's, by name.
            batch: the entries, by the names of a program's inputs.
        """
        means = self._means(g, outputs, self._by_key(batch))
        return _terms(means) | _of_samples({name: mean for name, mean in means.items() if mean.share}, self.size)

    def _by_key(self, batch: Mapping[str, Value]) -> dict[str, Value]:
        keys = {self.arguments.get(key, key): key for key in self.types}
        return {keys.get(name, name): value for name, value in batch.items()}

    def _means(self, g: GraphBuilder, outputs: Mapping[str, Value], batch: Mapping[str, Value]) -> dict[str, _Mean]:
        """By figure: the loss, each of several losses, and the metrics that are means."""
        sample_weight = batch.get(SAMPLE_WEIGHT)
        means: dict[str, _Mean] = {}
        if self.chosen is not None:
            elements = _called("the loss function", self.chosen, g, outputs, batch)
            means[_LOSS] = self._mean_or_elements(g, elements, sample_weight)
        elif len(self.losses) == 1:
            means[_LOSS] = self._mean(self.losses[0], outputs, batch, sample_weight)
        else:
            found = [self._mean(entry, outputs, batch, sample_weight) for entry in self.losses]
            means[_LOSS] = self._weighted(g, found, sample_weight)
            means |= {entry.figure: mean for entry, mean in zip(self.losses, found, strict=True)}
        for name, metric, index in self.metrics:
            entry = self.losses[index]
            target, values, read = _read(entry, outputs, batch)
            means[name] = _of_metric(name, metric, target, *compared(entry.loss, target, values, read))
        for name, free in self.free:
            value = _called(f"the metric {name!r}", free, g, outputs, batch)
            means[name] = self._mean_or_elements(g, value, None)
        return means

    def build_evaluation(
        self, g: GraphBuilder, outputs: Mapping[str, Value], batch: Mapping[str, Value]
    ) -> dict[str, Value]:
        """The same, and what standard errors and the metrics that are no means want of a batch.

        Of a mean of elements the sums (B,) of each sample, ``name:each`` and ``name:each_weight``, but not of shares of
        right answers where a sample has one answer; of metrics that are no means ``name:0``, ``name:1``, ...
        """
        batch = self._by_key(batch)
        means = self._means(g, outputs, batch)
        terms = _terms(means) | _of_samples(means, self.size)
        for name, metric, index in self.gathered:
            entry = self.losses[index]
            target, values, read = _read(entry, outputs, batch)
            given = compared(entry.loss, target, values, read)
            wanted = _called(f"values() of the metric {name!r}", values_of, metric, target, *given)
            terms |= {f"{name}:{number}": value for number, value in enumerate(wanted)}
        return terms

    def _mean(
        self, entry: WeightedLoss, outputs: Mapping[str, Value], batch: Mapping[str, Value], sample_weight: Value | None
    ) -> _Mean:
        target, values, read = _read(entry, outputs, batch)
        what = f"elements() of the loss {type(entry.loss).__name__}"
        found = _called(what, entry.loss.elements, target, *values, *read)
        return _mean_of(*_pair(what, found), sample_weight)

    def _weighted(self, g: GraphBuilder, found: Sequence[_Mean], sample_weight: Value | None) -> _Mean:
        """Several losses: each one's mean over the micro-batch, times its factor and the number of samples."""
        mean: Value | None = None
        dtype = max((one.sum.type.dtype for one in found), key=lambda dtype: dtype.bits)
        for entry, one in zip(self.losses, found, strict=True):
            total, weight = as_dtype(one.sum, dtype), as_dtype(one.weight, dtype)
            # Smoothed labels of classes that count nothing have a loss and no weight.
            counted = ops.where(ops.greater(weight, 0.0), total, 0.0)
            term = ops.mul(ops.div(counted, ops.maximum(weight, 1e-30)), entry.factor)
            mean = term if mean is None else ops.add(mean, term)
        assert mean is not None
        count = g.scalar(self.size, dtype) if sample_weight is None else as_dtype(summed(sample_weight), dtype)
        return _Mean(ops.mul(mean, count), count)

    def _mean_or_elements(self, g: GraphBuilder, value: Value, sample_weight: Value | None) -> _Mean:
        """The mean of a value per element; of rank 0 it is the mean of a batch."""
        if not isinstance(value, Value):
            raise InputError(
                f"a loss or metric function returned {type(value).__name__}; expected a Value of the graph"
            )
        if value.type.rank:
            return _mean_of(upcast(value), ones(value), sample_weight)
        if sample_weight is not None and not reads(g, value, sample_weight):
            raise InputError(
                "the loss function gives the mean of the batch, which 'sample_weight' can't weigh; return the loss of "
                "each sample or element, read batch['sample_weight'], or leave it out: "
                "Dataset(data, rename={'sample_weight': None})"
            )
        total = summed(value)
        count = g.scalar(self.size, total.type.dtype)
        return _Mean(ops.mul(total, count), count)


def _terms(means: Mapping[str, _Mean]) -> dict[str, Value]:
    """The sums and weights by the names that ``build`` tells of."""
    terms: dict[str, Value] = {}
    for name, mean in means.items():
        keys = ("loss", "weight") if name == _LOSS else (f"{name}:sum", f"{name}:weight")
        terms |= zip(keys, (mean.sum, mean.weight), strict=True)
    return terms


def _of_samples(means: Mapping[str, _Mean], size: int) -> dict[str, Value]:
    """The sums of each sample where elements are known, but not of shares where a sample has one answer."""
    terms: dict[str, Value] = {}
    for name, mean in means.items():
        elements = mean.elements or ()
        several = not mean.share or any(n != 1 for value in elements for n in value.type.shape[1:])
        if elements and several and all(value.type.shape[:1] == (size,) for value in elements):
            terms[name + EACH], terms[name + EACH_WEIGHT] = map(per_sample, elements)
    return terms


def _called(what: str, function: Callable[..., _Given], *arguments: Any) -> _Given:
    """What a function of the user's or of a plugin gives.

    Raises:
        InputError: it fails; says where.
    """
    try:
        return function(*arguments)
    except DataflowError:
        raise
    except (Exception, SystemExit) as error:  # anybody's code; the process is the user's
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        raise InputError(f"{what} failed at {where}: {type(error).__name__}: {error}") from error


def _depth(metric: Metric, method: str) -> int:
    """How far from the metric's own class the method is defined: what is derived may replace ``sums`` alone."""
    classes = type(metric).__mro__
    return next((depth for depth, each in enumerate(classes) if method in vars(each)), len(classes))


def _pair(what: str, found: Any) -> tuple[Value, Value]:
    """Elements and their weight, as a function gave them.

    Raises:
        InputError: it gave something else.
    """
    if not (isinstance(found, (tuple, list)) and len(found) == 2 and all(isinstance(v, Value) for v in found)):
        raise InputError(f"{what} gave {found!r}; expected the elements and their weight")
    elements, weight = found
    bound = elements.type.is_bound and weight.type.is_bound
    if bound and elements.type.shape != weight.type.shape:
        raise InputError(f"{what} gave elements {elements.type} and the weight {weight.type}; expected one shape")
    return elements, weight


def _of_metric(name: str, metric: Metric, target: Target, output: Value, labels: Value) -> _Mean:
    """The sum and the count of a metric, and their elements where it gives them.

    Raises:
        InputError: it fails or gives something else.
    """
    elements: Any = getattr(metric, "elements", None)
    if callable(elements) and _depth(metric, "elements") <= _depth(metric, "sums"):
        what = f"elements() of the metric {name!r}"
        each, weight = _pair(what, _called(what, elements, target, output, labels))
        return _Mean(summed(each), summed(weight), (each, weight), metric.fraction)
    found: Any = _called(f"sums() of the metric {name!r}", metric.sums, target, output, labels)
    given = found if isinstance(found, (tuple, list)) else ()
    if len(given) == 2 and all(isinstance(value, Value) and not value.type.rank for value in given):
        return _Mean(given[0], given[1])
    raise InputError(f"sums() of the metric {name!r} gave {shown(found)}; expected a sum and a count of rank 0")


def _read(
    entry: WeightedLoss, outputs: Mapping[str, Value], batch: Mapping[str, Value]
) -> tuple[Target, tuple[Value, ...], tuple[Value, ...]]:
    """What a loss compares, the values of the model that it reads, and the entries of the batch."""
    values = {name: outputs[name] for name in entry.outputs}
    read = {key: batch[key] for key in entry.keys}
    target = entry.target({name: v.type for name, v in values.items()}, {key: v.type for key, v in read.items()})
    return target, tuple(values[name] for name in entry.outputs), tuple(read[key] for key in entry.keys)


def samples(shapes: Iterable[tuple[int, ...]]) -> int:
    """The number of samples: the first size of the first entry that has one."""
    return next((shape[0] for shape in shapes if shape), 1)
