"""Losses: what a model is trained to make small, as parts of a graph.

A loss is a sum with a weight count, never a mean: micro-batches add up, and the optimizer divides once by the weight
of the whole logical batch. So four micro-batches of 16 train as one batch of 64 does, also with ignored labels, class
weights and a short last batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .. import ops
from ..errors import InputError
from ..ir.dims import Dim
from ..ir.types import TensorType, float32, int64
from ..ir.value import Value


@dataclass(frozen=True, slots=True)
class Target:
    """What a loss compares: a value of the model with labels.

    Attributes:
        output: type of the value.
        labels: type of the batch entry; the first dim is the batch.
        axis: the class axis of the value; None where there are no classes.
        ignored: the label that doesn't count, or None.
    """

    output: TensorType
    labels: TensorType
    axis: int | None = None
    ignored: int | None = None


@runtime_checkable
class Loss(Protocol):
    """A loss of one value and its labels."""

    @property
    def skips(self) -> tuple[str, ...]:
        """Names of ops whose input the loss wants rather than their result."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that fit it."""

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """What is compared, given the type of the value and that of the labels in the data; raises InputError."""

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The loss of each element, times its weight, and the weight; both of the labels' shape or the output's."""


@dataclass(frozen=True, slots=True)
class OutputLoss:
    """A value of the model that is the loss already: per sample, or rank 0 and then the mean of its batch."""

    name: str


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy of logits with integer labels.

    The class axis is the one whose removal from the logits' shape gives the labels' shape. The weight of an element
    is its class weight, 0 where ignored, as in PyTorch's ``reduction="mean"``.

    Attributes:
        class_weights: one number per class.
        label_smoothing: share of the target that all classes get alike.
        ignore_index: label of elements that don't count.
        axis: the class axis, where the shapes leave a choice.
    """

    class_weights: Sequence[float] | None = None
    label_smoothing: float = 0.0
    ignore_index: int = -100
    axis: int | None = None

    skips = ("softmax", "log_softmax")
    metrics = ("accuracy",)

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing < 1.0:
            raise InputError(f"CrossEntropy: label_smoothing is {self.label_smoothing}; expected 0 <= it < 1")
        if self.class_weights is not None:
            weights = tuple(float(w) for w in self.class_weights)
            if not all(np.isfinite(w) and w >= 0 for w in weights):
                raise InputError("CrossEntropy: class_weights must be finite and not negative")
            object.__setattr__(self, "class_weights", weights)

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Logits and labels; finds the class axis."""
        if labels.dtype.kind not in "iub":
            raise InputError(
                f"cross_entropy: labels are {labels}; expected class numbers of an integer type; use "
                ".argmax(axis) on one-hot labels, .astype(np.int64) on whole numbers, and loss 'mse' for real targets"
            )
        axis = self._class_axis(output, labels)
        classes = output.shape[axis]
        if self.class_weights is not None and classes != len(self.class_weights):
            raise InputError(f"cross_entropy: {len(self.class_weights)} class_weights for {classes} classes")
        shape = output.shape[:axis] + output.shape[axis + 1 :]
        return Target(output, TensorType(int64, shape), axis, self.ignore_index)

    def _class_axis(self, output: TensorType, labels: TensorType) -> int:
        if self.axis is not None:
            if not -output.rank <= self.axis < output.rank or self.axis % output.rank == 0:
                raise InputError(f"cross_entropy: axis {self.axis} is no class axis of logits {output}")
            return self.axis % output.rank
        found = [
            axis
            for axis in range(1, output.rank)
            if _alike(output.shape[:axis] + output.shape[axis + 1 :], labels.shape)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"cross_entropy: logits {output} and labels {labels} fit with the classes on any of the axes "
                f"{found}; choose one with df.losses.CrossEntropy(axis=...)"
            )
        advice = "labels have the logits' shape without the class axis"
        if labels.rank == output.rank and labels.shape[-1] == 1:
            advice = "drop the last axis with labels[..., 0]"
        elif labels.rank == output.rank:
            advice = "if they are one-hot, use labels.argmax(axis)"
        raise InputError(f"cross_entropy: labels {labels} don't fit logits {output}; {advice}")

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """-log softmax(output)[label], weighted; both results have the labels' shape."""
        z = upcast(output)
        dtype = z.type.dtype
        counted = ops.logical_not(ops.equal(labels, self.ignore_index))
        weight = ops.cast(counted, to=dtype)
        smoothing = self.label_smoothing if self.class_weights is None else 0.0
        loss = ops.softmax_cross_entropy(
            z, labels, axis=target.axis, ignore_index=self.ignore_index, label_smoothing=smoothing
        )
        if self.class_weights is None:
            return loss, weight
        table = np.asarray(self.class_weights, dtype.numpy)
        safe = ops.where(counted, labels, zero(labels))  # a label to read the table with, where ignored
        weight = ops.mul(weight, ops.gather(_constant(labels, table), safe, axis=0))
        loss = ops.mul(loss, weight)
        if not self.label_smoothing:
            return loss, weight
        # Smoothing weighs each class by its own weight, and the sum still counts the labels' weights.
        rest = [1] * output.type.rank
        rest[target.axis or 0] = len(table)
        at = tuple(1 if i == target.axis else n for i, n in enumerate(output.type.shape))
        z = ops.where(ops.reshape(counted, shape=at), z, zero(z))  # so that what is ignored may be infinite or NaN
        uniform = ops.mul(ops.log_softmax(z, axis=target.axis), _constant(labels, table.reshape(rest)))
        uniform = ops.neg(ops.reduce_sum(uniform, axes=(target.axis,), keepdims=0))
        uniform = ops.where(counted, uniform, zero(uniform))
        share = self.label_smoothing / len(table)
        return ops.add(ops.mul(loss, 1.0 - self.label_smoothing), ops.mul(uniform, share)), weight


