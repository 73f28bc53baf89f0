"""Throughput and memory of an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ...host.system_memory import peak_memory
from ...ir.plan import Plan
from ..data.batch import Batch

FIGURES = ("seconds", "data_seconds", "samples_per_second", "arena_bytes", "process_peak_bytes")
"""Names of what a clock says: of the machine, not of the model, so never the same twice."""


class Clock:
    """Counts the samples of an epoch, and how long the steps waited for them."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._samples, self._waited = 0, 0.0

    def over(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, counted."""
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - begun
            if batch is None:
                return
            self._samples += batch.size
            yield batch

    def figures(self, plans: Mapping[str, Plan]) -> dict[str, float]:
        """FIGURES: since the clock was made, without what validation takes.

        Args:
            plans: of the programs, which share one arena.
        """
        seconds = time.perf_counter() - self._begun
        return {
            "seconds": seconds,
            "data_seconds": self._waited,
            "samples_per_second": self._samples / seconds,
            "arena_bytes": float(max((plan.peak_bytes for plan in plans.values()), default=0)),
            "process_peak_bytes": float(peak_memory()),
        }
