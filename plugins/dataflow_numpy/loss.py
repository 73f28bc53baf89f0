"""Reference of losses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dataflow.errors import InputError

from .arrays import Array, Attributes, Code, upcast


def _log_sum_exp(x: Array, axis: int) -> Array:
    top = x.real.max(axis=axis, keepdims=True) if x.shape[axis] else np.zeros((), x.dtype)
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


def _classes(attributes: Attributes, logits: Array) -> tuple[Array, int]:
    """The logits of what is a class, and their axis."""
    axis = attributes["axis"] % logits.ndim
    stop = attributes["classes"] or logits.shape[axis]
    return upcast(logits)[(slice(None),) * axis + (slice(stop),)], axis


def _cross_entropy(attributes: Attributes, logits: Array, labels: Array) -> tuple[Array, Array, Array]:
    z, axis = _classes(attributes, logits)
    classes, smoothing = z.shape[axis], attributes["label_smoothing"]
    safe, counts = _checked_labels(attributes, labels, classes)
    if z.size == 0:
        empty = np.zeros(labels.shape, logits.dtype)
        return empty, empty, np.full(labels.shape, -np.inf, logits.dtype)
    top = z.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    below = z - top  # exact where it counts: what is far from 0 is rounded as a sum
    log_sum = np.log(np.exp(below).sum(axis=axis, keepdims=True))
    loss = log_sum - (1 - smoothing) * np.take_along_axis(below, np.expand_dims(safe, axis), axis)
    if smoothing:  # else a logit of -inf would make the mean, times 0, no number
        loss = loss - smoothing * below.mean(axis=axis, keepdims=True)
    loss, top, log_sum = (np.squeeze(a, axis).astype(logits.dtype) for a in (loss, top, log_sum))
    return np.where(counts, loss, loss.dtype.type(0)), top, log_sum


def _cross_entropy_grad(
    attributes: Attributes, dloss: Array, logits: Array, labels: Array, top: Array, log_sum: Array
) -> Array:
    z, axis = _classes(attributes, logits)
    classes, smoothing = z.shape[axis], attributes["label_smoothing"]
    safe, counts = _checked_labels(attributes, labels, classes)
    below = z - np.expand_dims(upcast(top), axis) - np.expand_dims(upcast(log_sum), axis)
    p = np.exp(below) - smoothing / max(classes, 1)
    shape = [classes if i == axis else 1 for i in range(z.ndim)]
    hot = np.expand_dims(safe, axis) == np.arange(classes).reshape(shape)
    p = p - (1 - smoothing) * hot
    scale = np.expand_dims(np.where(counts, upcast(dloss), 0), axis)
    found = np.zeros(logits.shape, logits.dtype)
    found[(slice(None),) * axis + (slice(classes),)] = np.where(scale == 0, 0, p * scale)
    return found


def _cross_entropy_with_grad(attributes: Attributes, dloss: Array, logits: Array, labels: Array) -> tuple[Array, Array]:
    loss, *sums = _cross_entropy(attributes, logits, labels)
    return loss, _cross_entropy_grad(attributes, dloss, logits, labels, *sums)


class _Paths:
    """The forward and backward variables of CTC (Graves et al. 2006), in logarithms, which may be complex.

    States are the labels with a blank around each; (B, S) with S = 2 L + 1.
    """

    def __init__(self, attributes: Attributes, log_probs: Array, labels: Array, lengths: Array, counts: Array) -> None:
        self.p = upcast(log_probs)
        batch, self.length, classes = log_probs.shape
        most = labels.shape[1]
        for name, given, limit in (("length", lengths, self.length), ("label length", counts, most)):
            wrong = (given < 0) | (given > limit)
            if wrong.any():
                first = int(np.flatnonzero(wrong)[0])
                raise InputError(f"{name} {int(given[first])} at [{first}] is outside [0, {limit}]")
        blank, inside = attributes["blank"], np.arange(most) < counts[:, None]
        wrong = inside & ((labels < 0) | (labels >= classes) | (labels == blank))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise InputError(f"label {int(labels[at])} at {list(at)} is outside [0, {classes}), or the blank")
        self.lengths, self.rows = lengths, np.arange(batch)
        self.state = np.full((batch, 2 * most + 1), blank)
        self.state[:, 1::2] = np.where(inside, labels, blank)
        self.skips = np.zeros(self.state.shape, bool)
        self.skips[:, 2:] = (self.state[:, 2:] != blank) & (self.state[:, 2:] != self.state[:, :-2])
        steps = np.arange(self.state.shape[1])
        self.ends = (steps == 2 * counts[:, None]) | (steps == 2 * counts[:, None] - 1)
        self.begins = np.broadcast_to(steps < 2, self.ends.shape) & (steps <= 2 * counts[:, None])

    def at(self, time: int) -> Array:
        """The logarithms of the states' classes at a time, (B, S)."""
        found: Array = self.p[self.rows[:, None], time, self.state]
        return found

    def forward(self) -> tuple[list[Array], Array]:
        """Of each time the logarithm of the sum over the paths that end in a state then, and -loss."""
        none = np.full(self.state.shape, -np.inf, self.p.dtype)
        found: list[Array] = []
        total = np.where(self.lengths == 0, np.where(self.ends[:, 0], 0.0, -np.inf), np.nan).astype(self.p.dtype)
        for time in range(self.length):
            before = found[-1] if found else none
            skipped = np.where(self.skips, _later(before, 2), -np.inf)
            came = _log_sum(before, _later(before, 1), skipped) if time else np.where(self.begins, 0.0, none)
            found.append((came + self.at(time)).astype(self.p.dtype))
            ended = _log_sum_exp(np.where(self.ends, found[-1], -np.inf), 1)[:, 0]
            total = np.where(self.lengths == time + 1, ended, total)
        return found, total

    def shares(self) -> Iterator[tuple[int, Array, Array]]:
        """Of each time whether there are paths, and the share of them that are in a state then."""
        forward, total = self.forward()
        none = np.full(self.state.shape, -np.inf, self.p.dtype)
        behind = none
        for time in reversed(range(self.length)):
            if time + 1 < self.length:
                later = behind + self.at(time + 1)
                skipped = _sooner(np.where(self.skips, later, -np.inf), 2)
                behind = _log_sum(later, _sooner(later, 1), skipped)
            last = (self.lengths == time + 1)[:, None]
            behind = np.where(last, np.where(self.ends, 0.0, none), behind)
            known = (self.lengths > time)[:, None] & (total.real != -np.inf)[:, None]
            yield time, known, np.exp(forward[time] + behind - np.where(known, total[:, None], np.inf))


