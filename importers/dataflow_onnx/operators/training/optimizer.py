"""Converters of optimizers: one step for several tensors, as compositions."""

from __future__ import annotations

from typing import Any

from dataflow import Value, float64, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...importer import Importer
from ...tensor import Tensor
from .gradient import DOMAIN

T = Tensor
operator = Collector(DOMAIN)


def _groups(c: Importer, tensors: tuple[T | None, ...], count: int) -> list[list[Any]]:
    """The operands behind rate and step count: ``count`` lists of one length.

    Raises:
        ModelError: they can't be divided.
    """
    if not tensors or len(tensors) % count:
        raise ModelError(f"it has {len(tensors)} tensors; expected {count} for each that is optimized")
    values = [c.value(t) for t in tensors]
    each = len(values) // count
    return [values[i * each : (i + 1) * each] for i in range(count)]


def _decayed(x: Value, gradient: Value, norm_coefficient: float) -> Any:
    """The gradient with that of the norm of ``x``."""
    return ops.add(ops.mul(x, norm_coefficient), gradient) if norm_coefficient else gradient


@operator("Adagrad")
def Adagrad(
    c: Importer,
    rate: T,
    count: T,
    *tensors: T | None,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> Any:
    xs, gradients, squares = _groups(c, tensors, 3)
    r, t = c.value(rate), cast_to(c.value(count), c.value(rate).type.dtype)
    r = ops.div(r, ops.add(ops.mul(t, decay_factor), 1.0))
    new_xs, new_squares = [], []
    for x, gradient, square in zip(xs, gradients, squares, strict=True):
        g = _decayed(x, gradient, norm_coefficient)
        h = ops.add(square, ops.mul(g, g))
        step = ops.div(ops.mul(cast_to(r, x.type.dtype), g), ops.add(ops.sqrt(h), epsilon))
        new_xs.append(ops.sub(x, step))
        new_squares.append(h)
    return (*new_xs, *new_squares)


@operator("Momentum")
def Momentum(
    c: Importer, rate: T, count: T, *tensors: T | None, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> Any:
    if mode not in ("standard", "nesterov"):
        raise ModelError(f"mode is {mode!r}; expected 'standard' or 'nesterov'")
    xs, gradients, velocities = _groups(c, tensors, 3)
    first = ops.greater(1, c.value(count))
    new_xs, new_velocities = [], []
    for x, gradient, velocity in zip(xs, gradients, velocities, strict=True):
        g = _decayed(x, gradient, norm_coefficient)
        v = ops.add(ops.mul(velocity, alpha), ops.where(first, g, ops.mul(g, beta)))
        direction = v if mode == "standard" else ops.add(g, ops.mul(v, alpha))
        new_xs.append(ops.sub(x, ops.mul(cast_to(c.value(rate), x.type.dtype), direction)))
        new_velocities.append(v)
    return (*new_xs, *new_velocities)


@operator("Adam")
def Adam(
    c: Importer,
    rate: T,
    count: T,
    *tensors: T | None,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Any:
    xs, gradients, means, squares = _groups(c, tensors, 4)
    r, t = cast_to(c.value(rate), float64), cast_to(c.value(count), float64)  # in float32 1 - beta^T would cancel
    ups, downs = (ops.sub(1.0, ops.pow(c.builder.scalar(decay, float64), t)) for decay in (beta, alpha))
    later, one = ops.greater(t, 0.0), c.builder.scalar(1.0, float64)  # at first it would be 0 / 0
    r = ops.mul(r, ops.where(later, ops.div(ops.sqrt(ups), ops.where(later, downs, one)), one))
    new: list[list[Any]] = [[], [], []]
    for x, gradient, mean, square in zip(xs, gradients, means, squares, strict=True):
        g = _decayed(x, gradient, norm_coefficient)
        v = ops.add(ops.mul(mean, alpha), ops.mul(g, 1 - alpha))
        h = ops.add(ops.mul(square, beta), ops.mul(ops.mul(g, g), 1 - beta))
        step = ops.div(ops.mul(cast_to(r, x.type.dtype), v), ops.add(ops.sqrt(h), epsilon))
        moved = ops.sub(x, step)
        new[0].append(ops.mul(moved, 1 - norm_coefficient_post) if norm_coefficient_post else moved)
        new[1].append(v)
        new[2].append(h)
    return (*new[0], *new[1], *new[2])
