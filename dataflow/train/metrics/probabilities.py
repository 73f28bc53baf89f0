"""Metrics of the probabilities that a model gives: perplexity, calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ... import ops
from ...host.numbers import integer
from ...ir.types import Array, float32, int64
from ...ir.value import Value
from ..losses.class_axis import weight_of_labels
from ..losses.loss import Target
from ..losses.terms import as_dtype, class_numbers, counts, number, pair, summed, upcast
from .classes import ratio
from .rows import by_column, counted, need_classes


@dataclass
class Perplexity:
    """The exponential of the mean cross-entropy over the labels that count."""

    sums: Array = field(default_factory=lambda: np.zeros(2), init=False, repr=False)

    name, compares = "perplexity", "classes"
    mode = "min"

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
        """The sum of cross-entropies and the number of labels."""
        axis = need_classes(self.name, target)
        labels = class_numbers(labels)
        loss = ops.softmax_cross_entropy(upcast(output), labels, axis=axis, ignore_index=target.ignored)
        return summed(loss), summed(weight_of_labels(labels, target.ignored, None, float32)[2])

    def update(self, loss: Array, count: Array) -> None:
        """Counts a batch in."""
        self.sums += np.array([loss, count], np.float64)

    def result(self) -> float:
        """The exponential; inf where it overflows."""
        if not self.sums[1]:
            return math.nan
        mean = self.sums[0] / self.sums[1]
        return math.exp(mean) if mean < 709.0 else math.inf


@dataclass
class CalibrationError:
    """The expected calibration error: |accuracy - confidence| over bins of equal confidence, by their size (Guo 2017).

    The confidence is the probability of the class that was found; of yes or no: of the one that is likelier.

    Attributes:
        bins: how many, of equal width from 0 to 1.
    """

    bins: int = 15
    sums: Array | None = field(default=None, init=False, repr=False)

    name, compares = "ece", "classes"
    mode = "min"

    def __post_init__(self) -> None:
        integer("ece: bins", self.bins, 1, 1 << 20)

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
        """Per bin the number of labels, their confidence and how many are right, (3, bins)."""
        if target.axis is None:
            z, t = pair(output, labels)
            z, t = (ops.reshape(by_column(v), shape=(v.type.elements,)) for v in (z, t))
            confidence, weight = ops.sigmoid(ops.abs(z)), counts(target, t)
            right = ops.equal(ops.greater(z, 0.0), ops.greater(t, 0.5))
        else:
            found, wanted, weight = counted(target, output, labels)
            p = ops.softmax(upcast(output), axis=target.axis)
            confidence = ops.reshape(ops.reduce_max(p, axes=(target.axis,), keepdims=0), shape=found.type.shape)
            weight = as_dtype(weight, confidence.type.dtype)
            right = ops.equal(found, wanted)
        index = ops.floor(ops.minimum(ops.mul(confidence, self.bins), number(confidence, self.bins - 1)))
        index = ops.cast(index, to=int64)
        rows = [weight, ops.mul(confidence, weight), ops.mul(ops.cast(right, to=weight.type.dtype), weight)]
        sums = [ops.reshape(ops.index_add(index, row, size=self.bins), shape=(1, self.bins)) for row in rows]
        return (ops.concat(*sums, axis=0),)

    def update(self, sums: Array) -> None:
        """Counts a batch in."""
        exact = sums.astype(np.float64)
        self.sums = exact if self.sums is None else self.sums + exact

    def result(self) -> float:
        """The sum over bins of |right - confidence| / labels."""
        if self.sums is None:
            return math.nan
        return float(ratio(np.abs(self.sums[2] - self.sums[1]).sum(), self.sums[0].sum()))
