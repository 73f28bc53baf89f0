"""Gradients of normalizations in smaller ops, to be differentiated again; and those of the moments that they keep."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.value import Value
from ..arithmetic import add, mul, neg, sub
from ..reduce import over_count, reduce_mean, reduce_sum
from ..shape import broadcast_to, reshape
from .batch_norm import over_channels, per_channel


def per_row(vector: Value, x: Value) -> Value:
    """A value per row of x, to broadcast over it."""
    shape = (*vector.type.shape, *(1,) * (x.type.rank - vector.type.rank))
    return reshape(vector, shape=shape)


def of_moments(
    x: Value,
    mean: Value,
    inverse: Value,
    dmean: Value | None = None,
    dinverse: Value | None = None,
    *,
    axes: Sequence[int],
) -> Value | None:
    """The cotangent of x from those of its mean and inverse deviation over ``axes``, all of which broadcast over x.

    mean' = 1 / n; (variance + epsilon)^(-1/2)' = -(x - mean) inverse^3 / n.
    """
    found: Value | None = None
    if dmean is not None:
        found = broadcast_to(over_count(dmean, x, axes=axes, keepdims=True), shape=x.type.shape)
    if dinverse is not None:
        cube = mul(mul(inverse, inverse), inverse)
        slope = mul(sub(x, mean), neg(over_count(mul(dinverse, cube), x, axes=axes, keepdims=True)))
        found = slope if found is None else add(found, slope)
    return found


def train_grad(dy: Value, x: Value, scale: Value, mean: Value, inverse: Value) -> tuple[Value, ...]:
    """batch_norm_train_grad."""
    rank = x.type.rank
    axes = (0, *range(2, rank))
    normal = mul(sub(x, per_channel(mean, rank)), per_channel(inverse, rank))
    dbias, dscale = over_channels(dy), over_channels(mul(dy, normal))
    middle, along = (per_channel(over_count(v, x, axes=axes, keepdims=False), rank) for v in (dbias, dscale))
    dx = mul(sub(sub(dy, middle), mul(normal, along)), per_channel(mul(scale, inverse), rank))
    return dx, dscale, dbias


def row_grad(
    dy: Value,
    x: Value,
    scale: Value | None,
    mean: Value,
    inverse: Value,
    addend: Value | None = None,
    *,
    axis: int,
    epsilon: float,
    center: bool,
) -> tuple[Value, ...]:
    """layer_norm_grad; ``epsilon`` is in ``inverse``."""
    first = axis % x.type.rank
    axes = tuple(range(first, x.type.rank))
    factor = per_row(inverse, x)
    normal = mul(sub(x, per_row(mean, x)), factor)
    g = dy if scale is None else mul(dy, scale)
    dx = sub(g, mul(normal, reduce_mean(mul(g, normal), axes=axes, keepdims=True)))
    dx = mul(sub(dx, reduce_mean(g, axes=axes, keepdims=True)) if center else dx, factor)
    dx = dx if addend is None else add(dx, addend)
    over = tuple(range(first))
    sums = (reduce_sum(v, axes=over, keepdims=False) if over else v for v in (mul(dy, normal), dy))
    return dx, *sums
