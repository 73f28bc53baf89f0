"""Losses of each element by itself: regression, yes-or-no labels, counts, margins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ... import ops
from ...errors import InputError
from ...host import checks
from ...ir.types import Array, TensorType
from ...ir.value import Value
from .loss import LABELS, Allowed, Target
from .terms import alike, as_dtype, factor, float_of, number, numbers, ones, pair, same_shape, shaped, zero


@dataclass(frozen=True)
class Elementwise:
    """A loss of each element of the output and its label.

    Attributes:
        weights: key of a batch entry of the labels' shape, by which each element counts: it multiplies the loss and
            the weight, so a 0 leaves the element out, of metrics too.
    """

    weights: str | None = field(default=None, kw_only=True)

    name: ClassVar[str] = "loss"
    allowed: ClassVar[Allowed | None] = None
    skips: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[tuple[str, ...]] = ("mae",)
    compares_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.optional(f"{self.name}: weights", self.weights, str)

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels, and the elements' weights."""
        return (LABELS,) if self.weights is None else (LABELS, self.weights)

    def target(self, output: TensorType, labels: TensorType, weights: TensorType | None = None) -> Target:
        """Values and labels of one shape; a last axis of one may be missing from either."""
        found = same_shape(self.name, output, labels, self.allowed)
        if weights is None:
            return found
        if weights.dtype.kind not in "fiub" or not alike(weights.shape, labels.shape):
            raise InputError(f"{self.name}: {self.weights!r} is {weights}; expected numbers of the labels' shape")
        entries = (TensorType(float_of(output), weights.shape),)
        return Target(output, found.labels, allowed=found.allowed, entries=entries, sparse=True)

    def compared(
        self, target: Target, output: Value, labels: Value, weights: Value | None = None
    ) -> tuple[Value, Value]:
        """The labels are NaN where the weight is 0."""
        if weights is None:
            return output, labels
        y, t = pair(output, labels)
        out = ops.equal(shaped(as_dtype(weights, y.type.dtype), y), 0.0)
        return y, ops.where(out, number(t, math.nan), t)

    def counting(self, entries: Mapping[str, Array], keys: Sequence[str]) -> Array:
        """The labels of a batch with an allowed number in place of those whose weight is 0, whatever they are."""
        labels = entries[keys[0]]
        if self.weights is None:
            return labels
        weights = np.asarray(entries[keys[1]])
        if weights.shape != labels.shape or weights.all() or labels.dtype.kind not in "fiub":
            return labels
        allowed = self.allowed or Allowed(0.0)
        return np.where(weights == 0, labels.dtype.type(max(allowed.only, default=allowed.least)), labels)

    def elements(
        self, target: Target, output: Value, labels: Value, weights: Value | None = None
    ) -> tuple[Value, Value]:
        """The loss of each element, times its weight, and the weight."""
        y, t = pair(output, labels)
        if weights is None:
            return self.of(y, t), ones(y)
        weight = shaped(as_dtype(weights, y.type.dtype), y)
        y = ops.where(ops.equal(weight, 0.0), zero(y), y)  # what doesn't count may be infinite or NaN
        return ops.mul(self.of(y, t), weight), weight

    def of(self, y: Value, t: Value) -> Value:
        """The loss of values ``y`` with labels ``t``, of one shape and dtype."""
        raise NotImplementedError


@dataclass(frozen=True)
class MSE(Elementwise):
    """The squared difference, averaged over all elements."""

    name = "mse"

    def of(self, y: Value, t: Value) -> Value:
        """(y - t)^2."""
        difference = ops.sub(y, t)
        found: Value = ops.mul(difference, difference)
        return found


@dataclass(frozen=True)
class MAE(Elementwise):
    """The absolute difference, averaged over all elements."""

    name = "mae"

    def of(self, y: Value, t: Value) -> Value:
        """|y - t|."""
        found: Value = ops.abs(ops.sub(y, t))
        return found


@dataclass(frozen=True)
class Huber(Elementwise):
    """Half the squared difference up to ``delta``, linear beyond, as torch.nn.HuberLoss.

    Attributes:
        delta: where it becomes linear.
    """

    delta: float = 1.0

    name = "huber"

    def __post_init__(self) -> None:
        super().__post_init__()
        if checks.number("huber: delta", self.delta) == 0.0:
            raise InputError("huber: delta is 0; expected more; loss 'mae' is linear everywhere")

    def of(self, y: Value, t: Value) -> Value:
        """The product m (|d| - m / 2) with m = min(|d|, delta)."""
        return _huber(y, t, self.delta)


