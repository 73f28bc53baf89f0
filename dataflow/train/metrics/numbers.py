"""Metrics of numbers: R² and the square root of the mean squared difference."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ... import ops
from ...errors import InputError
from ...ir.types import Array
from ...ir.value import Value
from ..losses.loss import Target
from ..losses.terms import counts, pair, summed, where_positive


@dataclass
class R2:
    """1 - squared differences / squared deviations of the labels from their mean, per column, then their mean.

    Columns are all numbers of a sample. One whose labels are all equal counts 1 where they are met and 0 elsewhere, as
    in scikit-learn. Columns of fewer than two labels that count are left out; nan where there is no other.
    """

    counts: Array | None = field(default=None, init=False, repr=False)
    sums: Array | None = field(default=None, init=False, repr=False)

    name, compares = "r2", "numbers"
    mode = "max"

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
        """Output and labels, a row per sample."""
        _need_numbers(self.name, target)
        y, t = pair(output, labels)
        shape = (y.type.sizes[0], y.type.elements // max(1, y.type.sizes[0]))
        return ops.reshape(y, shape=shape), ops.reshape(t, shape=shape)

    def update(self, output: Array, labels: Array) -> None:
        """Adds mean and squared deviations of a batch to those before (Chan, Golub, LeVeque 1979)."""
        y, t = output.astype(np.float64), labels.astype(np.float64)
        there = ~np.isnan(t)  # what doesn't count; other labels are never NaN
        own = there.sum(0)
        t, differences = np.where(there, t, 0.0), np.where(there, y - t, 0.0)
        mean = t.sum(0) / np.maximum(own, 1)
        added = np.array([mean, (np.where(there, t - mean, 0.0) ** 2).sum(0), (differences**2).sum(0)])
        if self.sums is None or self.counts is None:
            self.sums, self.counts = added, own
            return
        total = self.counts + own
        share, apart = own / np.maximum(total, 1), added[0] - self.sums[0]
        self.sums[0] += apart * share
        self.sums[1] += added[1] + apart**2 * (self.counts * share)
        self.sums[2] += added[2]
        self.counts = total

    def result(self) -> float:
        """The mean over columns."""
        if self.sums is None or self.counts is None or not (self.counts > 1).any():
            return math.nan
        _, deviations, differences = self.sums[:, self.counts > 1]
        met = np.where(differences == 0.0, 1.0, 0.0)
        each = np.divide(differences, deviations, out=1.0 - met, where=deviations != 0.0)
        return float(np.mean(1.0 - each))


@dataclass
class RMSE:
    """The square root of the mean squared difference over all elements."""

    sums: Array = field(default_factory=lambda: np.zeros(2), init=False, repr=False)

    name, compares = "rmse", "numbers"
    mode = "min"

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
        """The sum of squared differences and the number of elements."""
        _need_numbers(self.name, target)
        y, t = pair(output, labels)
        difference, weight = ops.sub(y, t), counts(target, t)
        difference = where_positive(weight, difference) if target.sparse else difference
        return summed(ops.mul(difference, difference)), summed(weight)

    def update(self, squares: Array, count: Array) -> None:
        """Counts a batch in."""
        self.sums += np.array([squares, count], np.float64)

    def result(self) -> float:
        """The square root."""
        return math.sqrt(self.sums[0] / self.sums[1]) if self.sums[1] else math.nan


def _need_numbers(name: str, target: Target) -> None:
    if target.axis is not None:
        raise InputError(f"metric {name!r} compares numbers; with class labels use 'accuracy' or 'f1'")
