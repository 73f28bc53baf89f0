"""Reference of normalizations: by batch, by neighbouring channels, by row."""

from __future__ import annotations

import numpy as np

from dataflow.errors import InputError

from .arrays import Array, Attributes, Code, upcast
from .reduce import KERNELS as REDUCTIONS


def _channels(vector: Array, rank: int) -> Array:
    return upcast(vector).reshape(1, -1, *[1] * (rank - 2))


def _over(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _batch_norm(attributes: Attributes, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    scale, bias, mean, variance = (_channels(v, x.ndim) for v in (scale, bias, mean, variance))
    y = (upcast(x) - mean) / np.sqrt(variance + attributes["epsilon"]) * scale + bias
    return np.asarray(y).astype(x.dtype)


def _batch_norm_grad(
    attributes: Attributes, dy: Array, x: Array, scale: Array, mean: Array, variance: Array
) -> tuple[Array, ...]:
    g = upcast(dy)
    inverse = 1 / np.sqrt(upcast(variance) + attributes["epsilon"])
    dbias, weighted = g.sum(axis=_over(g)), (g * (upcast(x) - _channels(mean, x.ndim))).sum(axis=_over(g))
    dx = g * _channels(upcast(scale) * inverse, x.ndim)
    return dx.astype(x.dtype), (weighted * inverse).astype(scale.dtype), dbias.astype(scale.dtype)


def _batch_norm_train(
    attributes: Attributes,
    x: Array,
    scale: Array,
    bias: Array,
    running_mean: Array,
    running_variance: Array,
    mean: Array | None = None,
    inverse: Array | None = None,
) -> tuple[Array, ...]:
    z, momentum = upcast(x), attributes["momentum"]
    if z.size == 0:
        raise InputError(f"batch_norm_train: a batch of shape {x.shape} has no mean")
    dtype = running_mean.dtype
    if mean is None or inverse is None:
        average, variance = z.mean(axis=_over(z)), z.var(axis=_over(z))
        # Rounded to what is kept of them, so that y is the same where they are known.
        mean, inverse = average.astype(dtype), (1 / np.sqrt(variance + attributes["epsilon"])).astype(dtype)
    else:
        average, variance = upcast(mean), 1 / np.square(upcast(inverse)) - attributes["epsilon"]
    slope = upcast(inverse) * upcast(scale)
    y = (z - _channels(mean, z.ndim)) * _channels(slope, z.ndim) + _channels(bias, z.ndim)
    running = ((running_mean, average), (running_variance, variance))
    new = [(upcast(old) * momentum + batch * (1 - momentum)).astype(dtype) for old, batch in running]
    return y.astype(x.dtype), new[0], new[1], mean, inverse


def _batch_norm_train_grad(
    attributes: Attributes, dy: Array, x: Array, scale: Array, mean: Array, inverse: Array
) -> tuple[Array, ...]:
    g = upcast(dy)
    centered = upcast(x) - _channels(mean, x.ndim)
    normal = centered * _channels(inverse, x.ndim)
    # Summed before it is scaled, as every device does it: an infinite ``inverse`` makes an infinity of a sum, not NaN.
    dbias, dscale = g.sum(axis=_over(g)), (g * centered).sum(axis=_over(g)) * inverse
    count = max(g.size // max(g.shape[1], 1), 1)
    dx = g - _channels(dbias / count, x.ndim) - normal * _channels(dscale / count, x.ndim)
    dx = dx * _channels(upcast(scale) * upcast(inverse), x.ndim)
    return dx.astype(x.dtype), dscale.astype(scale.dtype), dbias.astype(scale.dtype)


def _batch_norm_train_relu(attributes: Attributes, *arrays: Array) -> tuple[Array, ...]:
    y, *others = _batch_norm_train(attributes, *arrays)
    return np.maximum(y, 0), *others


def _batch_norm_train_relu_grad(
    attributes: Attributes, dy: Array, x: Array, scale: Array, bias: Array, mean: Array, inverse: Array
) -> tuple[Array, ...]:
    slope = _channels(upcast(inverse) * upcast(scale), x.ndim)
    above = (upcast(x) - _channels(mean, x.ndim)) * slope + _channels(bias, x.ndim) > 0
    return _batch_norm_train_grad(attributes, np.where(above, dy, np.zeros_like(dy)), x, scale, mean, inverse)


def _window_sum(x: Array, size: int, before: int) -> Array:
    """Sums over ``size`` channels, ``before`` of which precede each one."""
    padded = np.pad(x, [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
    total = np.zeros_like(x)
    for i in range(size):
        total += padded[:, i : i + x.shape[1]]
    return total


def _lrn(attributes: Attributes, x: Array) -> tuple[Array, Array]:
    size = attributes["size"]
    z = upcast(x)
    scale = attributes["bias"] + attributes["alpha"] / size * _window_sum(z * z, size, (size - 1) // 2)
    return (z / scale ** attributes["beta"]).astype(x.dtype), scale.astype(x.dtype)


def _lrn_grad(attributes: Attributes, dy: Array, x: Array, y: Array, scale: Array) -> Array:
    size, beta = attributes["size"], attributes["beta"]
    g, z, s = upcast(dy), upcast(x), upcast(scale)
    shared = _window_sum(g * upcast(y) / s, size, size - 1 - (size - 1) // 2)
    return (g / s**beta - 2 * attributes["alpha"] * beta / size * z * shared).astype(x.dtype)


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
    z = upcast(x)
    if z.size == 0:
        rest = np.zeros(x.shape[:first], x.dtype)
        return x.copy(), rest, rest
    mean = _mean(attributes, z, axes)
    centered = z - mean
    inverse = 1 / ((centered**2).mean(axis=axes, keepdims=True) + attributes["epsilon"]) ** 0.5
    y = centered * inverse
    if scale is not None:
        y = y * upcast(scale)
    if bias is not None:
        y = y + upcast(bias)
    rows = x.shape[:first]
    return y.astype(x.dtype), mean.reshape(rows).astype(x.dtype), inverse.reshape(rows).astype(x.dtype)


def _layer_norm_grad(
    attributes: Attributes,
    dy: Array,
    x: Array,
    scale: Array | None,
    mean: Array,
    inverse: Array,
    addend: Array | None = None,
) -> tuple[Array, ...]:
    first, axes = _rows(attributes, x)
    per_row = (*x.shape[:first], *[1] * len(axes))
    factor = upcast(inverse).reshape(per_row)
    normal = (upcast(x) - upcast(mean).reshape(per_row)) * factor
    g = upcast(dy)
    over = tuple(range(first))
    dscale, dbias = (g * normal).sum(axis=over), g.sum(axis=over)
    if scale is not None:
        g = g * upcast(scale)
    if g.size:
        middle = _mean(attributes, g, axes)
        g = (g - middle - normal * (g * normal).mean(axis=axes, keepdims=True)) * factor
    if addend is not None:
        g = g + upcast(addend)
    return g.astype(x.dtype), dscale.astype(x.dtype), dbias.astype(x.dtype)


def _layer_norm_grad_sums(attributes: Attributes, *operands: Array) -> tuple[Array, ...]:
    dx, *others = _layer_norm_grad(attributes, *operands)
    axes = {"axes": tuple(range(_rows(attributes, dx)[0])), "keepdims": attributes["keepdims"]}
    return dx, np.asarray(REDUCTIONS["reduce_sum"](axes, dx)) if axes["axes"] else dx, *others


KERNELS: dict[str, Code] = {
    "batch_norm": _batch_norm,
    "batch_norm_grad": _batch_norm_grad,
    "batch_norm_train": _batch_norm_train,
    "batch_norm_train_grad": _batch_norm_train_grad,
    "batch_norm_train_relu": _batch_norm_train_relu,
    "batch_norm_train_relu_grad": _batch_norm_train_relu_grad,
    "lrn": _lrn,
    "lrn_grad": _lrn_grad,
    "layer_norm": _layer_norm,
    "layer_norm_grad": _layer_norm_grad,
    "layer_norm_grad_sums": _layer_norm_grad_sums,
}
