"""Nodes that converters of several families emit."""

from __future__ import annotations

from typing import Any

from dataflow import Value, ops
from dataflow.ir.types import DType, int64

from .importer import Importer


def places(c: Importer, count: Any, dtype: DType = int64) -> Any:
    """0, 1, ... before ``count``."""
    return c.builder.add(ops.range_, (), {"start": 0, "limit": count, "delta": 1, "dtype": dtype}).outputs[0]


def along(vector: Value, axis: int, rank: int) -> Any:
    """A vector that broadcasts along an axis."""
    return ops.reshape(vector, shape=tuple(vector.type.shape[0] if i == axis else 1 for i in range(rank)))
