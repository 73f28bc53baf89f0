"""Random losses with the values and labels that they read, and their formulas in float64, written by themselves."""

from __future__ import annotations

import itertools
import random as standard
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import dataflow as df
from dataflow import losses

from .making import Array, ops

Entries = Mapping[str, Array]
Formula = Callable[[Sequence[Array], Entries], tuple[Array, Array]]


@dataclass
class Case:
    """A loss, what it reads, and what it is.

    Attributes:
        loss: the object.
        outputs: values of the model by name, samples first; the first is the one that the user names.
        entries: of the batch by key; that of the labels is the first, where there are some.
        formula: the loss of each element times its weight, and the weight, samples first.
        axis: of classes in the first value, where labels are class numbers or probabilities.
        ignored: the label that doesn't count in metrics.
        behind: ops that may follow the first value, since the loss takes their input.
        compared: the labels that metrics compare, where these aren't the entries' first.
        numbers: metrics of numbers fit.
        slope: the size of what cancels in a gradient, where that is more than the gradient.
        together: the loss of a sample depends on the others of the micro-batch.
    """

    loss: Any
    outputs: dict[str, Array]
    entries: dict[str, Array]
    formula: Formula
    axis: int | None = None
    ignored: int = -100
    behind: tuple[str, ...] = ()
    compared: Callable[[Entries], Array] | None = None
    numbers: bool = False
    slope: float = 0.0
    together: bool = False


@dataclass
class Maker:
    """Makes a case.

    Attributes:
        random, arrays: decide.
        samples: how many.
        tag: ends names of values and keys, so that several losses have their own.
    """

    random: standard.Random
    arrays: np.random.Generator
    samples: int
    tag: str = ""

    @property
    def labels(self) -> str:
        """The key of the labels."""
        return f"labels{self.tag}"

    def name(self, index: int = 0) -> str:
        """The name of a value."""
        return f"y{self.tag}_{index}"

    def normal(self, *shape: int) -> Array:
        """Numbers of random size, sometimes far from 0."""
        size = self.random.choice((0.1, 1.0, 1.0, 3.0, 20.0))
        return size * self.arrays.standard_normal((self.samples, *shape))

    def logits(self, *shape: int) -> Array:
        """Likewise, sometimes so far that float32 can't tell their sums of exponentials."""
        z = self.normal(*shape)
        if self.random.random() < 0.25:
            z = z + self.random.choice((-1e4, 1e4, 300.0, 88.0, 3e6))
        return z

    def classes(self, most: int = 6) -> tuple[int, tuple[int, ...], int]:
        """The number of classes, the shape of a sample's logits, and the class axis, from 1 on."""
        count = self.random.randint(1 if self.random.random() < 0.1 else 2, most)
        rest = [self.random.randint(1, 4) for _ in range(self.random.choice((0, 0, 0, 1, 1, 2)))]
        axis = self.random.randint(0, len(rest))
        return count, (*rest[:axis], count, *rest[axis:]), axis + 1

    def axis(self, axis: int, shape: tuple[int, ...]) -> int | None:
        """The class axis as an argument: None where shapes show it, or from either end."""
        labels = shape[: axis - 1] + shape[axis:]
        fit = [i for i in range(len(shape)) if shape[:i] + shape[i + 1 :] == labels]
        if len(fit) == 1 and 1 not in shape and self.random.random() < 0.6:
            return None
        return axis if self.random.random() < 0.5 else axis - len(shape) - 1

    def numbers(self, count: int, shape: tuple[int, ...], ignored: int) -> Array:
        """Class numbers, of which some don't count."""
        found = self.arrays.integers(0, count, (self.samples, *shape))
        share = self.random.choice((0.0, 0.0, 0.2, 0.7, 1.0 if self.random.random() < 0.3 else 0.5))
        found = np.where(self.arrays.uniform(size=found.shape) < share, ignored, found)
        kinds = [k for k in (np.int64, np.int32, np.int16) if abs(ignored) <= np.iinfo(k).max]
        return found.astype(self.random.choice(kinds))

    def ignore_index(self, count: int) -> int:
        """A label that doesn't count: no class, or one."""
        return self.random.choice((-100, -100, -1, 255, self.random.randrange(count)))

    def weights(self, count: int) -> tuple[float, ...] | None:
        """Class weights, perhaps, with zeros among them."""
        if self.random.random() < 0.5:
            return None
        found = [self.random.choice((0.0, 0.25, 1.0, 1.5, 7.0)) for _ in range(count)]
        return tuple(found) if any(found) else None

    def probabilities(self, shape: tuple[int, ...], axis: int) -> Array:
        """Distributions along an axis, some of one class alone."""
        p = self.arrays.dirichlet(np.ones(shape[axis - 1]), (self.samples, *shape[: axis - 1], *shape[axis:]))
        hot = self.random.random() < 0.3
        p = np.where(p == p.max(-1, keepdims=True), 1.0, 0.0) if hot else p
        return single(np.moveaxis(p, -1, axis))

    def impossible(self, z: Array, labels: Array, axis: int) -> Array:
        """The logits, some of which are -inf where they aren't the label's."""
        if self.random.random() < 0.8:
            return z
        size = z.shape[axis]
        own = np.expand_dims(labels, axis) == np.arange(size).reshape([-1 if i == axis else 1 for i in range(z.ndim)])
        hidden = (self.arrays.uniform(size=z.shape) < 0.3) & ~own
        hidden &= own.any(axis, keepdims=True)  # of what is ignored all could be
        return np.where(hidden, -np.inf, z)


