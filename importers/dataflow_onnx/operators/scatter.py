"""Converters of operators that read and write by tensors of indices."""

from __future__ import annotations

from typing import Any

from dataflow import int64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..dynamic_sizes import size_value
from ..emit import along, cast_to, iota
from ..importer import Importer
from ..shape_eval import axis_in
from ..tensor import Tensor

T = Tensor
operator = Collector()


@operator("GatherElements", 11)
def GatherElements(c: Importer, x: T, indices: T, *, axis: int = 0) -> Any:
    values = [c.value(x), c.value(indices)]
    return ops.gather_elements(*(values if c.freed is None else c.freed.alike(c, values, axis)), axis=axis)


@operator("GatherND", 11)
def GatherND(c: Importer, x: T, indices: T, *, batch_dims: int = 0) -> Any:
    return ops.gather_nd(c.value(x), c.value(indices), batch_dims=batch_dims)


def _scatter_elements(c: Importer, data: T, indices: T, updates: T, axis: int, reduction: str) -> Any:
    values = [c.value(data), c.value(indices), c.value(updates)]
    values = values if c.freed is None else c.freed.alike(c, values, axis)
    return ops.scatter_elements(*values, axis=axis, reduction=reduction)


@operator("Scatter", 9)
def Scatter(c: Importer, data: T, indices: T, updates: T, *, axis: int = 0) -> Any:
    return _scatter_elements(c, data, indices, updates, axis, "none")


@operator("ScatterElements", 11)
def ScatterElements(c: Importer, data: T, indices: T, updates: T, *, axis: int = 0, reduction: str = "none") -> Any:
    return _scatter_elements(c, data, indices, updates, axis, reduction)


@operator("ScatterND", 11)
def ScatterND(c: Importer, data: T, indices: T, updates: T, *, reduction: str = "none") -> Any:
    return ops.scatter_nd(c.value(data), c.value(indices), c.value(updates), reduction=reduction)


@operator("TensorScatter", 24)
def TensorScatter(
    c: Importer, past_cache: T, update: T, write_indices: T | None = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    """Writes new rows into each sample's cache, from the sample's own index on."""
    cache, new = c.value(past_cache), c.value(update)
    rank = cache.type.rank
    at = axis_in(axis, rank)
    if at == 0 or mode not in ("linear", "circular"):
        raise ModelError(f"axis {axis} and mode {mode!r}: expected an axis behind the batch, linear or circular")
    index = along(iota(c.builder, new.type.shape[at]), at, rank)
    if write_indices is not None:
        index = ops.add(index, along(cast_to(c.value(write_indices), int64), 0, rank))
    if mode == "circular":
        index = ops.mod(index, size_value(c, cache.type.shape[at]))
    index = ops.broadcast_to(index, shape=new.type.shape)
    return ops.scatter_elements(cache, index, new, axis=at, reduction="none")