@dataclass(frozen=True)
class MSE:
    """The squared difference, averaged over all elements."""

    skips = ()
    metrics = ("mae",)

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Values and labels of one shape; a last axis of one may be missing from either."""
        return _same_shape("mse", output, labels)

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """(output - label)^2 and 1."""
        y, t = pair(output, labels)
        difference = ops.sub(y, t)
        return ops.mul(difference, difference), _ones(y)


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross-entropy of independent yes-or-no logits with labels between 0 and 1, averaged over all elements."""

    skips = ("sigmoid",)
    metrics = ("accuracy",)

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Logits and labels of one shape; a last axis of one may be missing from either."""
        return _same_shape("binary_cross_entropy", output, labels)

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """log(1 + exp(z)) - z * label and 1; softplus does not overflow."""
        z, t = pair(output, labels)
        return ops.sub(ops.softplus(z), ops.mul(z, t)), _ones(z)


def output(name: str) -> OutputLoss:
    """The loss that the model computes itself: its value ``name``, per sample or element, or the mean of the batch."""
    return OutputLoss(name)


def total(elements: Value, weight: Value, sample_weight: Value | None) -> tuple[Value, Value]:
    """The sum of weighted element losses and the sum of weights, float32 of rank 0.

    Args:
        elements: losses times their weights, batch first.
        weight: of the same shape.
        sample_weight: (B,), multiplies both.
    """
    if sample_weight is not None:
        factor = upcast(sample_weight)
        if factor.type.dtype != elements.type.dtype:
            factor = ops.cast(factor, to=elements.type.dtype)
        rank = elements.type.rank
        if rank > 1:
            factor = ops.reshape(factor, shape=(factor.type.shape[0], *[1] * (rank - 1)))
        elements, weight = ops.mul(elements, factor), ops.mul(weight, factor)
    return summed(elements), summed(weight)


def summed(value: Value) -> Value:
    """The sum over all axes as float32 of rank 0."""
    value = upcast(value)
    if value.type.rank:
        value = ops.reduce_sum(value, axes=tuple(range(value.type.rank)), keepdims=0)
    return value if value.type.dtype == float32 else ops.cast(value, to=float32)


def ones(value: Value) -> Value:
    """Ones of the value's shape, for counting its elements."""
    return _ones(upcast(value))


def zero(value: Value) -> Value:
    """A rank-0 zero of the value's dtype."""
    assert value.builder is not None
    return value.builder.scalar(0, value.type.dtype)


def upcast(value: Value) -> Value:
    """``value`` in float32 or wider, so that sums are exact enough."""
    dtype = value.type.dtype
    return value if dtype.is_float and dtype.bits >= 32 else ops.cast(value, to=float32)


def _ones(value: Value) -> Value:
    assert value.builder is not None
    attributes = {"shape": value.type.shape, "value": 1.0, "dtype": value.type.dtype}
    made = value.builder.add(ops.full, (), attributes).outputs[0]
    assert made is not None
    return made


def _constant(like: Value, array: np.ndarray[Any, Any]) -> Value:
    assert like.builder is not None
    return like.builder.constant(array, "class_weights")


def pair(output: Value, labels: Value) -> tuple[Value, Value]:
    """Output and labels in one float dtype and of the output's shape."""
    y = upcast(output)
    t = labels if labels.type.dtype == y.type.dtype else ops.cast(labels, to=y.type.dtype)
    if t.type.rank != y.type.rank:
        t = ops.reshape(t, shape=y.type.shape)
    return y, t


def _same_shape(name: str, output: TensorType, labels: TensorType) -> Target:
    shape, other = output.shape, labels.shape
    shorter = len(shape) == len(other) + 1 and shape[-1] == 1
    longer = len(other) == len(shape) + 1 and other[-1] == 1
    if _alike(shape, other):
        entry = shape
    elif shorter and _alike(shape[:-1], other):
        entry = shape[:-1]
    elif longer and _alike(shape, other[:-1]):
        entry = (*shape, 1)
    else:
        raise InputError(f"{name}: labels {labels} don't fit the output {output}; they must have its shape")
    dtype = output.dtype if output.dtype.bits >= 32 else float32
    return Target(output, TensorType(dtype, entry))


def _alike(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes can be the same; a named dim may be any size."""
    return len(a) == len(b) and all(
        isinstance(x, Dim) or isinstance(y, Dim) or x == y for x, y in zip(a, b, strict=True)
    )