@dataclass(frozen=True)
class SmoothL1(Elementwise):
    """Huber's loss divided by its threshold, as torch.nn.SmoothL1Loss: linear beyond it with slope 1.

    Attributes:
        beta: where it becomes linear; 0: everywhere.
    """

    beta: float = 1.0

    name = "smooth_l1"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("smooth_l1: beta", self.beta)

    def of(self, y: Value, t: Value) -> Value:
        """Huber's loss / beta."""
        loss: Value = ops.div(_huber(y, t, self.beta), self.beta) if self.beta else ops.abs(ops.sub(y, t))
        return loss


def _huber(y: Value, t: Value, delta: float) -> Value:
    distance = ops.abs(ops.sub(y, t))
    near = ops.minimum(distance, number(distance, delta))
    found: Value = ops.mul(near, ops.sub(distance, ops.mul(near, 0.5)))
    return found


@dataclass(frozen=True)
class BinaryCrossEntropy(Elementwise):
    """Cross-entropy of independent yes-or-no logits with labels between 0 and 1, averaged over all elements.

    Attributes:
        pos_weight: multiplies the loss of the share that is yes: one number, or one per class of the last axis. The
            mean still counts elements, as in torch.nn.BCEWithLogitsLoss.
    """

    pos_weight: float | tuple[float, ...] | None = None

    name = "binary_cross_entropy"
    allowed = Allowed(0.0, 1.0)
    skips = ("sigmoid",)
    metrics = ("accuracy",)
    compares_numbers = False  # names of two classes are no and yes

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pos_weight is not None:
            object.__setattr__(self, "pos_weight", numbers("binary_cross_entropy: pos_weight", self.pos_weight))

    def target(self, output: TensorType, labels: TensorType, weights: TensorType | None = None) -> Target:
        """Logits and labels of one shape; a last axis of one may be missing from either."""
        per_class = self.pos_weight if isinstance(self.pos_weight, tuple) else None
        if per_class is not None and (not output.rank or output.shape[-1] != len(per_class)):
            raise InputError(f"binary_cross_entropy: {len(per_class)} numbers in pos_weight for the output {output}")
        return super().target(output, labels, weights)

    def of(self, y: Value, t: Value) -> Value:
        """P t ln(1 + e^-y) + (1 - t) ln(1 + e^y); nothing overflows or cancels."""
        yes, no = ops.mul(ops.softplus(ops.neg(y)), t), ops.mul(ops.softplus(y), ops.sub(1.0, t))
        if self.pos_weight is not None:
            yes = ops.mul(yes, factor(y, self.pos_weight))
        found: Value = ops.add(yes, no)
        return found


@dataclass(frozen=True)
class PoissonNLL(Elementwise):
    """Negative log-likelihood of counts under a Poisson distribution, as torch.nn.PoissonNLLLoss.

    Attributes:
        log_input: the output is the logarithm of the rate; otherwise the rate.
        full: with Stirling's approximation of ln(label!), for labels above 1.
        epsilon: added to the rate within the logarithm.
    """

    log_input: bool = True
    full: bool = False
    epsilon: float = 1e-8

    name = "poisson_nll"
    allowed = Allowed(0.0)
    metrics = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("poisson_nll: epsilon", self.epsilon)
        for name, flag in (("log_input", self.log_input), ("full", self.full)):
            checks.instance(f"poisson_nll: {name}", flag, bool)

    def of(self, y: Value, t: Value) -> Value:
        """e^y - t y, or y - t ln(y + epsilon)."""
        if self.log_input:
            loss: Value = ops.sub(ops.exp(y), ops.mul(t, y))
        else:
            loss = ops.sub(y, ops.mul(t, ops.log(ops.add(y, self.epsilon))))
        if not self.full:
            return loss
        many = ops.greater(t, 1.0)
        count = ops.where(many, t, number(t, 1.0))
        stirling = ops.sub(ops.mul(ops.add(count, 0.5), ops.log(count)), ops.sub(count, math.log(math.tau) / 2))
        full: Value = ops.add(loss, ops.where(many, stirling, zero(stirling)))
        return full


@dataclass(frozen=True)
class Hinge(Elementwise):
    """How much label * output falls short of a margin; labels are -1 or 1.

    Attributes:
        margin: beyond which nothing is lost.
        squared: its square.
    """

    margin: float = 1.0
    squared: bool = False

    name = "hinge"
    allowed = Allowed(only=(-1.0, 1.0))
    metrics = ("accuracy",)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("hinge: margin", self.margin)
        checks.instance("hinge: squared", self.squared, bool)

    def of(self, y: Value, t: Value) -> Value:
        """max(0, margin - t y)."""
        short = ops.relu(ops.sub(number(y, self.margin), ops.mul(t, y)))
        found: Value = ops.mul(short, short) if self.squared else short
        return found
