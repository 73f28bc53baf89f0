"""Metrics: figures for people, computed beside the loss, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from .. import ops
from ..errors import InputError
from ..ir.types import bool_, float32
from ..ir.value import Value
from .losses.loss import Target
from .losses.terms import ones, pair, summed, zero


@runtime_checkable
class Metric(Protocol):
    """A metric of one value and its labels."""

    @property
    def fraction(self) -> bool:
        """True for a share of right answers, False for a mean of any figure."""

    @property
    def name(self) -> str:
        """Its key in the history."""

    def sums(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The sum of the figure and the count, float32 of rank 0."""


@dataclass(frozen=True)
class Accuracy:
    """The fraction of labels that are the class with the largest logit; of logits with the right sign when binary."""

    name = "accuracy"
    fraction = True

    def sums(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """Right answers and answers; ignored labels count in neither."""
        if target.axis is None:
            z, t = pair(output, labels)
            right = ops.equal(ops.greater(z, 0.0), ops.greater(t, 0.5))
            return summed(right), summed(ones(z))
        found = ops.argmax(output, axis=target.axis, keepdims=0)
        return _counted(ops.equal(found, labels), labels, target)


@dataclass(frozen=True)
class TopK:
    """The fraction of labels whose logit is among the ``k`` largest."""

    k: int = 5
    fraction = True

    @property
    def name(self) -> str:
        """``top5``."""
        return f"top{self.k}"

    def sums(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """Right answers and answers: fewer than ``k`` classes have a larger logit than the label's."""
        axis = target.axis
        if axis is None:
            raise InputError(f"metric {self.name!r} needs classes; it fits the loss cross_entropy")
        classes = output.type.shape[axis]
        counted = ops.logical_not(ops.equal(labels, target.ignored))
        safe = ops.where(counted, labels, zero(labels))
        chosen = ops.cast(ops.one_hot(safe, depth=classes, axis=axis, dtype=float32), to=bool_)
        own = ops.where(chosen, output, zero(output))
        own = ops.reduce_sum(own, axes=(axis,), keepdims=1)
        larger = ops.reduce_sum(ops.cast(ops.greater(output, own), to=float32), axes=(axis,), keepdims=0)
        return _counted(ops.less(larger, self.k - 0.5), labels, target)


@dataclass(frozen=True)
class MeanAbsoluteError:
    """The mean of |output - label|."""

    name = "mae"
    fraction = False

    def sums(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The sum of absolute differences and the number of elements."""
        if target.axis is not None:
            raise InputError("metric 'mae' compares numbers; with class labels use 'accuracy' or 'top5'")
        y, t = pair(output, labels)
        return summed(ops.abs(ops.sub(y, t))), summed(ones(y))


def _counted(right: Value, labels: Value, target: Target) -> tuple[Value, Value]:
    counted = ops.logical_not(ops.equal(labels, target.ignored))
    return summed(ops.logical_and(right, counted)), summed(counted)


@dataclass(slots=True)
class RunningMean:
    """A weighted mean over batches, with its standard error.

    Attributes:
        fraction: of a share p of n answers the error is sqrt(p (1 - p) / n); of other figures it comes from how much
            the batches differ, and is unknown (nan) before the second.
        batches: how many were added.
        sums: of s, w, s^2, s w and w^2, for a sum s and a weight w per batch.
    """

    fraction: bool = False
    batches: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, total: float, weight: float) -> None:
        """Counts a batch in."""
        self.batches += 1
        for index, term in enumerate((total, weight, total * total, total * weight, weight * weight)):
            self.sums[index] += term

    @property
    def mean(self) -> float:
        """The weighted mean; nan when nothing counted."""
        return self.sums[0] / self.sums[1] if self.sums[1] else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean; nan when unknown."""
        weight = self.sums[1]
        if not weight:
            return math.nan
        mean = self.mean
        if self.fraction:
            return math.sqrt(max(mean * (1.0 - mean), 0.0) / weight)
        if self.batches < 2:
            return math.nan
        squares = self.sums[2] - 2.0 * mean * self.sums[3] + mean * mean * self.sums[4]
        return math.sqrt(max(squares, 0.0) * self.batches / (self.batches - 1)) / weight


def figures(means: Mapping[str, RunningMean], prefix: str = "") -> dict[str, float]:
    """Means by name, and ``name_error`` where the standard error is known."""
    found = {}
    for name, mean in means.items():
        found[prefix + name] = mean.mean
        if math.isfinite(mean.error):
            found[f"{prefix}{name}_error"] = mean.error
    return found
