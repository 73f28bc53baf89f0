"""Losses of outputs that are distributions: negative log-likelihood, divergence from other distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import ops
from ...ir.types import TensorType, int64
from ...ir.value import Value
from .class_axis import (
    axis_of_probabilities,
    beside,
    check_class_weights,
    class_axis,
    class_weights_of,
    classes_of,
    need_class_numbers,
    weight_of_labels,
    without,
)
from .cross_entropy import hard
from .loss import Allowed, Target
from .terms import as_dtype, class_numbers, float_of, number, ones, upcast, where_positive, zero


@dataclass(frozen=True)
class NLL:
    """-output[label] of outputs that are log-probabilities, as torch.nn.NLLLoss; nothing normalizes them.

    Attributes:
        class_weights: one number per class.
        ignore_index: label of elements that don't count.
        axis: the class axis, where the shapes leave a choice.
    """

    class_weights: Sequence[float] | None = None
    ignore_index: int = -100
    axis: int | None = None

    skips = ()
    logarithms = True
    metrics = ("accuracy",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_weights", class_weights_of("NLL", self.class_weights))

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Log-probabilities and class numbers; finds the class axis."""
        need_class_numbers("nll", labels)
        axis = class_axis("nll", self.axis, output, labels)
        check_class_weights("nll", self.class_weights, output.shape[axis])
        entry = TensorType(int64, without(output, axis))
        return Target(output, entry, axis, self.ignore_index, classes_of(output, axis, self.ignore_index))

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """-output[label], weighted; both results have the labels' shape."""
        y, axis = upcast(output), target.axis or 0
        counted, safe, weight = weight_of_labels(
            class_numbers(labels), self.ignore_index, self.class_weights, y.type.dtype
        )
        found = ops.gather_elements(y, beside(safe, y.type, axis), axis=axis)
        found = ops.where(counted, ops.reshape(found, shape=labels.type.shape), zero(found))
        return ops.neg(ops.mul(found, weight)), weight


@dataclass(frozen=True)
class KL:
    """The divergence of softmax(output) from the labels' distribution: sum t (ln t - log softmax(output)).

    The labels are probabilities of the output's shape. The mean is over distributions, as torch's ``batchmean``.

    Attributes:
        log_target: the labels are logarithms of probabilities.
        axis: the class axis, where the shapes leave a choice.
    """

    log_target: bool = False
    axis: int | None = None

    skips = ("softmax", "log_softmax")
    metrics = ()

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Logits and probabilities."""
        axis = axis_of_probabilities("kl", self.axis, output, labels)
        allowed = None if self.log_target else Allowed(0.0)
        return Target(output, TensorType(float_of(output), labels.shape), axis, allowed=allowed)

    def compared(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The most probable class takes the place of probabilities."""
        return output, hard(target, labels)

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """One divergence per distribution, and 1; a class of probability 0 may be impossible."""
        z, axis = upcast(output), target.axis or 0
        t = as_dtype(labels, z.type.dtype)
        loss = divergence(t, ops.log_softmax(z, axis=axis), axis, logarithms=self.log_target)
        return loss, ones(loss)


def divergence(t: Value, log_p: Value, axis: int, *, logarithms: bool) -> Value:
    """Sum t (ln t - log_p) over an axis, where t = 0 adds nothing; ``logarithms``: ``t`` is ln t."""
    if logarithms:
        t, log_t = ops.exp(t), t
    else:
        log_t = ops.log(ops.where(ops.greater(t, 0.0), t, number(t, 1.0)))
    terms = where_positive(t, ops.mul(t, ops.sub(log_t, log_p)))
    found: Value = ops.reduce_sum(terms, axes=(axis,), keepdims=0)
    return found
