"""Standard errors of means over samples, whatever the order of these."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping

import numpy as np

from ...ir.types import Array

EACH, EACH_WEIGHT = ":each", ":each_weight"  # behind a figure's name: terms (B,), the sum and the weight of each sample
_COUNT = "samples:each"


def to_moments(terms: MutableMapping[str, Array]) -> None:
    """Replaces what a batch gives of each sample by moments, which add up over batches and processes.

    These are the rows of the matrix of sums over samples of the products of 1, s, w, s, w, ..., the sum s and the
    weight w of each figure, in float64; 1 is 0 of a sample that counts nowhere.
    """
    keys = _keys(terms)
    if keys:
        table = np.stack([np.asarray(terms[key], np.float64) for key in keys])
        table = np.concatenate([(table != 0.0).any(0, keepdims=True), table])
        with np.errstate(all="ignore"):  # a loss may be infinite
            terms.update(zip((_COUNT, *keys), table @ table.T, strict=True))


class SampleMoments:
    """The moments of all batches of an evaluation."""

    def __init__(self) -> None:
        self._batches: int = 0
        self._sums: dict[str, tuple[int, Array]] = {}  # and of how many batches

    def add(self, terms: Mapping[str, Array]) -> None:
        """Counts a batch in, whose terms have been through ``to_moments``."""
        self._batches += 1
        for key in _keys(terms) and (_COUNT, *_keys(terms)):
            count, known = self._sums.get(key, (0, 0.0))
            self._sums[key] = count + 1, known + terms[key]

    def errors(self, factors: Mapping[str, float]) -> dict[str, float]:
        """The standard errors, by figure, of means that are sums by weights; nan where fewer than two samples count.

        With the mean m = sum s / sum w, that of n samples is sqrt(n / (n - 1) sum (s - m w)^2) / sum w, as that of any
        ratio of sums; where all weigh the same it is their deviation by the square root of n.

        Args:
            factors: of several losses, whose sum is the figure ``loss``.
        """
        if not self._sums or any(count != self._batches for count, _ in self._sums.values()):
            return {}
        moments = np.stack([sums for _, sums in self._sums.values()])
        names = [key.removesuffix(EACH) for key in self._sums if key.endswith(EACH) and key != _COUNT]
        rows: dict[str, Array] = {}
        for index, name in enumerate(names):
            s, w = 2 * index + 1, 2 * index + 2
            row, (total, weight) = np.zeros(len(moments)), moments[0, s : w + 1]
            row[s], row[w] = (1.0 / weight, -total / weight**2) if weight > 0.0 else (0.0, 0.0)
            rows[name] = row
        if factors and factors.keys() <= rows.keys():
            rows["loss"] = np.sum([rows[name] * factor for name, factor in factors.items()], axis=0)
        count = float(moments[0, 0])
        if count < 2.0:
            return dict.fromkeys(rows, math.nan)
        with np.errstate(all="ignore"):
            squares = {name: float(row @ moments @ row) for name, row in rows.items()}
        return {name: math.sqrt(max(square, 0.0) * count / (count - 1.0)) for name, square in squares.items()}


def _keys(terms: Mapping[str, Array]) -> list[str]:
    return [
        key for name in terms if name.endswith(EACH) and name != _COUNT
        for key in (name, name.removesuffix(EACH) + EACH_WEIGHT)
    ]  # fmt: skip
