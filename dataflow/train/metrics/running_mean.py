"""Weighted means over batches, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(slots=True)
class RunningMean:
    """A weighted mean over batches, with its standard error.

    Attributes:
        fraction: of a share p of n answers, one of each sample, the error is sqrt(p (1 - p) / n); of other figures it
            comes from how much samples or batches differ, and is unknown (nan) before the second.
        batches: how many were added; samples, where they are known, and the answers of a share.
        sums: of s, w, s^2, s w and w^2, for a sum s and a weight w of each.
    """

    fraction: bool = False
    batches: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, total: float, weight: float) -> None:
        """Counts a batch in."""
        sums = self.sums  # by line, since it is done in each step
        sums[0] += total
        sums[1] += weight
        if self.fraction:  # answers that are 0 or 1
            self.batches += round(weight)
            sums[2] += total
            sums[3] += total
            sums[4] += weight
            return
        self.batches += 1
        sums[2] += total * total
        sums[3] += total * weight
        sums[4] += weight * weight

    def add_samples(self, count: int, moments: Sequence[float]) -> None:
        """Counts samples in, of which a share may have several answers; moments: what ``sums`` are, of these."""
        self.fraction = False
        self.batches += count
        self.sums = [known + new for known, new in zip(self.sums, moments, strict=True)]

    @property
    def mean(self) -> float:
        """The weighted mean; nan when nothing counted."""
        return self.sums[0] / self.sums[1] if self.sums[1] else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean; nan when unknown."""
        weight = self.sums[1]
        if not weight:
            return math.nan
        mean = self.mean
        if self.fraction:
            return math.sqrt(max(mean * (1.0 - mean), 0.0) / weight)
        if self.batches < 2:
            return math.nan
        squares = self.sums[2] - 2.0 * mean * self.sums[3] + mean * mean * self.sums[4]
        return math.sqrt(max(squares, 0.0) * self.batches / (self.batches - 1)) / weight


def figures(
    means: Mapping[str, RunningMean], prefix: str = "", errors: Mapping[str, float] = MappingProxyType({})
) -> dict[str, float]:
    """Means by name, and ``name_error`` where the standard error is known; that of ``errors`` where it has one."""
    found = {}
    for name, mean in means.items():
        found[prefix + name] = mean.mean
        error = errors.get(name, mean.error)
        if math.isfinite(error):
            found[f"{prefix}{name}_error"] = error
    return found