def single(array: Array) -> Array:
    """What float32 keeps, as float64."""
    return array.astype(np.float32).astype(np.float64)


# ---- of classes ----------------------------------------------------------------------------------------


def log_softmax(z: Array, axis: int) -> Array:
    top = z.max(axis, keepdims=True)
    return z - top - np.log(np.exp(z - top).sum(axis, keepdims=True))


def hot(labels: Array, count: int, axis: int) -> Array:
    """Whether a class is the label's."""
    return np.moveaxis(labels[..., None] == np.arange(count), -1, axis)


def along(weights: Sequence[float] | None, z: Array, axis: int) -> Array:
    """A number per class, to be multiplied with logits."""
    count = z.shape[axis]
    given = np.ones(count) if weights is None else single(np.array(weights))
    return given.reshape([-1 if i == axis else 1 for i in range(z.ndim)])


def product(a: Array, b: Array) -> Array:
    """A product in which 0 wins against what isn't finite."""
    with np.errstate(invalid="ignore"):
        return np.where(a == 0.0, 0.0, a * b)


def cross_entropy(z: Array, y: Array, axis: int, ignored: int, weights: Any, smoothing: float) -> tuple[Array, Array]:
    own, each = hot(y, z.shape[axis], axis), along(weights, z, axis)
    counts = np.where(y == ignored, 0.0, 1.0)
    target = (1 - smoothing) * own + smoothing / z.shape[axis]
    loss = -product(each * target, log_softmax(z, axis)).sum(axis)
    weight = (own * each).sum(axis) * counts
    return product(counts, loss), weight


def _cross_entropy(m: Maker) -> Case:
    count, shape, axis = m.classes()
    smoothing = m.random.choice((0.0, 0.0, 0.1, 0.9))
    weights, ignored = m.weights(count), m.ignore_index(count)
    y = m.numbers(count, shape[: axis - 1] + shape[axis:], ignored)
    z = m.logits(*shape)
    z = z if smoothing else m.impossible(z, y, axis)
    loss = losses.CrossEntropy(weights, smoothing, ignored, m.axis(axis, shape))

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        return cross_entropy(outputs[0], entries[m.labels], axis, ignored, weights, smoothing)

    behind = ("softmax", "log_softmax")
    return Case(loss, {m.name(): z}, {m.labels: y}, formula, axis, ignored, behind)


