"""Losses for classes of very different size: focal, dice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import ops
from ...errors import InputError
from ...host import checks
from ...ir.types import TensorType, float32, int64
from ...ir.value import Value
from .class_axis import (
    beside,
    check_class_weights,
    class_axis,
    classes_of,
    need_class_numbers,
    weight_of_labels,
    without,
)
from .loss import Allowed, Target
from .terms import class_numbers, entry_shape, number, numbers, ones, pair, same_shape, upcast, zero

_TINY = 1e-30  # keeps the slope of a power finite at 0


@dataclass(frozen=True)
class Focal:
    """Cross-entropy times (1 - p)^gamma, p being the label's probability: easy elements count less (Lin et al. 2017).

    Labels of the logits' shape are yes or no, one per element, as torchvision's sigmoid_focal_loss; others are class
    numbers. The mean is over all elements that aren't ignored.

    Attributes:
        gamma: how much less.
        alpha: of yes-or-no labels: the weight of yes, that of no being 1 - alpha. Of classes: one number for each.
        ignore_index: class number of elements that don't count.
        axis: the class axis, where the shapes leave a choice.
    """

    gamma: float = 2.0
    alpha: float | Sequence[float] | None = None
    ignore_index: int = -100
    axis: int | None = None

    skips = ("softmax", "log_softmax", "sigmoid")
    metrics = ("accuracy",)

    def __post_init__(self) -> None:
        checks.number("focal: gamma", self.gamma)
        if self.alpha is not None:
            object.__setattr__(self, "alpha", numbers("focal: alpha", self.alpha))
        if isinstance(self.alpha, float) and self.alpha > 1.0:
            raise InputError(f"focal: alpha is {self.alpha}; expected at most 1, or one number per class")

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Logits with labels of their shape, or with class numbers."""
        if self.axis is None and is_binary(output, labels):
            if isinstance(self.alpha, tuple):
                raise InputError(
                    f"focal: alpha has {len(self.alpha)} numbers; expected one, since labels are yes or no"
                )
            return same_shape("focal", output, labels, Allowed(0.0, 1.0))
        need_class_numbers("focal", labels)
        axis = class_axis("focal", self.axis, output, labels)
        if isinstance(self.alpha, float):
            raise InputError(f"focal: alpha is {self.alpha}; expected one number for each of the classes of {output}")
        check_class_weights("focal", self.alpha, output.shape[axis])
        known = classes_of(output, axis, self.ignore_index)
        return Target(output, TensorType(int64, without(output, axis)), axis, self.ignore_index, checked=known)

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """Alpha (1 - p)^gamma times the cross-entropy, and 1."""
        if target.axis is None:
            return self._binary(*pair(output, labels))
        z, labels = upcast(output), class_numbers(labels)
        _, _, weight = weight_of_labels(labels, self.ignore_index, None, z.type.dtype)
        loss = ops.softmax_cross_entropy(z, labels, axis=target.axis, ignore_index=self.ignore_index)
        loss = self._lessened(loss, ops.sub(1.0, ops.exp(ops.neg(loss))))
        if isinstance(self.alpha, tuple):
            loss = ops.mul(loss, weight_of_labels(labels, self.ignore_index, self.alpha, z.type.dtype)[2])
        return loss, weight

    def _binary(self, z: Value, t: Value) -> tuple[Value, Value]:
        no = ops.sub(1.0, t)
        loss = ops.add(ops.mul(ops.softplus(ops.neg(z)), t), ops.mul(ops.softplus(z), no))
        missed = ops.add(ops.mul(ops.sigmoid(ops.neg(z)), t), ops.mul(ops.sigmoid(z), no))
        loss = self._lessened(loss, missed)
        if isinstance(self.alpha, float):
            loss = ops.mul(loss, ops.add(ops.mul(t, self.alpha), ops.mul(no, 1.0 - self.alpha)))
        return loss, ones(z)

    def _lessened(self, loss: Value, missed: Value) -> Value:
        """The loss times (1 - p)^gamma, given 1 - p."""
        if self.gamma == 0.0:
            return loss
        found: Value = ops.mul(loss, ops.pow(ops.maximum(missed, number(missed, _TINY)), number(missed, self.gamma)))
        return found


@dataclass(frozen=True)
class Dice:
    """1 - (2 sum p t + smooth) / (sum p + sum t + smooth), per sample and class, over all positions (Milletari 2016).

    Labels of the logits' shape are masks, a class each on axis 1 where there is one, and p is the sigmoid; others are
    class numbers, and p is the softmax. Each sample is by itself, so micro-batches add up.

    Attributes:
        smooth: keeps empty masks finite: a class that is neither there nor predicted costs nothing.
        ignore_index: class number of positions that don't count.
        axis: the class axis, where the shapes leave a choice.
    """

    smooth: float = 1.0
    ignore_index: int = -100
    axis: int | None = None

    skips = ("softmax", "sigmoid")
    metrics = ("iou",)

    def __post_init__(self) -> None:
        if checks.number("dice: smooth", self.smooth) == 0.0:
            raise InputError("dice: smooth is 0; expected more, since an empty mask would be 0 / 0")

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Logits with masks, or with class numbers."""
        if self.axis is None and is_binary(output, labels):
            return same_shape("dice", output, labels, Allowed(0.0, 1.0))
        need_class_numbers("dice", labels)
        axis = class_axis("dice", self.axis, output, labels)
        entry = TensorType(int64, without(output, axis))
        return Target(output, entry, axis, self.ignore_index, classes_of(output, axis, self.ignore_index))

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """One figure per sample and class, and 1."""
        if target.axis is None:
            z, t = pair(output, labels)
            p, kept = ops.sigmoid(z), (0, 1) if z.type.rank > 2 else (0,)
        else:
            z, labels = upcast(output), class_numbers(labels)
            counted, safe, _ = weight_of_labels(labels, self.ignore_index, None, z.type.dtype)
            shown = beside(counted, z.type, target.axis)
            p = ops.softmax(ops.where(shown, z, zero(z)), axis=target.axis)
            t = ops.one_hot(safe, depth=z.type.shape[target.axis], axis=target.axis, dtype=float32)
            t = ops.cast(t, to=z.type.dtype) if z.type.dtype != float32 else t
            p, t = ops.where(shown, p, zero(p)), ops.where(shown, t, zero(t))
            kept = (0, target.axis)
        axes = tuple(i for i in range(z.type.rank) if i not in kept)

        def over(value: Value) -> Value:
            return ops.reduce_sum(value, axes=axes, keepdims=0) if axes else value

        shared, both = over(ops.mul(p, t)), over(ops.add(p, t))
        overlap = ops.div(ops.add(ops.mul(shared, 2.0), self.smooth), ops.add(both, self.smooth))
        loss = ops.sub(1.0, overlap)
        return loss, ones(loss)


def is_binary(output: TensorType, labels: TensorType) -> bool:
    """Whether labels are yes or no per element of the output rather than class numbers."""
    return entry_shape(output.shape, labels.shape) is not None
