"""Gradients of normalizations in smaller ops, to be differentiated again; and those of the moments that they keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.value import Value
from ..arithmetic import add, div, mul, neg, pow_, sub
from ..reduce import over_count, reduce_mean, reduce_sum
from ..shape import broadcast_to, pad, reshape
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


def row_grad_sums(*operands: Value | None, keepdims: bool, **attributes: Any) -> tuple[Value, ...]:
    """layer_norm_grad_sums."""
    dx, *others = row_grad(*operands, **attributes)  # type: ignore[arg-type]
    over = tuple(range(attributes["axis"] % dx.type.rank))
    return dx, reduce_sum(dx, axes=over, keepdims=keepdims) if over else dx, *others


def response_grad(
    dy: Value, x: Value, y: Value, scale: Value, *, size: int, alpha: float, beta: float, bias: float
) -> Value:
    """lrn_grad."""
    dscale = mul(div(mul(dy, y), scale), -beta)
    return response_of_scale(dscale, x, mul(dy, pow_(scale, -beta)), size=size, alpha=alpha)


def response_of_scale(
    dscale: Value, x: Value, others: Value | None = None, *, size: int, alpha: float, **_: object
) -> Value:
    """The cotangent of x from that of the scale of lrn, to which each square adds in channels around it, and others."""
    around = _over_window(dscale, size, size - 1 - (size - 1) // 2)
    found: Value = mul(mul(x, around), 2.0 * alpha / size)
    return found if others is None else add(others, found)


def _over_window(x: Value, size: int, before: int) -> Value:
    """For each channel the sum over ``size`` channels, ``before`` of which come before it; outside are zeros."""
    channels, rank = x.type.shape[1], x.type.rank
    most = channels - 1 if isinstance(channels, int) else size
    found: Value | None = None
    for offset in range(max(-before, -most), min(size - before - 1, most) + 1):
        pads = [0] * (2 * rank)
        pads[1], pads[rank + 1] = -offset, offset
        shifted = x if offset == 0 else pad(x, pads=tuple(pads))
        found = shifted if found is None else add(found, shifted)
    assert found is not None
    return found