def _soft(m: Maker) -> Case:
    count, shape, axis = m.classes()
    smoothing, weights = m.random.choice((0.0, 0.0, 0.2)), m.weights(count)
    p, z = m.probabilities(shape, axis), m.logits(*shape)
    if not smoothing and m.random.random() < 0.3:
        z = np.where(p == 0.0, -np.inf, z)
    chosen = None if len(shape) == 1 and m.random.random() < 0.5 else axis
    loss = losses.CrossEntropy(weights, smoothing, m.ignore_index(count), chosen)

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        target = entries[m.labels] * (1 - smoothing) + smoothing / count
        found = -product(target * along(weights, z, axis), log_softmax(outputs[0], axis)).sum(axis)
        return found, np.ones(found.shape)

    compared = _likeliest(m.labels, axis)
    return Case(loss, {m.name(): z}, {m.labels: p}, formula, axis, behind=("softmax", "log_softmax"), compared=compared)


def _likeliest(key: str, axis: int) -> Callable[[Entries], Array]:
    return lambda entries: entries[key].argmax(axis)


def _next_token(m: Maker) -> Case:
    count, length = m.random.randint(2, 6), m.random.randint(1, 5)
    smoothing, ignored = m.random.choice((0.0, 0.0, 0.1)), m.ignore_index(count)
    y, z = m.numbers(count, (length,), ignored), m.logits(length, count)
    mask = f"mask{m.tag}" if m.random.random() < 0.5 else None
    loss = losses.NextToken(m.labels, mask, smoothing, ignored)
    entries = {m.labels: y}
    if mask:
        entries[mask] = (m.arrays.uniform(size=y.shape) < 0.7).astype(m.random.choice((np.int64, np.float32, np.bool_)))

    def following(entries: Entries) -> Array:
        y = entries[m.labels].astype(np.int64)
        y = y if mask is None else np.where(entries[mask] == 0, ignored, y)
        return np.concatenate([y[:, 1:], np.full((len(y), 1), ignored)], 1)

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        return cross_entropy(outputs[0], following(entries), 2, ignored, None, smoothing)

    behind = ("softmax", "log_softmax")
    return Case(loss, {m.name(): z}, entries, formula, 2, ignored, behind, following)


def _nll(m: Maker) -> Case:
    count, shape, axis = m.classes()
    weights, ignored = m.weights(count), m.ignore_index(count)
    y = m.numbers(count, shape[: axis - 1] + shape[axis:], ignored)
    loss = losses.NLL(weights, ignored, m.axis(axis, shape))

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        z, y = outputs[0], entries[m.labels]
        own = hot(y, count, axis)
        weight = (own * along(weights, z, axis)).sum(axis) * (y != ignored)
        return -product(weight, product(own, z).sum(axis)), weight

    return Case(loss, {m.name(): m.impossible(m.logits(*shape), y, axis)}, {m.labels: y}, formula, axis, ignored)


def _kl(m: Maker) -> Case:
    _, shape, axis = m.classes()
    logarithms = m.random.random() < 0.4
    p, z = m.probabilities(shape, axis), m.logits(*shape)
    with np.errstate(divide="ignore"):
        p = single(np.log(np.maximum(p, 1e-9))) if logarithms else p
    loss = losses.KL(logarithms, None if len(shape) == 1 and m.random.random() < 0.5 else axis)

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        t = entries[m.labels]
        t, log_t = (np.exp(t), t) if logarithms else (t, np.log(np.where(t > 0, t, 1.0)))
        found = product(t, log_t - log_softmax(outputs[0], axis)).sum(axis)
        return found, np.ones(found.shape)

    compared = _likeliest(m.labels, axis)
    return Case(loss, {m.name(): z}, {m.labels: p}, formula, axis, behind=("softmax", "log_softmax"), compared=compared)


