"""Expressions that update rules are composed of; chains of elementwise ops become one pass over memory each.

A chain ends at a value that several read, which then lies in memory. Rules therefore build the averaged gradient anew
wherever they read it: that costs each pass a product, and saves one that writes the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ... import ops
from ...ir.types import DType
from ...ir.value import Value


def span(hyper: Value, start: int, stop: int) -> Value:
    """Elements ``start`` to ``stop`` of a vector; a view."""
    view: Value = ops.slice(hyper, starts=(start,), stops=(stop,), steps=(1,))
    return view


def scalars(hyper: Value, like: Value) -> tuple[Value, ...]:
    """The elements of a vector of hyperparameters, of rank 0 and in the dtype of ``like``."""
    count = hyper.type.sizes[0]
    return tuple(in_dtype(ops.reshape(span(hyper, i, i + 1), shape=()), like) for i in range(count))


def as_dtype(value: Value, dtype: DType) -> Value:
    """The value in this dtype."""
    return value if value.type.dtype == dtype else ops.cast(value, to=dtype)


def in_dtype(value: Value, like: Value) -> Value:
    """The value in the dtype of ``like``."""
    return as_dtype(value, like.type.dtype)


def scaled(grad: Value, scale: Value) -> Value:
    """The averaged, clipped gradient."""
    found: Value = ops.mul(grad, in_dtype(scale, grad))
    return found


def decayed_gradient(param: Value, grad: Value, scale: Value, decay: Value, used: float) -> Callable[[], Value]:
    """What builds the averaged gradient and the decay, ``grad scale + decay param``; no decay where ``used`` is 0."""

    def build() -> Value:
        found = scaled(grad, scale)
        return ops.add(found, ops.mul(param, decay)) if used else found

    return build


def toward(old: Value, new: Value, share: float | Value) -> Value:
    """``old + share (new - old)``: a running mean that takes ``share`` of the new value."""
    mean: Value = ops.add(old, ops.mul(ops.sub(new, old), share))
    return mean


def square(x: Value) -> Value:
    """x^2."""
    found: Value = ops.mul(x, x)
    return found


def norm(x: Value) -> Value:
    """The square root of the sum of squares over all elements; rank 0, in the dtype of ``x``."""
    return in_dtype(ops.sqrt(ops.square_sum(x, None)), x)


def rms(x: Value) -> Value:
    """The square root of the mean of squares over all elements; rank 0, in the dtype of ``x``."""
    mean: Value = ops.mul(norm(x), 1.0 / math.sqrt(max(1, x.type.elements)))
    return mean
