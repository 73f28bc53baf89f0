"""What can be said of a tensor in a few numbers, and how its numbers are distributed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...ir.types import Array
from .event_file import Histogram

_BINS = 64


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the finite numbers of a tensor; all zero where there are none.

    Attributes:
        count: of all numbers.
        nonfinite: how many are NaN or infinite.
        zeros: how many are 0.
        norm: the square root of the sum of their squares.
        mean: of them.
        std: the square root of the mean of their squared differences from the mean.
        least: of them.
        most: of them.
    """

    count: int
    nonfinite: int
    zeros: int
    norm: float
    mean: float
    std: float
    least: float
    most: float
    _numbers: Array = field(repr=False, compare=False)

    def histogram(self, bins: int = _BINS) -> Histogram:
        """Counts in intervals of one size between the least and the most."""
        counts, edges = np.histogram(self._numbers, bins, (self.least, self.most) if len(self._numbers) else (0, 1))
        total = float(self._numbers.sum())
        return Histogram(
            self.least, self.most, len(self._numbers), total, self.norm**2, edges[1:].tolist(), counts.tolist()
        )


def statistics_of(array: Array) -> Statistics:
    """The statistics of a tensor, in float64."""
    flat = np.asarray(array).astype(np.float64).ravel()
    finite = np.isfinite(flat)
    numbers = flat if finite.all() else flat[finite]
    empty = not len(numbers)
    return Statistics(
        count=len(flat),
        nonfinite=len(flat) - len(numbers),
        zeros=len(numbers) - int(np.count_nonzero(numbers)),
        norm=float(np.sqrt(np.square(numbers).sum())),
        mean=0.0 if empty else float(numbers.mean()),
        std=0.0 if empty else float(numbers.std()),
        least=0.0 if empty else float(numbers.min()),
        most=0.0 if empty else float(numbers.max()),
        _numbers=numbers,
    )
