"""What a loss is: what it reads of a model and of a batch, which values are allowed there, and its elements."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...errors import InputError
from ...host.keywords import answered
from ...ir.types import Array, TensorType
from ...ir.value import Value

LABELS = "labels"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which values an entry of a batch may have.

    Attributes:
        least: the smallest.
        most: the largest.
        besides: one more number that is allowed.
        only: the numbers that are allowed, instead of all in the range.
        advice: what to do where these are hardly what is meant.
        remedy: what to do where there are others.
    """

    least: float = -np.inf
    most: float = np.inf
    besides: int | None = None
    only: tuple[float, ...] = ()
    advice: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        if self.only:
            return " or ".join(f"{number:g}" for number in self.only)
        text = f"{self.least:g} to {self.most:g}" if self.most < np.inf else f"{self.least:g} or more"
        return text if self.besides is None else f"{text}, or {self.besides}"

    def refuse_others(self, what: str, array: Array, indices: Array | None) -> None:
        """Raises InputError with the first sample that has another value.

        Args:
            what: the entry and who reads it, for the message.
            array: samples first, without NaN.
            indices: the samples' numbers in the dataset, where they have some.
        """
        if not array.size or (not self.only and array.min() >= self.least and array.max() <= self.most):
            return
        fits = np.isin(array, self.only) if self.only else (array >= self.least) & (array <= self.most)
        if self.besides is not None:
            fits |= array == self.besides
        if fits.all():
            return
        at = tuple(int(i) for i in np.argwhere(~fits)[0]) if array.ndim else ()
        sample = at[0] if at else 0
        number = sample if indices is None else int(indices[sample])
        where = f" at {list(at[1:])}" if len(at) > 1 else ""
        advice = "".join(f"; {text}" for text in (self.advice, self.remedy) if text)
        raise InputError(f"{what} of sample {number} is {array[at]}{where}; expected {self}{advice}")


@dataclass(frozen=True, slots=True)
class Target:
    """What a loss compares: a value of the model with labels.

    Attributes:
        output: type of the value.
        labels: type of the batch entry; the first dim is the batch.
        axis: the class axis of the value; None where there are no classes.
        ignored: the label that doesn't count; -100, as in PyTorch, where a loss doesn't say.
        allowed: the values that the labels may have; None where a kernel checks them, or all are.
        entries: types of the further entries of the batch that the loss reads, in the order of its ``keys``.
        checked: the values that the labels may have where a kernel checks them, whose error knows no samples.
        sparse: in what metrics compare, labels that don't count are NaN.
        blank: the class of no label, where metrics compare logits (B, T, C) with labels (B, L), negative where none is.
    """

    output: TensorType
    labels: TensorType
    axis: int | None = None
    ignored: int = -100
    allowed: Allowed | None = None
    entries: tuple[TensorType, ...] = ()
    checked: Allowed | None = None
    sparse: bool = False
    blank: int | None = None


@runtime_checkable
class Loss(Protocol):
    """A loss of one value and its labels, or of several values and entries of a batch.

    ``target`` and ``elements`` get what the loss reads, types or values, in this order: the value that the user chose,
    those that ``others`` names, and the entries of the batch that ``keys`` names. These may be left out:

    - ``others``: names of further values of the model; none by default.
    - ``keys``: the entries, by default ``("labels",)``. A key of the user's takes the place of the first. Empty where
      the loss has no labels; ``Target.labels`` is then that of any value.
    - ``compared(target, *read)``: the value and the labels that metrics compare, by default the first of each.
    - ``axis``: where it is None, the loss is copied with the class axis that ``target`` found.
    """

    @property
    def skips(self) -> tuple[str, ...]:
        """Names of ops whose input the loss wants rather than their result."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that fit it."""

    @property
    def target(self) -> Callable[..., Target]:
        """``target(output, labels)``: what is compared, given types of the value and the data; raises InputError."""

    @property
    def elements(self) -> Callable[..., tuple[Value, Value]]:
        """``elements(target, output, labels)``: the loss per element, times its weight; and the weight, of its shape.

        Samples are first in both.
        """


@dataclass(frozen=True, slots=True)
class OutputLoss:
    """A value of the model that is the loss already: per sample, or rank 0 and then the mean of its batch."""

    name: str


@answered
def output(name: str) -> OutputLoss:
    """The loss that the model computes itself: its value ``name``, per sample or element, or the mean of the batch."""
    return OutputLoss(name)


def compares_numbers(loss: Loss) -> bool:
    """Whether texts in the place of the labels can't be names of classes: of what is compared by differences."""
    return bool(getattr(loss, "compares_numbers", "mae" in loss.metrics))


def others_of(loss: Loss) -> tuple[str, ...]:
    """Names of the further values of the model that a loss reads."""
    return tuple(getattr(loss, "others", ()))


def keys_of(loss: Loss, key: str | None = None) -> tuple[str, ...]:
    """The entries of a batch that a loss reads; ``key`` is the user's for its labels.

    Raises:
        InputError: there is a key, and the loss has no labels.
    """
    keys = tuple(getattr(loss, "keys", (LABELS,)))
    if key is None:
        return keys
    if not keys:
        raise InputError(f"loss: {type(loss).__name__} reads no labels, so there is none under {key!r}")
    return (key, *keys[1:])


def compared(loss: Loss, target: Target, outputs: tuple[Value, ...], entries: tuple[Value, ...]) -> tuple[Value, Value]:
    """The value and the labels that metrics compare."""
    chosen = getattr(loss, "compared", None)
    if chosen is None:
        return outputs[0], entries[0]
    found: tuple[Value, Value] = chosen(target, *outputs, *entries)
    return found


def at_class_axis(loss: Loss, axis: int | None) -> Loss:
    """The loss with the class axis that its target found, where it leaves the axis open."""
    if axis is None or getattr(loss, "axis", axis) is not None:
        return loss
    copied: Any = copy.copy(loss)
    object.__setattr__(copied, "axis", axis)  # also of a frozen dataclass: nobody else has seen the copy
    found: Loss = copied
    return found