def _focal(m: Maker) -> Case:
    gamma = m.random.choice((0.0, 0.5, 1.0, 2.0, 3.5))
    if m.random.random() < 0.5:
        return _focal_binary(m, gamma)
    count, shape, axis = m.classes()
    weights, ignored = m.weights(count), m.ignore_index(count)
    y = m.numbers(count, shape[: axis - 1] + shape[axis:], ignored)
    z = m.impossible(m.logits(*shape), y, axis)
    loss = losses.Focal(gamma, weights, ignored, m.axis(axis, shape))

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        z, y = outputs[0], entries[m.labels]
        counts = np.where(y == ignored, 0.0, 1.0)
        log_p = log_softmax(z, axis)
        own = product(hot(y, count, axis), log_p).sum(axis)
        missed = product(~hot(y, count, axis), np.exp(log_p)).sum(axis)
        alpha = (hot(y, count, axis) * along(weights, z, axis)).sum(axis)
        return product(counts, -own * missed**gamma * alpha), counts

    return Case(loss, {m.name(): z}, {m.labels: y}, formula, axis, ignored, ("softmax", "log_softmax"))


def _focal_binary(m: Maker, gamma: float) -> Case:
    z, t, entry = _columns(m)
    alpha = m.random.choice((None, 0.25, 1.0, 0.0))
    loss = losses.Focal(gamma, alpha)

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        z = outputs[0]
        t = entries[m.labels].reshape(z.shape)
        found = softplus(-z) * t + softplus(z) * (1 - t)
        found = found * (sigmoid(-z) * t + sigmoid(z) * (1 - t)) ** gamma
        found = found if alpha is None else found * (alpha * t + (1 - alpha) * (1 - t))
        return found, np.ones(z.shape)

    return Case(loss, {m.name(): z}, {m.labels: t.reshape(entry)}, formula, behind=("sigmoid",))


