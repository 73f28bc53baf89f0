"""Reference of losses."""

from __future__ import annotations

import numpy as np

from dataflow.errors import InputError

from .arrays import Array, Attributes, Code, upcast


def _log_sum_exp(x: Array, axis: int) -> Array:
    top = x.max(axis=axis, keepdims=True) if x.shape[axis] else np.zeros((), x.dtype)
    top = np.where(np.isfinite(top), top, 0)
    found: Array = np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top
    return found


def _checked_labels(attributes: Attributes, labels: Array, classes: int) -> tuple[Array, Array]:
    """Labels that can index, and which of them count."""
    counts = labels != attributes["ignore_index"]
    wrong = counts & ((labels < 0) | (labels >= classes))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"label {int(labels[at])} at {list(at)} is outside [0, {classes})")
    return np.where(counts, labels, 0), counts


def _cross_entropy(attributes: Attributes, logits: Array, labels: Array) -> tuple[Array, Array]:
    z, axis = upcast(logits), attributes["axis"] % logits.ndim
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
    z, axis = upcast(logits), attributes["axis"] % logits.ndim
    classes, smoothing = logits.shape[axis], attributes["label_smoothing"]
    safe, counts = _checked_labels(attributes, labels, classes)
    p = np.exp(z - np.expand_dims(upcast(lse), axis)) - smoothing / max(classes, 1)
    shape = [classes if i == axis else 1 for i in range(z.ndim)]
    hot = np.expand_dims(safe, axis) == np.arange(classes).reshape(shape)
    p = p - (1 - smoothing) * hot
    scale = np.expand_dims(np.where(counts, upcast(dloss), 0), axis)
    return np.where(scale == 0, 0, p * scale).astype(logits.dtype)


KERNELS: dict[str, Code] = {
    "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_grad": _cross_entropy_grad,
}
