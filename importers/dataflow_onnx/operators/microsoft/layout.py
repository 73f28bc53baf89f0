"""Layouts of images: channels behind the batch, or last."""

from __future__ import annotations

from typing import Any

from dataflow import Value, ops


def to_channels_first(x: Value, wanted: int = 1) -> Any:
    """(N, ..., C) as (N, C, ...); as it is unless it is wanted."""
    rank = x.type.rank
    return ops.transpose(x, perm=(0, rank - 1, *range(1, rank - 1))) if wanted else x


def to_channels_last(x: Value, wanted: int = 1) -> Any:
    """(N, C, ...) as (N, ..., C); as it is unless it is wanted."""
    rank = x.type.rank
    return ops.transpose(x, perm=(0, *range(2, rank), 1)) if wanted else x
