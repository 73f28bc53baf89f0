"""Samples of decision trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...ir.types import DType, float32, float64, int32
from ..sample import Operand, Sample, x


def _ensemble(trees: int, depth: int, features: int, size: int, dtype: DType) -> tuple[Operand, ...]:
    """Full trees with random comparisons; each leaf has one to three entries."""
    random = np.random.default_rng(trees * 100 + depth)
    inner = 2**depth - 1
    rows: list[list[int]] = []
    for tree in range(trees):
        for index in range(inner):
            after = [
                tree * inner + child if child < inner else -1 - (tree * (inner + 1) + child - inner)
                for child in (2 * index + 1, 2 * index + 2)
            ]
            rows.append([int(random.integers(features)), int(random.integers(4)) + 8 * (index % 2), *after])
    starts = [tree * inner if inner else -1 - tree for tree in range(trees)]
    begins = np.concatenate([[0], np.cumsum(random.integers(1, 4, trees * (inner + 1)))])
    entries = int(begins[-1])

    def numbers(value: Any, shape: tuple[int, ...]) -> Operand:
        return Operand(shape, int32, value=value)

    return (
        numbers(rows, (len(rows), 4)),
        Operand((len(rows),), dtype, value=random.standard_normal(len(rows))),
        numbers(starts, (trees,)),
        numbers(begins, (len(begins),)),
        numbers(random.integers(size, size=entries), (entries,)),
        Operand((entries,), dtype, value=random.standard_normal(entries)),
    )


def _samples() -> list[Sample]:
    rows = []
    for dtype in (float32, float64):
        for aggregate in ("sum", "min", "max"):
            of = {"size": 3, "aggregate": aggregate}
            rows.append(Sample(ops.tree_ensemble, (x(7, 4, dtype=dtype), *_ensemble(5, 3, 4, 3, dtype)), of))
        rows.append(Sample(ops.tree_ensemble, (x(2, 1, dtype=dtype), *_ensemble(2, 0, 1, 2, dtype)), {"size": 2}))
    nan = Operand((3, 2), float32, value=[[np.nan, 1.0], [0.0, np.nan], [np.nan, np.nan]])
    rows.append(Sample(ops.tree_ensemble, (nan, *_ensemble(4, 2, 2, 1, float32)), {"size": 1}))
    rows.append(Sample(ops.tree_ensemble, (x(700, 9), *_ensemble(40, 5, 9, 2, float32)), {"size": 2}))
    equal = Operand((4, 1), float32, value=[1, 2, 3, np.nan])
    member = (  # 1 or 3, as a chain of comparisons with one leaf
        Operand((2, 4), int32, value=[[0, 4, -1, 1], [0, 5, -2, -1]]), Operand((2,), float32, value=[1, 3]),
        Operand((1,), int32, value=[0]), Operand((3,), int32, value=[0, 1, 1]), Operand((1,), int32, value=[0]),
        Operand((1,), float32, value=[2.5]),
    )  # fmt: skip
    rows.append(Sample(ops.tree_ensemble, (equal, *member), {"size": 1}))
    rows.append(Sample(ops.tree_ensemble, (x(0, 1), *member), {"size": 1}))
    return rows


SAMPLES: list[Sample] = _samples()
