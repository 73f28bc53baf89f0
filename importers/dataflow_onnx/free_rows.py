"""What a file computes for its samples of stored tensors alone: one row for all of them, or rows that are counted."""

from __future__ import annotations

import numpy as np

from dataflow import Dim, Value, ops
from dataflow.plugin import Size

from .emit import slice_axis
from .file.records import Array
from .operands import Operands
from .tensor import Tensor

_MOST = 1 << 22  # elements of a value that is computed to see its rows


def row_of(c: Operands, value: Value, axis: int, old: int) -> Value | None:
    """What a value repeats along an axis, which is 1 then; None where it isn't known to.

    Args:
        c: importer of the graph.
        value: fixed along the axis.
        axis: of the value.
        old: how many samples the file has.
    """
    shape = value.type.shape
    node = c.builder.producer(value)
    if node is None and (value.type.dtype.is_float or c.builder.initializer_of(value) is None):
        return None  # it may be trained
    source = node.inputs[0] if node is not None and node.inputs else None
    if node is not None and node.op is ops.broadcast_to and source is not None:
        missing = value.type.rank - source.type.rank
        if axis < missing or source.type.shape[axis - missing] == 1:
            return _broadcast(source, (*shape[:axis], 1, *shape[axis + 1 :]))
    array = computed(c, value)
    if array is None or not (array == array.take([0], axis)).all():
        return None
    if _has_rows(c, value, old):
        return c.builder.constant(array.take([0], axis))
    row: Value = slice_axis(value, axis, 0, 1)
    return row


def _broadcast(value: Value, shape: tuple[Size, ...]) -> Value:
    found: Value = ops.broadcast_to(value, shape=shape)
    return found


def computed(c: Operands, value: Value) -> Array | None:
    """The data of a value, if it is computed of stored tensors alone."""
    if any(isinstance(n, Dim) for n in value.type.shape) or not 0 < value.type.elements <= _MOST:
        return None
    return c.constant(Tensor("", value))


def _has_rows(c: Operands, value: Value, old: int) -> bool:
    """Whether a stored float tensor that a value is computed of may have a row for each sample, which could be trained.

    Training one of its rows would leave the others as they were.
    """
    pending, seen = [value], {value}
    while pending:
        found = pending.pop()
        stored, node = c.builder.initializer_of(found), c.builder.producer(found)
        if stored is not None and stored.array.dtype.kind in "fV" and _is_repeated(stored.array, old):
            return True
        new = {v for v in (node.inputs if node is not None else ()) if v is not None} - seen
        seen |= new
        pending += new
    return False


def _is_repeated(array: Array, old: int) -> bool:
    """Whether a tensor is the same along an axis that has as many elements as there are samples."""
    axes = [axis for axis, size in enumerate(array.shape) if size == old]
    return any(bool((array == array.take([0], axis)).all()) for axis in axes)


def steps_of(array: Array, old: int) -> Array | None:
    """What is added from one sample's numbers to the next, one row of them; None where they don't grow evenly."""
    step: Array = array[1:2] - array[:1] if old > 1 else np.zeros_like(array[:1])
    numbers = np.arange(old, dtype=array.dtype).reshape(-1, *[1] * (array.ndim - 1))
    return step if np.array_equal(array, array[:1] + numbers * step) else None
