"""Converters of operators whose output sizes depend on data."""

from __future__ import annotations

from typing import Any

from dataflow import Value, bool_, int64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import full, iota
from ..importer import Importer
from ..shape_eval import axis_in, product
from ..tensor import Tensor

T = Tensor
operator = Collector()


def _indices(c: Importer, x: Value) -> Any:
    """Indices of the elements that aren't zero: (rank, count)."""
    hits = x if x.type.dtype == bool_ else ops.cast(x, to=bool_)
    count = ops.reduce_sum(ops.cast(hits, to=int64), axes=tuple(range(x.type.rank)), keepdims=0)
    return ops.nonzero(x, count=c.count(count, "number of hits"))


@operator("NonZero", 9)
def NonZero(c: Importer, x: T) -> Any:
    return _indices(c, c.value(x))


@operator("Compress", 9)
def Compress(c: Importer, x: T, condition: T, *, axis: int | None = None) -> Any:
    value, chosen = c.value(x), c.value(condition)
    if chosen.type.rank == 0 or chosen.type.dtype != bool_:
        raise ModelError(f"its condition is {chosen.type}; expected a list of bools")
    if chosen.type.rank > 1:  # onnxruntime reads it in the order of its elements; Paddle's converter has that of x
        chosen = ops.reshape(chosen, shape=(product(chosen.type.shape),))
    if axis is None:
        value, axis = ops.reshape(value, shape=(product(value.type.shape),)), 0
    found = _indices(c, chosen)
    count = found.type.shape[1]
    return ops.gather(value, ops.reshape(found, shape=(count,)), axis=axis_in(axis, value.type.rank))


@operator("Unique", 11)
def Unique(c: Importer, x: T, *, axis: int | None = None, sorted: int = 1) -> Any:
    return unique(c, x, axis, sorted)[: len(c.node.outputs)]


def unique(c: Importer, x: T, axis: int | None, sorted: int) -> tuple[Any, Any, Any, Any]:
    """What differs of a tensor's entries, where each occurs first, the number of each among them, and how many."""
    value = c.value(x)
    if axis is None:
        value, axis = ops.reshape(value, shape=(product(value.type.shape),)), 0
    at = axis_in(axis, value.type.rank)
    others = [i for i in range(value.type.rank) if i != at]
    entries = value.type.shape[at]
    width = product([value.type.shape[i] for i in others])
    rows = ops.reshape(ops.transpose(value, perm=(at, *others)), shape=(entries, width))
    ids, found = ops.unique(rows, sorted=sorted)
    count = c.count(found, "number of entries that differ")
    none = full(c.builder, (count,), 0, int64)
    counts = ops.scatter_elements(none, ids, full(c.builder, (entries,), 1, int64), axis=0, reduction="add")
    beyond = full(c.builder, (count,), 1 << 62, int64)
    first = ops.scatter_elements(beyond, ids, iota(c.builder, entries), axis=0, reduction="min")
    return ops.gather(value, first, axis=at), first, ids, counts


@operator("ImageDecoder", 20)
def ImageDecoder(c: Importer, x: T, *, pixel_format: str = "RGB") -> Any:
    data = c.value(x)
    size = Tensor(f"size of {c.node.describe()}", ops.image_size(data))
    height, width = c.read_sizes(size, "the size of the image").numbers
    return ops.decode_image(data, height=height, width=width, pixel_format=pixel_format)