def _dice(m: Maker) -> Case:
    smooth = m.random.choice((0.1, 1.0, 5.0))
    if m.random.random() < 0.5:
        z, t, entry = _columns(m)
        kept = (0, 1) if z.ndim > 2 else (0,)
        loss = losses.Dice(smooth)

        def binary(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
            z = outputs[0]
            return overlap(sigmoid(z), entries[m.labels].reshape(z.shape), kept, smooth)

        return Case(loss, {m.name(): z}, {m.labels: t.reshape(entry)}, binary, behind=("sigmoid",))
    count, shape, axis = m.classes()
    ignored = m.ignore_index(count)
    y = m.numbers(count, shape[: axis - 1] + shape[axis:], ignored)
    loss = losses.Dice(smooth, ignored, m.axis(axis, shape))

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        z, y = outputs[0], entries[m.labels]
        counts = np.expand_dims(y != ignored, axis)
        return overlap(counts * np.exp(log_softmax(z, axis)), counts * hot(y, count, axis), (0, axis), smooth)

    return Case(loss, {m.name(): m.logits(*shape)}, {m.labels: y}, formula, axis, ignored, ("softmax",))


def overlap(p: Array, t: Array, kept: tuple[int, ...], smooth: float) -> tuple[Array, Array]:
    axes = tuple(i for i in range(p.ndim) if i not in kept)
    loss = 1 - (2 * (p * t).sum(axes) + smooth) / (p.sum(axes) + t.sum(axes) + smooth)
    return loss, np.ones(loss.shape)


# ---- of elements ---------------------------------------------------------------------------------------


def softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


def _columns(m: Maker) -> tuple[Array, Array, tuple[int, ...]]:
    """Yes-or-no logits, labels of their shape, and the shape in which these are given."""
    z, entry = _shaped(m, m.logits)
    t = m.arrays.integers(0, 2, z.shape).astype(np.float64)
    if m.random.random() < 0.3:
        t = single(m.arrays.uniform(size=z.shape))
    return z, t, entry


def _shaped(m: Maker, made: Callable[..., Array]) -> tuple[Array, tuple[int, ...]]:
    shape = tuple(m.random.randint(1, 4) for _ in range(m.random.choice((0, 1, 1, 2, 3))))
    z = made(*shape)
    entry = z.shape
    if shape and shape[-1] == 1 and m.random.random() < 0.5:
        entry = entry[:-1]
    elif m.random.random() < 0.1:
        entry = (*entry, 1)
    return z, entry


def _elementwise(m: Maker) -> Case:
    """A loss of each element by itself, perhaps with weights."""
    kind = m.random.choice(("binary", "mse", "mae", "huber", "smooth_l1", "poisson", "hinge"))
    key = f"counts{m.tag}" if m.random.random() < 0.4 else None
    more: dict[str, Any] = {} if key is None else {"weights": key}
    z, entry = _shaped(m, m.logits if kind == "binary" else m.normal)
    t = single(m.normal(*z.shape[1:]))
    behind: tuple[str, ...] = ()
    if kind == "binary":
        each = m.random.choice((None, None, 2.5, z.shape[-1] if z.ndim > 1 else None))
        weights = tuple(float(w) for w in single(m.arrays.uniform(0.1, 4, each))) if isinstance(each, int) else each
        loss: Any = losses.BinaryCrossEntropy(weights, **more)
        t = m.arrays.integers(0, 2, z.shape) if m.random.random() < 0.5 else single(m.arrays.uniform(size=z.shape))
        positive, behind = np.asarray(1.0 if weights is None else weights), ("sigmoid",)

        def of(y: Array, t: Array) -> Array:
            return positive * t * softplus(-y) + (1 - t) * softplus(y)
    elif kind in ("mse", "mae"):
        loss = (losses.MSE if kind == "mse" else losses.MAE)(**more)

        def of(y: Array, t: Array) -> Array:
            return (y - t) ** 2 if kind == "mse" else np.abs(y - t)
    elif kind in ("huber", "smooth_l1"):
        bound = m.random.choice((0.5, 1.0, 10.0) if kind == "huber" else (0.0, 0.5, 1.0, 10.0))
        loss = (losses.Huber if kind == "huber" else losses.SmoothL1)(bound, **more)

        def of(y: Array, t: Array) -> Array:
            d = np.abs(y - t)
            if kind == "huber":
                return np.where(d <= bound, d * d / 2, bound * (d - bound / 2))
            return np.where(d < bound, d * d / 2 / (bound or 1.0), d - bound / 2)
    elif kind == "poisson":
        log_input, full = m.random.random() < 0.5, m.random.random() < 0.5
        z = np.clip(z, -20, 20) if log_input else np.abs(z) + 0.01
        loss = losses.PoissonNLL(log_input, full, **more)
        t = m.arrays.integers(0, 9, z.shape)

        def of(y: Array, t: Array) -> Array:
            found = np.exp(y) - t * y if log_input else y - t * np.log(y + 1e-8)
            n = np.maximum(t, 1.0)
            stirling = n * np.log(n) - n + np.log(2 * np.pi * n) / 2
            return found + np.where(t > 1, stirling, 0.0) * full
    else:
        margin, squared = m.random.choice((0.0, 1.0, 2.0)), m.random.random() < 0.5
        loss = losses.Hinge(margin, squared, **more)
        t = 2.0 * m.arrays.integers(0, 2, z.shape) - 1

        def of(y: Array, t: Array) -> Array:
            return np.maximum(0.0, margin - t * y) ** (2 if squared else 1)

    entries = {m.labels: np.asarray(t).reshape(entry)}
    if key is not None:
        counts = m.arrays.integers(0, 3, z.shape).astype(m.random.choice((np.float32, np.int64)))
        entries[key] = counts.reshape(entry)
        if m.random.random() < 0.3:
            z = np.where(counts == 0, m.random.choice((np.inf, -np.inf, np.nan)), z)

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        y = outputs[0]
        weight = np.ones(y.shape) if key is None else entries[key].reshape(y.shape).astype(np.float64)
        with np.errstate(all="ignore"):
            return product(weight, of(y, entries[m.labels].reshape(y.shape).astype(np.float64))), weight

    def compared(entries: Entries) -> Array:
        """Labels that don't count are NaN."""
        found = entries[m.labels].astype(np.float64)
        return found if key is None else np.where(entries[key] == 0, np.nan, found)

    finite = bool(np.isfinite(z).all())
    return Case(loss, {m.name(): z}, entries, formula, behind=behind, compared=compared, numbers=finite)


# ---- of vectors and sequences --------------------------------------------------------------------------

TINY = 1e-12  # added to squared lengths


def _cosine(m: Maker) -> Case:
    size = m.random.randint(1, 6)
    x, y = m.normal(size), m.normal(size)
    slope = _inverse(x, y)
    if m.random.random() < 0.5:
        one = lambda o, e: _angle(o[0], e[m.labels])  # noqa: E731
        return Case(losses.Cosine(), {m.name(): x}, {m.labels: single(y)}, one, slope=slope)
    margin = m.random.choice((0.0, 0.3, -0.5))
    loss = losses.Cosine(m.name(1), margin)
    t = 2 * m.arrays.integers(0, 2, m.samples) - 1

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        apart, one = _angle(outputs[0], outputs[1])
        return np.where(entries[m.labels] > 0, apart, np.maximum(0.0, 1 - apart - margin)), one

    return Case(loss, {m.name(): x, m.name(1): y}, {m.labels: t}, formula, slope=slope)


def _inverse(*vectors: Array) -> float:
    """One over the length of the shortest."""
    return float(max((1 / np.sqrt((v * v).sum(1) + 1e-9)).max() for v in vectors))


def _angle(x: Array, y: Array) -> tuple[Array, Array]:
    cosine = (x * y).sum(1) / np.sqrt(((x * x).sum(1) + TINY) * ((y * y).sum(1) + TINY))
    return 1 - cosine, np.ones(len(x))


def _triplet(m: Maker) -> Case:
    size, swap, margin = m.random.randint(1, 6), m.random.random() < 0.5, m.random.choice((0.0, 1.0, 5.0))
    loss = losses.Triplet(m.name(1), m.name(2), margin, swap)

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        def apart(a: Array, b: Array) -> Array:
            return np.sqrt(((a - b + 1e-6) ** 2).sum(1))

        x, near, far = outputs
        other = np.minimum(apart(x, far), apart(near, far)) if swap else apart(x, far)
        found = np.maximum(0.0, apart(x, near) - other + margin)
        return found, np.ones(found.shape)

    return Case(loss, {m.name(i): m.normal(size) for i in range(3)}, {}, formula, slope=1.0)


def _info_nce(m: Maker) -> Case:
    size, temperature = m.random.randint(1, 5), m.random.choice((0.07, 0.5, 2.0))
    symmetric, normalize = m.random.random() < 0.5, m.random.random() < 0.6
    inside = m.random.random() < 0.5
    loss = losses.InfoNCE(m.name(1) if inside else None, temperature, symmetric, normalize)
    x, y = m.arrays.standard_normal((2, m.samples, size))

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        x, y = outputs[0], outputs[1] if inside else entries[m.labels]
        if normalize:
            x, y = (v / np.sqrt((v * v).sum(1, keepdims=True) + TINY) for v in (x, y))
        alike = x @ y.T / temperature
        found = -np.diag(log_softmax(alike, 1))
        found = (found - np.diag(log_softmax(alike, 0))) / 2 if symmetric else found
        return found, np.ones(len(x))

    outputs = {m.name(): x, m.name(1): y} if inside else {m.name(): x}
    slope = (_inverse(x, y) if normalize else float(max(np.abs(x).max(), np.abs(y).max()))) / temperature
    return Case(loss, outputs, {} if inside else {m.labels: single(y)}, formula, slope=slope, together=True)


def _ctc(m: Maker) -> Case:
    """All paths, one by one."""
    count, length, most = m.random.randint(2, 4), m.random.randint(1, 4), m.random.randint(1, 3)
    blank = m.random.randrange(count)
    others = [c for c in range(count) if c != blank]
    keys = {name: f"{name}{m.tag}" if m.random.random() < 0.5 else None for name in ("input_lengths", "label_lengths")}
    loss = losses.CTC(blank, *keys.values(), zero_infinity=True)
    y = m.arrays.choice(others, (m.samples, most))
    sizes = m.arrays.integers(0, most + 1, m.samples)
    times = m.arrays.integers(0, length + 1, m.samples) if keys["input_lengths"] else np.full(m.samples, length)
    entries = {m.labels: y if keys["label_lengths"] else np.where(np.arange(most) < sizes[:, None], y, -1)}
    entries |= {key: given for key, given in zip(keys.values(), (times, sizes), strict=True) if key is not None}

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        log_p, y = log_softmax(outputs[0], 2), entries[m.labels]
        found = np.zeros(len(y))
        for at in range(len(y)):
            size = entries[keys["label_lengths"]][at] if keys["label_lengths"] else (y[at] >= 0).sum()
            time = entries[keys["input_lengths"]][at] if keys["input_lengths"] else length
            paths = [p for p in itertools.product(range(count), repeat=time) if _read(p, blank) == [*y[at][:size]]]
            if paths:
                terms = log_p[at, np.arange(time), np.array(paths, int).reshape(len(paths), time)].sum(1)
                found[at] = -np.logaddexp.reduce(terms) / max(size, 1)
        return found, np.ones(len(y))

    return Case(loss, {m.name(): m.logits(length, count)}, entries, formula, behind=("softmax", "log_softmax"))


def _read(path: Sequence[int], blank: int) -> list[int]:
    return [label for label, _ in itertools.groupby(path) if label != blank]


def _distill(m: Maker) -> Case:
    count, shape, axis = m.classes()
    temperature, alpha = m.random.choice((0.5, 1.0, 4.0)), m.random.choice((0.0, 0.3, 1.0))
    weights, ignored = m.weights(count), m.ignore_index(count)
    y = m.numbers(count, shape[: axis - 1] + shape[axis:], ignored)
    z, key, given = m.logits(*shape), f"teacher{m.tag}", single(m.normal(*shape))
    g = df.GraphBuilder("teacher")
    v = g.input("x", df.float32, ("N", *shape))
    v = ops.mul(v, g.parameter("slope", np.asarray(-0.5, np.float32)))
    g.output("z", ops.softmax(v, axis=axis) if m.random.random() < 0.3 else v)
    hard = losses.CrossEntropy(weights, 0.0, ignored, axis)
    loss = losses.Distill(df.Model(g.build()), temperature, alpha, inputs={"x": key}, hard=hard, axis=axis)

    def formula(outputs: Sequence[Array], entries: Entries) -> tuple[Array, Array]:
        z, t = outputs[0], -0.5 * entries[key]
        log_p, log_t = (log_softmax(v / temperature, axis) for v in (z, t))
        soft = temperature**2 * (np.exp(log_t) * (log_t - log_p)).sum(axis)
        if alpha == 1.0:
            return soft, np.ones(soft.shape)
        found, weight = cross_entropy(z, entries[m.labels], axis, ignored, weights, 0.0)
        return alpha * weight * soft + (1 - alpha) * found, weight

    entries = {m.labels: y, key: given} if alpha < 1.0 else {key: given}
    return Case(loss, {m.name(): z}, entries, formula, axis if alpha < 1.0 else None, ignored)


MAKERS = {
    "cross_entropy": _cross_entropy,
    "soft": _soft,
    "next_token": _next_token,
    "nll": _nll,
    "kl": _kl,
    "focal": _focal,
    "dice": _dice,
    "elementwise": _elementwise,
    "cosine": _cosine,
    "triplet": _triplet,
    "info_nce": _info_nce,
    "ctc": _ctc,
    "distill": _distill,
}
"""What makes cases, by the kind of loss."""
