"""Reference of normalization, softmax, losses and optimizer steps."""

from __future__ import annotations

import numpy as np

from dataflow.errors import InputError

from .arithmetic import Array, Attributes, Code, wide


def _channels(vector: Array, rank: int) -> Array:
    return wide(vector).reshape(1, -1, *[1] * (rank - 2))


def _over(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _batch_norm(attributes: Attributes, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    scale, bias, mean, variance = (_channels(v, x.ndim) for v in (scale, bias, mean, variance))
    y = (wide(x) - mean) / np.sqrt(variance + attributes["epsilon"]) * scale + bias
    return np.asarray(y).astype(x.dtype)


def _batch_norm_train(
    attributes: Attributes, x: Array, scale: Array, bias: Array, running_mean: Array, running_variance: Array
) -> tuple[Array, ...]:
    z, momentum = wide(x), attributes["momentum"]
    if z.size == 0:
        raise InputError(f"batch_norm_train: a batch of shape {x.shape} has no mean")
    mean, variance = z.mean(axis=_over(z)), z.var(axis=_over(z))
    inverse = 1 / np.sqrt(variance + attributes["epsilon"])
    y = (z - _channels(mean, z.ndim)) * _channels(inverse * wide(scale), z.ndim) + _channels(bias, z.ndim)
    new = [wide(r) * momentum + b * (1 - momentum) for r, b in ((running_mean, mean), (running_variance, variance))]
    dtype = running_mean.dtype
    return y.astype(x.dtype), new[0].astype(dtype), new[1].astype(dtype), mean.astype(dtype), inverse.astype(dtype)


def _batch_norm_train_grad(
    attributes: Attributes, dy: Array, x: Array, scale: Array, mean: Array, inverse: Array
) -> tuple[Array, ...]:
    g = wide(dy)
    normal = (wide(x) - _channels(mean, x.ndim)) * _channels(inverse, x.ndim)
    dbias, dscale = g.sum(axis=_over(g)), (g * normal).sum(axis=_over(g))
    count = max(g.size // max(g.shape[1], 1), 1)
    dx = g - _channels(dbias / count, x.ndim) - normal * _channels(dscale / count, x.ndim)
    dx = dx * _channels(wide(scale) * wide(inverse), x.ndim)
    return dx.astype(x.dtype), dscale.astype(scale.dtype), dbias.astype(scale.dtype)


def _window_sum(x: Array, size: int, before: int) -> Array:
    """Sums over ``size`` channels, of which ``before`` stand before each one."""
    padded = np.pad(x, [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
    total = np.zeros_like(x)
    for i in range(size):
        total += padded[:, i : i + x.shape[1]]
    return total


def _lrn(attributes: Attributes, x: Array) -> tuple[Array, Array]:
    size = attributes["size"]
    z = wide(x)
    scale = attributes["bias"] + attributes["alpha"] / size * _window_sum(z * z, size, (size - 1) // 2)
    return (z / scale ** attributes["beta"]).astype(x.dtype), scale.astype(x.dtype)


def _lrn_grad(attributes: Attributes, dy: Array, x: Array, y: Array, scale: Array) -> Array:
    size, beta = attributes["size"], attributes["beta"]
    g, z, s = wide(dy), wide(x), wide(scale)
    shared = _window_sum(g * wide(y) / s, size, size - 1 - (size - 1) // 2)
    return (g / s**beta - 2 * attributes["alpha"] * beta / size * z * shared).astype(x.dtype)


def _log_sum_exp(x: Array, axis: int) -> Array:
    top = x.max(axis=axis, keepdims=True) if x.shape[axis] else np.zeros((), x.dtype)
    top = np.where(np.isfinite(top), top, 0)
    found: Array = np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top
    return found


def _softmax(attributes: Attributes, x: Array) -> Array:
    z, axis = wide(x), attributes["axis"]
    if z.size == 0:
        return x.copy()
    grown = np.exp(z - z.max(axis=axis, keepdims=True))
    return (grown / grown.sum(axis=axis, keepdims=True)).astype(x.dtype)


def _softmax_grad(attributes: Attributes, dy: Array, y: Array) -> Array:
    g, p = wide(dy), wide(y)
    return (p * (g - (g * p).sum(axis=attributes["axis"], keepdims=True))).astype(dy.dtype)


def _log_softmax(attributes: Attributes, x: Array) -> Array:
    z, axis = wide(x), attributes["axis"]
    if not z.size:
        return x.copy()
    below = z - z.max(axis=axis, keepdims=True)  # first: a sum of exponents and maximum would lose digits
    return (below - np.log(np.exp(below).sum(axis=axis, keepdims=True))).astype(x.dtype)


def _log_softmax_grad(attributes: Attributes, dy: Array, y: Array) -> Array:
    g = wide(dy)
    return (g - np.exp(wide(y)) * g.sum(axis=attributes["axis"], keepdims=True)).astype(dy.dtype)


def _checked_labels(attributes: Attributes, labels: Array, classes: int) -> tuple[Array, Array]:
    """Labels that can index, and which of them count."""
    counts = labels != attributes["ignore_index"]
    wrong = counts & ((labels < 0) | (labels >= classes))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"label {int(labels[at])} at {list(at)} is outside [0, {classes})")
    return np.where(counts, labels, 0), counts


def _cross_entropy(attributes: Attributes, logits: Array, labels: Array) -> tuple[Array, Array]:
    z, axis = wide(logits), attributes["axis"] % logits.ndim
    classes, smoothing = logits.shape[axis], attributes["label_smoothing"]
    safe, counts = _checked_labels(attributes, labels, classes)
    if z.size == 0:
        empty = np.zeros(labels.shape, logits.dtype)
        return empty, np.full(labels.shape, -np.inf, logits.dtype)
    lse = _log_sum_exp(z, axis)
    own = np.take_along_axis(z, np.expand_dims(safe, axis), axis)
    loss = lse - (1 - smoothing) * own
    if smoothing:  # else a logit of -inf would make the mean, times 0, no number
        loss = loss - smoothing * z.mean(axis=axis, keepdims=True)
    loss, lse = np.squeeze(loss, axis), np.squeeze(lse, axis)
    return np.where(counts, loss, 0).astype(logits.dtype), lse.astype(logits.dtype)


def _cross_entropy_grad(attributes: Attributes, dloss: Array, logits: Array, labels: Array, lse: Array) -> Array:
    z, axis = wide(logits), attributes["axis"] % logits.ndim
    classes, smoothing = logits.shape[axis], attributes["label_smoothing"]
    safe, counts = _checked_labels(attributes, labels, classes)
    p = np.exp(z - np.expand_dims(wide(lse), axis)) - smoothing / max(classes, 1)
    shape = [classes if i == axis else 1 for i in range(z.ndim)]
    hot = np.expand_dims(safe, axis) == np.arange(classes).reshape(shape)
    p = p - (1 - smoothing) * hot
    scale = np.expand_dims(np.where(counts, wide(dloss), 0), axis)
    return np.where(scale == 0, 0, p * scale).astype(logits.dtype)


def _sgd(
    attributes: Attributes, param: Array, grad: Array, velocity: Array | None, hyper: Array, scale: Array
) -> tuple[Array, ...]:
    rate, decay = (float(h) for h in hyper)
    p = wide(param)
    g = wide(grad) * scale + decay * p
    if velocity is None:
        return ((p - rate * g).astype(param.dtype),)
    v = attributes["momentum"] * wide(velocity) + g
    step = g + attributes["momentum"] * v if attributes["nesterov"] else v
    return (p - rate * step).astype(param.dtype), v.astype(param.dtype)


def _adamw(
    attributes: Attributes, param: Array, grad: Array, m: Array, v: Array, hyper: Array, scale: Array
) -> tuple[Array, Array, Array]:
    rate, decay, correction1, correction2 = (float(h) for h in hyper)
    beta1, beta2 = attributes["beta1"], attributes["beta2"]
    p, g = wide(param), wide(grad) * scale
    m = beta1 * wide(m) + (1 - beta1) * g
    v = beta2 * wide(v) + (1 - beta2) * g * g
    step = (m / correction1) / (np.sqrt(v / correction2) + attributes["epsilon"])
    p = p * (1 - rate * decay) - rate * step
    return p.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


def _square_sum(attributes: Attributes, x: Array, before: Array | None = None) -> Array:
    with np.errstate(over="ignore"):  # an infinite sum is an answer
        total = np.square(wide(x)).sum(dtype=np.float64) + (0.0 if before is None else wide(before))
        return np.asarray(total, np.float32)


KERNELS: dict[str, Code] = {
    "batch_norm": _batch_norm,
    "batch_norm_train": _batch_norm_train,
    "batch_norm_train_grad": _batch_norm_train_grad,
    "lrn": _lrn,
    "lrn_grad": _lrn_grad,
    "softmax": _softmax,
    "softmax_grad": _softmax_grad,
    "log_softmax": _log_softmax,
    "log_softmax_grad": _log_softmax_grad,
    "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_grad": _cross_entropy_grad,
    "sgd_step": _sgd,
    "adamw_step": _adamw,
    "square_sum": _square_sum,
}
