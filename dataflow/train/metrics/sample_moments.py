"""Standard errors of means over samples, whatever the order of these."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir.types import Array

EACH, EACH_WEIGHT = ":each", ":each_weight"  # behind a figure's name: terms (B,), the sum and the weight of each sample
_EACH_COUNT = ":each_count"
_COUNT = "samples:each"


def with_moments(terms: Mapping[str, Array], losses: Collection[str] = ()) -> Mapping[str, Array]:
    """The terms of a batch with moments in place of what it gives of each sample; they add up over batches, processes.

    These are the rows of the matrix of sums over samples of the products of c, s, w, 1, s, w, 1, ..., the sum s and the
    weight w of each figure, in float64; 1 is 0 of a sample that counts nothing there, c of one that does so in all
    of the figures ``losses``.
    """
    names = _figures(terms)
    if names and _COUNT not in terms:
        rows = [np.asarray(terms[name + key], np.float64) for name in names for key in (EACH, EACH_WEIGHT)]
        pairs = np.stack(rows).reshape(len(names), 2, -1)
        counts = (pairs != 0.0).any(1, keepdims=True)
        joint = counts[[name in losses for name in names]].any(0)
        table = np.concatenate([joint, np.concatenate([pairs, counts], 1).reshape(3 * len(names), -1)])
        with np.errstate(all="ignore"):  # a loss may be infinite
            return {**terms, **dict(zip(_keys(names), table @ table.T, strict=True))}
    return terms


def moments_of(terms: Mapping[str, Array], name: str) -> tuple[int, list[float]] | None:
    """How many samples count in a figure, and the sums of s, w, s^2, s w and w^2 over them; None: they aren't known.

    Args:
        terms: as they are ``with_moments``.
        name: of the figure.
    """
    if name + EACH not in terms:
        return None
    s = 3 * _figures(terms).index(name) + 1
    of_s, of_w, of_one = (terms[name + key] for key in (EACH, EACH_WEIGHT, _EACH_COUNT))
    total, weight, count = of_one[s : s + 3].tolist()
    return round(count), [total, weight, float(of_s[s]), float(of_s[s + 1]), float(of_w[s + 1])]


class SampleMoments:
    """The moments of all batches of an evaluation."""

    def __init__(self) -> None:
        self._batches: int = 0
        self._sums: dict[str, tuple[int, Array]] = {}  # and of how many batches

    def add(self, terms: Mapping[str, Array]) -> None:
        """Counts a batch in, whose terms are ``with_moments``."""
        self._batches += 1
        for key in _keys(_figures(terms)):
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
        rows: dict[str, tuple[Array, float]] = {}  # what the sums are multiplied by, and how many samples count
        for index, name in enumerate(_figures(self._sums)):
            s, w, one = 3 * index + 1, 3 * index + 2, 3 * index + 3
            row, (total, weight) = np.zeros(len(moments)), moments[one, s : w + 1]
            row[s], row[w] = (1.0 / weight, -total / weight**2) if weight > 0.0 else (0.0, 0.0)
            rows[name] = row, float(moments[one, one])
        if factors and factors.keys() <= rows.keys():
            joint = np.sum([rows[name][0] * factor for name, factor in factors.items()], axis=0)
            rows["loss"] = joint, float(moments[0, 0])
        return {name: _error(row, moments, count) for name, (row, count) in rows.items()}


def _error(row: Array, moments: Array, count: float) -> float:
    """The error of a sum of ``count`` samples; what isn't in the row doesn't matter, though it may be infinite."""
    if count < 2.0:
        return math.nan
    read = np.flatnonzero(row)
    with np.errstate(all="ignore"):
        squares = float(row[read] @ moments[np.ix_(read, read)] @ row[read])
    return math.sqrt(max(squares, 0.0) * count / (count - 1.0))


def _figures(terms: Mapping[str, Any]) -> list[str]:
    return [key.removesuffix(EACH) for key in terms if key.endswith(EACH) and key != _COUNT]


def _keys(names: Sequence[str]) -> list[str]:
    """The terms that ``with_moments`` gives."""
    found = [name + key for name in names for key in (EACH, EACH_WEIGHT, _EACH_COUNT)]
    return [_COUNT, *found] if found else []
