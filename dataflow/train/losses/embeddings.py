"""Losses of embeddings, (B, D) each: of one with another value of the model, or with vectors of the data."""

from __future__ import annotations

from dataclasses import dataclass

from ... import ops
from ...errors import InputError
from ...host import checks
from ...ir.types import TensorType, int64
from ...ir.value import Value
from .loss import LABELS, Allowed, Target
from .terms import alike, as_dtype, float_of, number, ones, upcast

_EPSILON = 1e-12  # added to squared lengths, as torch.nn.functional.cosine_embedding_loss does


@dataclass(frozen=True)
class Cosine:
    """The angle between embeddings, as torch.nn.CosineEmbeddingLoss.

    Without ``other`` the labels are vectors to point along, and the loss is 1 - cos. With it the labels (B,) are 1 for
    pairs that belong together: 1 - cos; and -1 for pairs that don't: max(0, cos - margin).

    Attributes:
        other: name of the model's other embedding.
        margin: of pairs that don't belong together.
    """

    other: str | None = None
    margin: float = 0.0

    skips = ()
    metrics = ()

    def __post_init__(self) -> None:
        checks.optional("cosine: other", self.other, str)
        checks.number("cosine: margin", self.margin, -1.0, 1.0)

    @property
    def others(self) -> tuple[str, ...]:
        """The other embedding."""
        return () if self.other is None else (self.other,)

    def target(self, output: TensorType, *read: TensorType) -> Target:
        """Two embeddings, or one and its vectors."""
        other, labels = read[0], read[-1]
        _check_alike("cosine", output, other)
        if self.other is None:
            return Target(output, TensorType(float_of(output), labels.shape))
        if labels.dtype.kind not in "fiub" or not alike(labels.shape, output.shape[:1]):
            raise InputError(f"cosine: labels are {labels}; expected (B,), 1 or -1 for each pair of {output}")
        return Target(output, TensorType(float_of(output), labels.shape), allowed=Allowed(only=(-1.0, 1.0)))

    def elements(self, target: Target, output: Value, *read: Value) -> tuple[Value, Value]:
        """The loss of each pair, and 1."""
        x, y = _both(output, read[0])
        lengths = ops.mul(*(ops.add(_dot(v, v), _EPSILON) for v in (x, y)))
        cosine = ops.div(_dot(x, y), ops.sqrt(lengths))
        loss = ops.sub(1.0, cosine)
        if self.other is not None:
            together = ops.greater(as_dtype(read[-1], x.type.dtype), 0.0)
            loss = ops.where(together, loss, ops.relu(ops.sub(cosine, number(cosine, self.margin))))
        return loss, ones(loss)


@dataclass(frozen=True)
class Triplet:
    """max(0, |output - positive| - |output - negative| + margin), as torch.nn.TripletMarginLoss with p = 2; no labels.

    Attributes:
        positive: name of the model's embedding of what is alike.
        negative: of what is different.
        margin: by how much that should be further away.
        swap: the distance of negative from positive counts where it is smaller than that from the output.
    """

    positive: str
    negative: str
    margin: float = 1.0
    swap: bool = False

    skips = ()
    metrics = ()
    keys = ()

    def __post_init__(self) -> None:
        for name in (self.positive, self.negative):
            checks.instance("triplet: an output", name, str)
        checks.number("triplet: margin", self.margin)
        checks.instance("triplet: swap", self.swap, bool)

    @property
    def others(self) -> tuple[str, ...]:
        """Positive and negative."""
        return (self.positive, self.negative)

    def target(self, output: TensorType, positive: TensorType, negative: TensorType) -> Target:
        """Three embeddings."""
        _check_alike("triplet", output, positive)
        _check_alike("triplet", output, negative)
        return Target(output, output)

    def elements(self, target: Target, output: Value, positive: Value, negative: Value) -> tuple[Value, Value]:
        """The loss of each triplet, and 1."""
        anchor, near = _both(output, positive)
        anchor, far = _both(output, negative)
        apart = _distance(anchor, far)
        if self.swap:
            apart = ops.minimum(apart, _distance(near, far))
        loss = ops.relu(ops.add(ops.sub(_distance(anchor, near), apart), self.margin))
        return loss, ones(loss)


@dataclass(frozen=True)
class InfoNCE:
    """Cross-entropy of each embedding's similarity to its partner among those of the micro-batch (van den Oord 2018).

    The partners of the other samples are the negatives, so the loss is no sum over independent samples: with
    ``accumulate`` each micro-batch has its own negatives, and four of 16 are not one of 64.

    Attributes:
        other: name of the model's other embedding; without it the labels are vectors of the data.
        temperature: by which similarities are divided.
        symmetric: the mean of both directions, as CLIP.
        normalize: embeddings are divided by their lengths.
    """

    other: str | None = None
    temperature: float = 0.07
    symmetric: bool = False
    normalize: bool = True

    skips = ()
    metrics = ()

    def __post_init__(self) -> None:
        checks.optional("info_nce: other", self.other, str)
        if checks.number("info_nce: temperature", self.temperature) == 0.0:
            raise InputError("info_nce: temperature is 0; expected more")
        for name, flag in (("symmetric", self.symmetric), ("normalize", self.normalize)):
            checks.instance(f"info_nce: {name}", flag, bool)

    @property
    def others(self) -> tuple[str, ...]:
        """The other embedding."""
        return () if self.other is None else (self.other,)

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels, where they are the other embedding."""
        return (LABELS,) if self.other is None else ()

    def target(self, output: TensorType, partner: TensorType) -> Target:
        """Two embeddings."""
        _check_alike("info_nce", output, partner)
        return Target(output, TensorType(float_of(output), partner.shape))

    def elements(self, target: Target, output: Value, partner: Value) -> tuple[Value, Value]:
        """The loss of each sample, and 1."""
        x, y = _both(output, partner)
        if self.normalize:
            x, y = (ops.div(v, ops.sqrt(ops.add(_dot(v, v, keepdims=1), _EPSILON))) for v in (x, y))
        similarity = ops.div(ops.matmul(x, ops.transpose(y, perm=(1, 0))), self.temperature)
        assert x.builder is not None
        size = x.type.shape[0]
        attributes = {"start": 0, "limit": size, "delta": 1, "dtype": int64}
        own = x.builder.add(ops.range_, (), attributes).outputs[0]
        assert own is not None
        loss = ops.softmax_cross_entropy(similarity, own)
        if self.symmetric:
            back = ops.softmax_cross_entropy(ops.transpose(similarity, perm=(1, 0)), own)
            loss = ops.mul(ops.add(loss, back), 0.5)
        return loss, ones(loss)


def _check_alike(name: str, output: TensorType, other: TensorType) -> None:
    if output.rank != 2 or other.dtype.kind not in "fiub" or not alike(output.shape, other.shape):
        raise InputError(f"{name}: expected embeddings of one shape (B, D), got {output} and {other}")


def _both(output: Value, other: Value) -> tuple[Value, Value]:
    x = upcast(output)
    return x, as_dtype(other, x.type.dtype)


def _dot(x: Value, y: Value, keepdims: int = 0) -> Value:
    found: Value = ops.reduce_sum(ops.mul(x, y), axes=(1,), keepdims=keepdims)
    return found


def _distance(x: Value, y: Value) -> Value:
    """|x - y + 1e-6|, as torch.nn.functional.pairwise_distance; its slope is finite where x = y."""
    difference = ops.add(ops.sub(x, y), 1e-6)
    found: Value = ops.sqrt(_dot(difference, difference))
    return found
