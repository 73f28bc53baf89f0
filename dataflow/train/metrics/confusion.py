"""The matrix of how often each class was taken for each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ... import ops
from ...errors import InputError
from ...ir.types import Array, int64
from ...ir.value import Value
from ..losses.loss import Target
from .rows import counted, yes_or_no

_MOST = 4096  # classes


@dataclass
class Confusion:
    """Counts (C, C): a row per class of the labels, a column per class that was found; of yes or no: (2, 2)."""

    counts: Array | None = field(default=None, init=False, repr=False)

    name, compares = "confusion", "classes"

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
        """The counts of a batch."""
        if target.axis is None:
            rows = yes_or_no(target, output, labels)
            found, wanted, weight = (ops.reshape(v, shape=(v.type.elements,)) for v in rows)
            found, wanted, size = ops.cast(found, to=int64), ops.cast(wanted, to=int64), 2
        else:
            size = int(output.type.shape[target.axis])
            if size > _MOST:
                raise InputError(f"metric 'confusion': {size} classes; a matrix of more than {_MOST} is of no use")
            found, wanted, weight = counted(target, output, labels)
        index = ops.add(ops.mul(wanted, size), found)
        return (ops.reshape(ops.index_add(index, weight, size=size * size), shape=(size, size)),)

    def update(self, counts: Array) -> None:
        """Counts a batch in."""
        exact = counts.astype(np.int64)
        self.counts = exact if self.counts is None else self.counts + exact

    def result(self) -> Array:
        """The matrix, int64."""
        return np.zeros((0, 0), np.int64) if self.counts is None else self.counts
