"""Cross-entropy over classes, and that of a language model whose labels are its own next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import ops
from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
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
from .loss import LABELS, Allowed, Target
from .terms import (
    alike,
    as_dtype,
    class_numbers,
    constant,
    factor,
    filled,
    float_of,
    ones,
    upcast,
    where_positive,
    zero,
)


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy of logits with class numbers, or with probabilities of the classes.

    The class axis is the one whose removal from the logits' shape gives the labels' shape. The weight of an element
    is its class weight, 0 where ignored, as in PyTorch's ``reduction="mean"``. Labels of a float type and of the
    logits' shape are probabilities; then every element has weight 1, whichever class is ignored, also as in PyTorch.

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
        object.__setattr__(self, "class_weights", class_weights_of("CrossEntropy", self.class_weights))

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Logits and labels; finds the class axis."""
        if labels.dtype.kind == "f" and labels.rank == output.rank:
            axis = axis_of_probabilities("cross_entropy", self.axis, output, labels)
            entry = TensorType(float_of(output), labels.shape)
            found = Target(output, entry, axis, allowed=Allowed(0.0))
        else:
            need_class_numbers("cross_entropy", labels)
            axis = class_axis("cross_entropy", self.axis, output, labels)
            entry, known = TensorType(int64, without(output, axis)), classes_of(output, axis, self.ignore_index)
            found = Target(output, entry, axis, self.ignore_index, checked=known)
        check_class_weights("cross_entropy", self.class_weights, output.shape[axis])
        return found

    def compared(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The most probable class takes the place of probabilities."""
        return output, hard(target, labels)

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """-log softmax(output)[label], weighted; both results have the labels' shape, without a class axis."""
        z, axis = upcast(output), target.axis or 0
        if labels.type.dtype.is_float:
            return self._of_probabilities(axis, z, as_dtype(labels, z.type.dtype))
        labels = class_numbers(labels)
        counted, _, weight = weight_of_labels(labels, self.ignore_index, self.class_weights, z.type.dtype)
        smoothing = self.label_smoothing if self.class_weights is None else 0.0
        loss = ops.softmax_cross_entropy(
            z, labels, axis=axis, ignore_index=self.ignore_index, label_smoothing=smoothing
        )
        if self.class_weights is None:
            return loss, weight
        loss = ops.mul(loss, weight)
        if not self.label_smoothing:
            return loss, weight
        # Smoothing weighs each class by its own weight, and the sum still counts the labels' weights.
        z = ops.where(beside(counted, z.type, axis), z, zero(z))  # what is ignored may be infinite or NaN
        uniform = ops.mul(ops.log_softmax(z, axis=axis), factor(z, tuple(self.class_weights), axis))
        uniform = ops.neg(ops.reduce_sum(uniform, axes=(axis,), keepdims=0))
        uniform = ops.where(counted, uniform, zero(uniform))
        share = self.label_smoothing / len(self.class_weights)
        return ops.add(ops.mul(loss, 1.0 - self.label_smoothing), ops.mul(uniform, share)), weight

    def _of_probabilities(self, axis: int, z: Value, p: Value) -> tuple[Value, Value]:
        """-sum w p log softmax(z), where p is smoothed; a class of probability 0 may be impossible."""
        if self.label_smoothing:
            share = self.label_smoothing / int(z.type.shape[axis])
            p = ops.add(ops.mul(p, 1.0 - self.label_smoothing), share)
        of_class = where_positive(p, ops.mul(ops.log_softmax(z, axis=axis), p))
        if self.class_weights is not None:
            of_class = ops.mul(of_class, factor(z, tuple(self.class_weights), axis))
        loss = ops.neg(ops.reduce_sum(of_class, axes=(axis,), keepdims=0))
        return loss, ones(loss)


@dataclass(frozen=True)
class NextToken:
    """Cross-entropy of a language model's logits (B, T, classes) with the token that follows each position.

    The labels (B, T) are the tokens themselves, shifted here: position t is compared with label t + 1. The exponential
    of the mean is the perplexity. The mean is over the tokens that count.

    Attributes:
        labels: their key; that of the model's own input of tokens where the data has no others.
        mask: key of an entry (B, T) that is 0 at tokens that don't count, e.g. the attention mask.
        label_smoothing: share of the target that all tokens get alike.
        ignore_index: label of tokens that don't count.
    """

    labels: str = LABELS
    mask: str | None = None
    label_smoothing: float = 0.0
    ignore_index: int = -100

    skips = ("softmax", "log_softmax")
    metrics = ("accuracy", "perplexity")

    def __post_init__(self) -> None:
        checks.instance("next_token: labels", self.labels, str)
        checks.optional("next_token: mask", self.mask, str)
        checks.number("next_token: label_smoothing", self.label_smoothing, 0.0, 1.0)
        integer("next_token: ignore_index", self.ignore_index, np.iinfo(np.int64).min)

    @property
    def keys(self) -> tuple[str, ...]:
        """The tokens, and their mask."""
        return (self.labels,) if self.mask is None else (self.labels, self.mask)

    @property
    def _loss(self) -> CrossEntropy:
        return CrossEntropy(label_smoothing=self.label_smoothing, ignore_index=self.ignore_index, axis=-1)

    def target(self, output: TensorType, labels: TensorType, mask: TensorType | None = None) -> Target:
        """Logits and tokens."""
        need_class_numbers("next_token", labels)
        if output.rank != 3 or not alike(output.shape[:2], labels.shape):
            raise InputError(
                f"next_token: expected logits (B, T, classes) and labels (B, T), got {output} and {labels}"
            )
        entries: tuple[TensorType, ...] = ()
        if mask is not None:
            if mask.dtype.kind not in "fiub" or not alike(mask.shape, labels.shape):
                raise InputError(f"next_token: {self.mask!r} is {mask}; expected numbers of the labels' shape")
            entries = (mask,)
        return Target(output, TensorType(int64, labels.shape), 2, self.ignore_index, entries=entries)

    def compared(self, target: Target, output: Value, labels: Value, mask: Value | None = None) -> tuple[Value, Value]:
        """Logits and the tokens that follow."""
        return output, self._following(labels, mask)

    def elements(self, target: Target, output: Value, labels: Value, mask: Value | None = None) -> tuple[Value, Value]:
        """-log softmax(output[t])[label[t + 1]]; 0 at the last position."""
        return self._loss.elements(target, output, self._following(labels, mask))

    def _following(self, labels: Value, mask: Value | None) -> Value:
        """The labels shifted by one rather than the logits, which are larger; nothing follows the last."""
        labels = class_numbers(labels)
        if mask is not None:
            left_out = ops.equal(mask, zero(mask))
            labels = ops.where(left_out, constant(labels, np.asarray(self.ignore_index), "ignored"), labels)
        first = ops.slice(labels, starts=(0, 0), stops=(labels.type.shape[0], 1), steps=(1, 1))
        rest = ops.slice(labels, starts=(0, 1), stops=labels.type.shape, steps=(1, 1))
        found: Value = ops.concat(rest, filled(first, self.ignore_index), axis=1)
        return found


def hard(target: Target, labels: Value) -> Value:
    """Class numbers, where the labels are probabilities."""
    return ops.argmax(labels, axis=target.axis, keepdims=0) if labels.type.dtype.is_float else labels
