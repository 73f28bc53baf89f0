"""Reference of layer norm and RMS norm."""

from __future__ import annotations

import numpy as np

from .arithmetic import Array, Attributes, Code, wide


def _rows(attributes: Attributes, x: Array) -> tuple[int, tuple[int, ...]]:
    """The first axis of a row, and the row's axes."""
    first = attributes["axis"] % x.ndim
    return first, tuple(range(first, x.ndim))


def _mean(attributes: Attributes, x: Array, axes: tuple[int, ...]) -> Array:
    """The mean of each row; zeros where rows are not centered, whatever is in them."""
    found: Array = x.mean(axis=axes, keepdims=True)
    return found if attributes["center"] else np.zeros_like(found)


def _layer_norm(
    attributes: Attributes, x: Array, scale: Array | None = None, bias: Array | None = None
) -> tuple[Array, ...]:
    first, axes = _rows(attributes, x)
    z = wide(x)
    if z.size == 0:
        rest = np.zeros(x.shape[:first], x.dtype)
        return x.copy(), rest, rest
    mean = _mean(attributes, z, axes)
    centered = z - mean
    inverse = 1 / ((centered**2).mean(axis=axes, keepdims=True) + attributes["epsilon"]) ** 0.5
    y = centered * inverse
    if scale is not None:
        y = y * wide(scale)
    if bias is not None:
        y = y + wide(bias)
    rows = x.shape[:first]
    return y.astype(x.dtype), mean.reshape(rows).astype(x.dtype), inverse.reshape(rows).astype(x.dtype)


def _layer_norm_grad(
    attributes: Attributes, dy: Array, x: Array, scale: Array | None, mean: Array, inverse: Array
) -> tuple[Array, ...]:
    first, axes = _rows(attributes, x)
    per_row = (*x.shape[:first], *[1] * len(axes))
    factor = wide(inverse).reshape(per_row)
    normal = (wide(x) - wide(mean).reshape(per_row)) * factor
    g = wide(dy)
    over = tuple(range(first))
    dscale, dbias = (g * normal).sum(axis=over), g.sum(axis=over)
    if scale is not None:
        g = g * wide(scale)
    if g.size:
        middle = _mean(attributes, g, axes)
        g = (g - middle - normal * (g * normal).mean(axis=axes, keepdims=True)) * factor
    return g.astype(x.dtype), dscale.astype(x.dtype), dbias.astype(x.dtype)


KERNELS: dict[str, Code] = {"layer_norm": _layer_norm, "layer_norm_grad": _layer_norm_grad}