def _later(states: Array, by: int) -> Array:
    return np.pad(states, ((0, 0), (by, 0)), constant_values=-np.inf)[:, : states.shape[1]]


def _sooner(states: Array, by: int) -> Array:
    return np.pad(states, ((0, 0), (0, by)), constant_values=-np.inf)[:, by:]


def _log_sum(*terms: Array) -> Array:
    return _log_sum_exp(np.stack(terms), 0)[0]


def _ctc(attributes: Attributes, log_probs: Array, labels: Array, lengths: Array, counts: Array) -> Array:
    _, total = _Paths(attributes, log_probs, labels, lengths, counts).forward()
    return (-total).astype(log_probs.dtype)


def _ctc_grad(
    attributes: Attributes, dloss: Array, log_probs: Array, labels: Array, lengths: Array, counts: Array
) -> Array:
    paths = _Paths(attributes, log_probs, labels, lengths, counts)
    found = np.zeros(log_probs.shape, paths.p.dtype)
    for time, known, share in paths.shares():
        amount = np.where(known, -upcast(dloss)[:, None] * share, 0)
        np.add.at(found[:, time], (paths.rows[:, None], paths.state), amount)
    return found.astype(log_probs.dtype)


def _ctc_product(
    attributes: Attributes, u: Array, log_probs: Array, labels: Array, lengths: Array, counts: Array
) -> tuple[Array, Array]:
    """The derivatives of the loss and of its gradient along u, by a complex step (Squire and Trapp 1998)."""
    step = 1e-100
    paths = _Paths(attributes, log_probs.astype(np.complex128) + 1j * step * u, labels, lengths, counts)
    _, total = paths.forward()
    found = np.zeros(log_probs.shape)
    for time, known, share in paths.shares():
        np.add.at(found[:, time], (paths.rows[:, None], paths.state), np.where(known, -share.imag / step, 0))
    slope = np.where(np.isfinite(total), -total.imag / step, 0)
    return slope.astype(log_probs.dtype), found.astype(log_probs.dtype)


KERNELS: dict[str, Code] = {
    "ctc_loss": _ctc,
    "ctc_loss_product": _ctc_product,
    "ctc_loss_grad": _ctc_grad,
    "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_grad": _cross_entropy_grad,
    "softmax_cross_entropy_with_grad": _cross_entropy_with_grad,
}
