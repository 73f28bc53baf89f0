"""Metrics from how often each class was found and was right: precision, recall, F1, IoU, Matthews' coefficient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from ... import ops
from ...errors import InputError
from ...host import checks
from ...ir.types import Array
from ...ir.value import Value
from ..losses.loss import Target
from .rows import counted, yes_or_no

Average = Literal["binary", "micro", "macro", "weighted", "each"]


@dataclass
class Counts:
    """Counts per class, or per column where labels are yes or no.

    Attributes:
        counts: (4, C) int64: found and right, found, in the labels, and of all; None before the first batch.
        columns: labels are yes or no, and C counts columns.
    """

    counts: Array | None = field(default=None, init=False, repr=False)
    columns: bool = field(default=False, init=False, repr=False)

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
        """The counts of a batch, (3, C) for classes and (4, C) for columns."""
        if target.axis is None:
            found, wanted, weight = yes_or_no(target, output, labels)
            rows = [ops.mul(found, wanted), found, wanted, weight]
            return (_stacked([ops.reduce_sum(row, axes=(0,), keepdims=0) for row in rows]),)
        found, wanted, weight = counted(target, output, labels)
        size = int(output.type.shape[target.axis])
        right = ops.mul(ops.cast(ops.equal(found, wanted), to=weight.type.dtype), weight)
        pairs = ((wanted, right), (found, weight), (wanted, weight))
        return (_stacked([ops.index_add(index, amount, size=size) for index, amount in pairs]),)

    def update(self, counts: Array) -> None:
        """Counts a batch in."""
        self.columns = len(counts) == 4
        exact = counts.astype(np.int64)
        if not self.columns:
            exact = np.vstack([exact, np.full(exact.shape[1:], exact[2].sum())])
        self.counts = exact if self.counts is None else self.counts + exact

    def _read(self) -> tuple[Array, Array, Array, Array]:
        """Right, found, in the labels, of all; float64 (C,) each, of one class where nothing was counted."""
        counts = np.zeros((4, 1)) if self.counts is None else self.counts.astype(np.float64)
        return counts[0], counts[1], counts[2], counts[3]


@dataclass
class Averaged(Counts):
    """A figure per class, averaged as in scikit-learn.

    A figure that is 0 / 0 is 0.

    Attributes:
        average: ``macro``: the mean over classes that occur, in labels or results; ``weighted``: by how often in the
            labels; ``micro``: of the counts of all classes together; ``binary``: of class 1 of two; ``each``: an array.
            By default ``binary`` where labels are yes or no in one column, else ``macro``.
    """

    average: Average | None = None

    kind: ClassVar[str] = ""
    mode, compares = "max", "classes"

    def __post_init__(self) -> None:
        if self.average is not None:
            checks.text(f"{self.kind}: average", self.average, ("binary", "micro", "macro", "weighted", "each"))

    @property
    def name(self) -> str:
        """E.g. ``f1`` or ``f1_micro``."""
        return self.kind if self.average in (None, "each") else f"{self.kind}_{self.average}"

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
        """The counts of a batch.

        Raises:
            InputError: ``binary`` of more than one column, or of more than two classes.
        """
        (counts,) = super().values(target, output, labels)
        size, most = counts.type.shape[1], 1 if target.axis is None else 2
        if self.average == "binary" and isinstance(size, int) and size > most:
            what = "columns of labels" if target.axis is None else "classes"
            raise InputError(
                f"{self.kind}: average='binary' is for two classes, and there are {size} {what}; expected micro, "
                "macro, weighted, or each"
            )
        return (counts,)

    def of(self, right: Array, found: Array, wanted: Array) -> Array:
        """The figure of each class."""
        raise NotImplementedError

    def result(self) -> float | Array:
        """The average, or the figure of each class."""
        right, found, wanted, _ = self._read()
        average = self.average or ("binary" if self.columns and len(right) == 1 else "macro")
        if average == "micro":
            right, found, wanted = (a.sum(keepdims=True) for a in (right, found, wanted))
        each = self.of(right, found, wanted)
        if average == "each":
            return each
        if average == "binary":
            return float(each[-1 if self.columns else min(1, len(each) - 1)])
        if average == "weighted":
            return float(ratio((each * wanted).sum(), wanted.sum()))
        occurs = (found + wanted > 0) | (self.columns or average == "micro")
        return float(each[occurs].mean()) if occurs.any() else 0.0


@dataclass
class Precision(Averaged):
    """The share of what was found that is right."""

    kind = "precision"

    def of(self, right: Array, found: Array, wanted: Array) -> Array:
        """Right / found."""
        return ratio(right, found)


@dataclass
class Recall(Averaged):
    """The share of the labels that was found."""

    kind = "recall"

    def of(self, right: Array, found: Array, wanted: Array) -> Array:
        """Right / wanted."""
        return ratio(right, wanted)


@dataclass
class F1(Averaged):
    """The harmonic mean of precision and recall."""

    kind = "f1"

    def of(self, right: Array, found: Array, wanted: Array) -> Array:
        """2 right / (found + wanted)."""
        return ratio(2.0 * right, found + wanted)


@dataclass
class IoU(Averaged):
    """What was found and is right, of what was found or is in the labels: intersection over union, Jaccard's index."""

    kind = "iou"

    def of(self, right: Array, found: Array, wanted: Array) -> Array:
        """Right / (found + wanted - right)."""
        return ratio(right, found + wanted - right)


@dataclass
class Matthews(Counts):
    """Matthews' correlation coefficient, from -1 to 1; of columns all elements together. 0 where it is 0 / 0."""

    name, compares = "mcc", "classes"
    mode = "max"

    def result(self) -> float:
        """The formula of Gorodkin (2004) for any number of classes."""
        right, found, wanted, count = self._read()
        total = count[0]
        if self.columns:  # as two classes: yes and no
            right, found, wanted, total = (np.asarray(a.sum()) for a in (right, found, wanted, count))
            agreed = right + (total - found - wanted + right)
            found, wanted = (np.array([a, total - a]) for a in (found, wanted))
        else:
            agreed = right.sum()
        upper = agreed * total - (found * wanted).sum()
        lower = np.sqrt(total**2 - (found**2).sum()) * np.sqrt(total**2 - (wanted**2).sum())
        return float(ratio(upper, lower))


def ratio(upper: Array, lower: Array) -> Array:
    """``upper / lower``, 0 where ``lower`` is."""
    lower = np.asarray(lower, np.float64)
    found: Array = np.divide(upper, lower, out=np.zeros_like(lower), where=lower != 0.0)
    return found


def _stacked(rows: list[Value]) -> Value:
    found: Value = ops.concat(*(ops.reshape(row, shape=(1, *row.type.shape)) for row in rows), axis=0)
    return found
