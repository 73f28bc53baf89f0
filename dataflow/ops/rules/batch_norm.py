"""Batch norm in smaller ops."""

from __future__ import annotations

from ...ir.value import Value
from ..activation import relu_grad
from ..arithmetic import add, mul, reciprocal, sqrt, sub
from ..reduce import reduce_mean, reduce_sum
from ..shape import reshape


def per_channel(vector: Value, rank: int) -> Value:
    """(C,) as (1, C, 1, ...), to broadcast over (N, C, ...)."""
    return reshape(vector, shape=(1, vector.type.shape[0], *(1,) * (rank - 2)))


def over_channels(x: Value) -> Value:
    """The sum over all axes but the second: (C,)."""
    axes = (0, *range(2, x.type.rank))
    return reduce_sum(x, axes=axes, keepdims=False)


def inverse_deviation(variance: Value, epsilon: float) -> Value:
    """1 / sqrt(variance + epsilon)."""
    return reciprocal(sqrt(add(variance, epsilon)))


def normalized(
    x: Value, scale: Value, bias: Value, mean: Value, variance: Value, *, epsilon: float, momentum: float = 0.9
) -> Value:
    """batch_norm, whose result doesn't depend on ``momentum``."""
    factor = mul(scale, inverse_deviation(variance, epsilon))
    shift = sub(bias, mul(mean, factor))
    rank = x.type.rank
    return add(mul(x, per_channel(factor, rank)), per_channel(shift, rank))


def train_normalized(
    x: Value,
    scale: Value,
    bias: Value,
    running_mean: Value,
    running_variance: Value,
    mean: Value | None = None,
    inverse: Value | None = None,
    *,
    epsilon: float,
    momentum: float,
) -> tuple[Value, ...]:
    """batch_norm_train."""
    rank, axes = x.type.rank, (0, *range(2, x.type.rank))
    if mean is None or inverse is None:
        mean = reduce_mean(x, axes=axes, keepdims=False)
        centered = sub(x, per_channel(mean, rank))
        variance = reduce_mean(mul(centered, centered), axes=axes, keepdims=False)
        inverse = inverse_deviation(variance, epsilon)
    else:
        centered = sub(x, per_channel(mean, rank))
        variance = sub(reciprocal(mul(inverse, inverse)), epsilon)
    y = add(mul(centered, per_channel(mul(inverse, scale), rank)), per_channel(bias, rank))
    pairs = ((running_mean, mean), (running_variance, variance))
    new = [add(mul(old, momentum), mul(batch, 1.0 - momentum)) for old, batch in pairs]
    return y, *new, mean, inverse


def normalized_grad(
    dy: Value, x: Value, scale: Value, mean: Value, variance: Value, *, epsilon: float
) -> tuple[Value, ...]:
    """batch_norm_grad."""
    inverse = inverse_deviation(variance, epsilon)
    dbias = over_channels(dy)
    # sum(dy (x - mean)) / deviation; the mean comes out of the sum
    dscale = mul(sub(over_channels(mul(dy, x)), mul(dbias, mean)), inverse)
    return mul(dy, per_channel(mul(scale, inverse), x.type.rank)), dscale, dbias


def behind_relu(dy: Value, x: Value, scale: Value, bias: Value, mean: Value, inverse: Value) -> Value:
    """The cotangent of a normalized x behind whose relu it is ``dy``."""
    shift, factor, last = (per_channel(v, x.type.rank) for v in (mean, mul(scale, inverse), bias))
    found: Value = relu_grad(dy, add(mul(sub(x, shift), factor), last))
    return found
