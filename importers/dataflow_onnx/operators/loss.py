"""Converters of losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataflow import Value, int64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import cast_to, number
from ..importer import Importer
from ..tensor import Tensor

T = Tensor
operator = Collector()


@dataclass(frozen=True, slots=True)
class _Labels:
    """Classes that can index, and which of them count.

    Attributes:
        index: int64, 0 where the label is ignored.
        counts: bool, or None: all.
    """

    index: Value
    counts: Value | None

    @staticmethod
    def of(c: Importer, target: Value, ignored: int | None) -> _Labels:
        index = cast_to(target, int64)
        if ignored is None:
            return _Labels(index, None)
        counts = ops.logical_not(ops.equal(index, number(c.builder, ignored, int64)))
        return _Labels(ops.where(counts, index, number(c.builder, 0, int64)), counts)

    def column(self, value: Value) -> Any:
        """One number per label, along axis 1."""
        shape = self.index.type.shape
        return ops.reshape(value, shape=(shape[0], 1, *shape[1:]))

    def counted(self, value: Value) -> Any:
        """Zeros where the label is ignored, so that NaN or infinity there reach neither the loss nor a gradient."""
        if self.counts is None:
            return value
        counts = self.counts if value.type.rank == self.index.type.rank else self.column(self.counts)
        zero = value.builder.scalar(0.0, value.type.dtype)  # type: ignore[union-attr]
        return ops.where(counts, value, zero)


def _likelihood(logs: Value, labels: _Labels, weight: Value | None, reduction: str) -> Any:
    """The negative of the entry that the label names, along axis 1."""
    if reduction not in ("none", "sum", "mean"):
        raise ModelError(f"reduction {reduction!r} is not known")
    shape, dtype = labels.index.type.shape, logs.type.dtype
    chosen = ops.gather_elements(logs, labels.column(labels.index), axis=1)
    terms = labels.counted(ops.neg(ops.reshape(chosen, shape=shape)))
    share: Any = None
    if weight is not None:
        share = labels.counted(ops.gather(weight, labels.index, axis=0))
        terms = ops.mul(terms, share)
    elif labels.counts is not None:
        share = ops.cast(labels.counts, to=dtype)
    if reduction == "none":
        return terms
    axes = tuple(range(len(shape)))
    total = ops.reduce_sum(terms, axes=axes, keepdims=0)
    if reduction == "sum":
        return total
    if share is None:
        return ops.reduce_mean(terms, axes=axes, keepdims=0)
    return ops.div(total, ops.reduce_sum(share, axes=axes, keepdims=0))


@operator("NegativeLogLikelihoodLoss", 12)
def NegativeLogLikelihoodLoss(
    c: Importer, x: T, target: T, weight: T | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Any:
    given = None if weight is None else c.value(weight)
    return _likelihood(c.value(x), _Labels.of(c, c.value(target), ignore_index), given, reduction)


@operator("SoftmaxCrossEntropyLoss", 12)
def SoftmaxCrossEntropyLoss(
    c: Importer,
    scores: T,
    labels: T,
    weights: T | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Any:
    value, target = c.value(scores), _Labels.of(c, c.value(labels), ignore_index)
    given = None if weights is None else c.value(weights)
    logs = counted = ops.log_softmax(value, axis=1)
    if target.counts is not None:
        counted = ops.log_softmax(target.counted(value), axis=1)
    loss = _likelihood(counted, target, given, reduction)
    return (loss, logs) if len(c.node.outputs) > 1 else loss
