"""Metrics that are means: accuracy, top k, absolute difference."""

from __future__ import annotations

from dataclasses import dataclass

from ... import ops
from ...errors import InputError
from ...host.numbers import integer
from ...ir.types import float32, int64
from ...ir.value import Value
from ..losses.class_axis import beside, weight_of_labels
from ..losses.loss import Target
from ..losses.terms import as_dtype, class_numbers, counts, pair, summed, where_positive


class _Mean:
    """A metric that is the mean of elements."""

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """See Metric."""
        raise NotImplementedError

    def sums(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The sums of the elements and of their weights."""
        elements, weight = self.elements(target, output, labels)
        return summed(elements), summed(weight)


@dataclass(frozen=True)
class Accuracy(_Mean):
    """The fraction of labels that are the class with the largest logit; of logits with the right sign when binary."""

    name, compares = "accuracy", "classes"
    fraction = True

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """Right answers and answers; ignored labels count in neither."""
        if target.axis is None:
            z, t = pair(output, labels)
            right, weight = ops.equal(ops.greater(z, 0.0), ops.greater(t, 0.5)), counts(target, t)
            right = ops.logical_and(right, ops.equal(z, z))
            right = where_positive(weight, as_dtype(right, z.type.dtype)) if target.sparse else right
            return right, weight
        found = ops.argmax(output, axis=target.axis, keepdims=0)
        return _counted(ops.equal(found, labels), labels, target)


@dataclass(frozen=True)
class TopK(_Mean):
    """The fraction of labels whose logit is among the ``k`` largest; of equal logits the first is before the others.

    A NaN is before all numbers, as argmax has it, and is right nowhere; but for that ``top1`` is the accuracy.
    """

    k: int = 5
    fraction, compares = True, "classes"

    def __post_init__(self) -> None:
        integer("top_k: k", self.k)

    @property
    def name(self) -> str:
        """``top5``."""
        return f"top{self.k}"

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """Right answers and answers: fewer than ``k`` classes are before the label's."""
        axis = target.axis
        if axis is None:
            raise InputError(f"metric {self.name!r} needs classes; it fits the loss cross_entropy")
        assert output.builder is not None
        classes = output.type.shape[axis]
        numbers = {"start": 0, "limit": classes, "delta": 1, "dtype": int64}
        number = output.builder.add(ops.range_, (), numbers).outputs[0]
        number = ops.reshape(number, shape=(classes, *[1] * (output.type.rank - 1 - axis)))
        _, safe, _ = weight_of_labels(class_numbers(labels), target.ignored, None, float32)
        label = beside(safe, output.type, axis)
        own = ops.gather_elements(output, label, axis=axis)
        behind = ops.logical_or(
            ops.less(output, own), ops.logical_and(ops.equal(output, own), ops.greater_equal(number, label))
        )
        before = ops.reduce_sum(ops.cast(ops.logical_not(behind), to=float32), axes=(axis,), keepdims=0)
        least = min(self.k, classes) if isinstance(classes, int) else self.k  # all are before a NaN
        return _counted(ops.less(before, least - 0.5), labels, target)


@dataclass(frozen=True)
class MeanAbsoluteError(_Mean):
    """The mean of |output - label|."""

    name, compares = "mae", "numbers"
    mode = "min"
    fraction = False

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """Absolute differences, and ones where a label counts."""
        if target.axis is not None:
            raise InputError("metric 'mae' compares numbers; with class labels use 'accuracy' or 'top5'")
        y, t = pair(output, labels)
        distance, weight = ops.abs(ops.sub(y, t)), counts(target, t)
        return where_positive(weight, distance) if target.sparse else distance, weight


def _counted(right: Value, labels: Value, target: Target) -> tuple[Value, Value]:
    counted = ops.logical_not(ops.equal(labels, target.ignored))
    return ops.logical_and(right, counted), counted
