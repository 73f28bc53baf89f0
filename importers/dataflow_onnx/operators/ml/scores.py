"""What classifiers and regressors share: float operands, transforms of scores, labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Value, float32, float64, int64, ops
from dataflow.errors import ModelError

from ...emit import cast_to
from ...file.records import Array
from ...importer import Importer
from ...tensor import Tensor

DOMAIN = "ai.onnx.ml"


def rows_of(c: Importer, x: Tensor) -> Any:
    """The rows of features as floats: one vector is one row, float64 stays, other numbers become float32.

    Raises:
        ModelError: the input has another rank.
    """
    value = c.value(x)
    if value.type.rank == 1:
        value = ops.reshape(value, shape=(1, value.type.shape[0]))
    if value.type.rank != 2:
        raise ModelError(f"its input is {value.type}; expected rows of features")
    return value if value.type.dtype == float64 else cast_to(value, float32)


def stored(c: Importer, value: Value, numbers: Sequence[float] | Array, *shape: int, attribute: str = "") -> Any:
    """Numbers as a constant of the dtype of ``value``; those that are the node's attribute have a name that says so.

    Raises:
        ModelError: there are more or fewer than the shape has.
    """
    array = np.asarray(numbers, value.type.dtype.numpy)
    if array.size != math.prod(shape):
        raise ModelError(f"it has {array.size} numbers where {' x '.join(map(str, shape))} are expected")
    return c.builder.constant(array.reshape(shape), f"{c.node.outputs[0]}.{attribute}" if attribute else "constant")


def transformed(scores: Value, name: str) -> Any:
    """Scores (rows, classes) after ``post_transform``."""
    if name == "LOGISTIC":
        return ops.sigmoid(scores)
    if name == "SOFTMAX":
        return ops.softmax(scores, axis=1)
    if name == "SOFTMAX_ZERO":
        return _softmax_zero(scores)
    return _probit(scores) if name == "PROBIT" else scores


def _softmax_zero(scores: Value) -> Any:
    """Softmax in which scores of zero stay zero."""
    largest = ops.reduce_max(scores, axes=(1,), keepdims=1)
    counts = ops.greater(ops.abs(scores), 1e-7)
    power = ops.exp(ops.where(counts, ops.sub(scores, largest), ops.neg(largest)))
    terms = ops.where(counts, power, ops.mul(scores, power))
    return ops.div(terms, ops.reduce_sum(terms, axes=(1,), keepdims=1))


def _probit(scores: Value) -> Any:
    """The inverse of the normal distribution, by Winitzki's approximation of the inverse error function."""
    x = ops.sub(ops.mul(scores, 2.0), 1.0)
    log = ops.log(ops.mul(ops.sub(1.0, x), ops.add(x, 1.0)))
    v = ops.add(ops.mul(log, 0.5), 2 / (math.pi * 0.147))
    magnitude = ops.sqrt(ops.sub(ops.sqrt(ops.sub(ops.mul(v, v), ops.mul(log, 1 / 0.147))), v))
    return ops.mul(ops.mul(ops.sign(x), math.sqrt(2)), magnitude)


def both_classes(score: Value, transform: str) -> Any:
    """(rows, 2): the scores of both classes for one (rows, 1) of the second, as ONNX Runtime fills it in.

    Raises:
        ModelError: no meaning is agreed upon for the transform.
    """
    if transform == "LOGISTIC":
        return ops.concat(ops.sigmoid(ops.neg(score)), ops.sigmoid(score), axis=1)
    if transform == "NONE":
        return ops.concat(ops.sub(1.0, score), score, axis=1)
    raise ModelError(f"post_transform {transform} of one score for two classes has no agreed meaning")


def above(score: Value, limit: float) -> Any:
    """The index of the class, (rows,): 1 where the score (rows, 1) is larger than ``limit``, else 0."""
    return ops.cast(ops.greater(ops.reshape(score, shape=(score.type.shape[0],)), limit), to=int64)


class Labels:
    """The names of classes, integers or strings.

    Args:
        integers, strings: one of them is given; neither: the classes are numbered.
        count: of classes, where neither is given.
    """

    def __init__(self, integers: Sequence[int], strings: Sequence[str], count: int = 0) -> None:
        if integers and strings:
            raise ModelError("it has labels of integers and of strings; expected one kind")
        if strings:
            self.names = np.array(strings, object)
        else:
            self.names = np.array(integers or range(count), np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def of(self, c: Importer, index: Value) -> Any:
        """The labels of indices."""
        return ops.gather(c.builder.constant(self.names), index, axis=0)


def best(scores: Value) -> Any:
    """The index of the largest score of each row; the first of equals."""
    return ops.argmax(scores, axis=1, keepdims=0)
