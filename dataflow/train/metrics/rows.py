"""Values and labels of a batch as rows, for metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...errors import InputError
from ...ir.types import Array, float32
from ...ir.value import Value
from ..losses.class_axis import weight_of_labels
from ..losses.loss import Target
from ..losses.terms import as_dtype, class_numbers, counts, number, ones, pair, upcast

_EXACT = 1 << 24  # float32 counts so far


def need_classes(name: str, target: Target) -> int:
    """The class axis; raises InputError where there is none."""
    if target.axis is None:
        raise InputError(f"metric {name!r} needs classes; it fits losses of class numbers, e.g. cross_entropy")
    return target.axis


def scores(target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
    """Logits (N, C) with class numbers (N,), -1 where they don't count; of yes or no logits and labels (N, K)."""
    if target.axis is None:
        y, t = pair(output, labels)
        return by_column(y), by_column(t)
    rank = output.type.rank
    perm = (*(i for i in range(rank) if i != target.axis), target.axis)
    z = upcast(output) if perm == tuple(range(rank)) else ops.transpose(upcast(output), perm=perm)
    rows, classes = labels.type.elements, int(output.type.shape[target.axis])
    labels = class_numbers(labels)
    labels = ops.where(ops.equal(labels, target.ignored), number(labels, -1), labels)
    return ops.reshape(z, shape=(rows, classes)), ops.reshape(labels, shape=(rows,))


def by_column(value: Value) -> Value:
    """(N, K) of (N,) or (N, K, ...): axis 1 has the columns."""
    shape = value.type.sizes
    if len(shape) > 2:
        value = ops.transpose(value, perm=(0, *range(2, len(shape)), 1))
    columns = shape[1] if len(shape) > 1 else 1
    found: Value = ops.reshape(value, shape=(value.type.elements // max(1, columns), columns))
    return found


def counted(target: Target, output: Value, labels: Value) -> tuple[Value, Value, Value]:
    """Of each label, (N,): the class found, its own (0 where it doesn't count), and 1 where it counts, else 0."""
    check_exact(labels.type.elements)
    found = ops.argmax(output, axis=target.axis, keepdims=0)
    _, safe, weight = weight_of_labels(class_numbers(labels), target.ignored, None, float32)
    flat = (labels.type.elements,)
    return ops.reshape(found, shape=flat), ops.reshape(safe, shape=flat), ops.reshape(weight, shape=flat)


def yes_or_no(target: Target, output: Value, labels: Value) -> tuple[Value, Value, Value]:
    """1 or 0 for what was found, by the sign of the logit, for the label, and whether it counts, by column (N, K) each.

    The first two are 0 where it doesn't.
    """
    y, t = pair(output, labels)
    check_exact(y.type.elements)
    found, wanted = by_column(ops.greater(y, 0.0)), by_column(ops.greater(t, 0.5))
    found, wanted = ops.cast(found, to=float32), ops.cast(wanted, to=float32)
    if not target.sparse:
        return found, wanted, ones(found)
    weight = by_column(as_dtype(counts(target, t), float32))
    return ops.mul(found, weight), ops.mul(wanted, weight), weight


def check_exact(elements: int) -> None:
    """Raises InputError where a batch has more elements than float32 can count."""
    if elements >= _EXACT:
        raise InputError(f"metrics: a batch has {elements} labels, more than can be counted exactly; use a smaller one")


def probabilities(logits: Array) -> Array:
    """The softmax over the last axis, float64."""
    shifted = np.asarray(logits, np.float64)
    exponentials: Any = np.exp(shifted - shifted.max(-1, keepdims=True))
    found: Array = exponentials / exponentials.sum(-1, keepdims=True)
    return found
