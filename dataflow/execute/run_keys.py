"""Keys of the random numbers of runs: each run has another."""

from __future__ import annotations

import itertools

import numpy as np

from ..ir.types import Array


class RunKeys:
    """The keys of a session's runs, in order; see ``ops.random`` for what is drawn by one.

    Safe to use from several threads.

    Args:
        seed: at least 0, below 2^63.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._runs = seed, itertools.count()

    def next(self) -> Array:
        """The key of a run: the seed, and how many runs came before."""
        return np.array([self._seed, next(self._runs)], np.uint64)
