"""What losses and metrics are built of: sums, ones, pairs of one shape, shapes that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ...errors import InputError
from ...host import checks
from ...ir.builder import GraphBuilder
from ...ir.dims import Dim
from ...ir.types import DType, TensorType, float32, int64
from ...ir.value import Value
from .loss import Allowed, Target


def weighed(elements: Value, weight: Value, sample_weight: Value | None) -> tuple[Value, Value]:
    """Element losses and their weights, both times the weights of the samples.

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
    return elements, weight


def reads(g: GraphBuilder, value: Value, given: Value) -> bool:
    """Whether a value is computed from another."""
    seen, waiting = {value}, [value]
    while waiting:
        node = g.producer(waiting.pop())
        new = set() if node is None else {read for read in node.inputs if read is not None} - seen
        seen |= new
        waiting += new
    return given in seen


def per_sample(elements: Value) -> Value:
    """The sums (B,) over all axes but the first, in float32 or wider."""
    elements = upcast(elements)
    rank = elements.type.rank
    return ops.reduce_sum(elements, axes=tuple(range(1, rank)), keepdims=0) if rank > 1 else elements


def summed(value: Value) -> Value:
    """The sum over all axes, of rank 0, in float32 or wider."""
    value = upcast(value)
    return ops.reduce_sum(value, axes=tuple(range(value.type.rank)), keepdims=0) if value.type.rank else value


def filled(like: Value, number: float, dtype: DType | None = None) -> Value:
    """A tensor of one number, of the value's shape."""
    assert like.builder is not None
    attributes = {"shape": like.type.shape, "value": number, "dtype": dtype or like.type.dtype}
    made = like.builder.add(ops.full, (), attributes).outputs[0]
    assert made is not None
    return made


def ones(value: Value) -> Value:
    """Ones of the value's shape, for counting its elements."""
    return filled(upcast(value), 1.0)


def counts(target: Target, labels: Value) -> Value:
    """Ones in the labels' shape, 0 where a label doesn't count."""
    if not target.sparse:
        return ones(labels)
    return as_dtype(ops.logical_not(ops.is_nan(labels)), upcast(labels).type.dtype)


def zero(value: Value) -> Value:
    """A rank-0 zero of the value's dtype."""
    return number(value, 0)


def number(like: Value, value: float) -> Value:
    """A rank-0 constant of the dtype of ``like``."""
    assert like.builder is not None
    return like.builder.scalar(value, like.type.dtype)


def constant(like: Value, array: np.ndarray[Any, Any], name: str) -> Value:
    """A stored tensor in the builder of ``like``."""
    assert like.builder is not None
    return like.builder.constant(array, name)


def upcast(value: Value) -> Value:
    """``value`` in float32 or wider, so that sums are exact enough."""
    dtype = value.type.dtype
    return value if dtype.is_float and dtype.bits >= 32 else ops.cast(value, to=float32)


def as_dtype(value: Value, dtype: DType) -> Value:
    """``value`` in that dtype."""
    return value if value.type.dtype == dtype else ops.cast(value, to=dtype)


def pair(output: Value, labels: Value) -> tuple[Value, Value]:
    """Output and labels in one float dtype and of the output's shape."""
    y = upcast(output)
    return y, shaped(as_dtype(labels, y.type.dtype), y)


def shaped(value: Value, like: Value) -> Value:
    """``value`` in the shape of ``like``, of which it may lack a last axis of one, or have one more."""
    return value if value.type.rank == like.type.rank else ops.reshape(value, shape=like.type.shape)


def where_positive(condition: Value, value: Value) -> Value:
    """``value`` where ``condition`` is above 0, elsewhere 0, also where the value is infinite or NaN."""
    found: Value = ops.where(ops.greater(condition, 0.0), value, zero(value))
    return found


def same_shape(name: str, output: TensorType, labels: TensorType, allowed: Allowed | None = None) -> Target:
    """Values and labels of one shape; a last axis of one may be missing from either.

    Raises:
        InputError: they have other shapes, or the labels are no numbers.
    """
    if labels.dtype.kind not in "fiub":
        raise InputError(f"{name}: labels are {labels}; expected numbers")
    entry = entry_shape(output.shape, labels.shape)
    if entry is None:
        raise InputError(f"{name}: labels {labels} don't fit the output {output}; they must have its shape")
    return Target(output, TensorType(float_of(output), entry), allowed=allowed)


def entry_shape(shape: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...] | None:
    """The shape of an entry that has the shape of a value but for a last axis of one; None where it has another."""
    shape, other = tuple(shape), tuple(other)
    if alike(shape, other):
        return shape
    if len(shape) == len(other) + 1 and shape[-1] == 1 and alike(shape[:-1], other):
        return shape[:-1]
    if len(other) == len(shape) + 1 and other[-1] == 1 and alike(shape, other[:-1]):
        return (*shape, 1)
    return None


def float_of(output: TensorType) -> DType:
    """The dtype in which a loss of a value is computed."""
    return output.dtype if output.dtype.bits >= 32 else float32


def alike(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes can be the same; a named dim may be any size."""
    return len(a) == len(b) and all(
        isinstance(x, Dim) or isinstance(y, Dim) or x == y for x, y in zip(a, b, strict=True)
    )


def numbers(what: str, value: object) -> float | tuple[float, ...]:
    """One number from 0 on, or several.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, (list, tuple)):
        return tuple(checks.number(f"{what}: an entry", entry) for entry in value)
    return checks.number(what, value)


def factor(like: Value, weights: float | tuple[float, ...], axis: int = -1) -> Value:
    """A factor on ``like``: one number, or one per index of an axis."""
    if not isinstance(weights, tuple):
        return number(like, weights)
    shape = [1] * like.type.rank
    shape[axis] = len(weights)
    return constant(like, np.asarray(weights, like.type.dtype.numpy).reshape(shape), "weights")


def class_numbers(labels: Value) -> Value:
    """Labels as int64."""
    return as_dtype(labels, int64)
