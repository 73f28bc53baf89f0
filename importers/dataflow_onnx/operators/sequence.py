"""Converters of operators on sequences and optionals: lists of tensors, or nothing, that the importer alone knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import Dim, Value, bool_, int64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import merged, moved, slice_axis
from ..file.functions import MOST_NODES
from ..file.records import GraphRecord
from ..file.value_types import ValueType
from ..importer import Importer
from ..operands import repeating
from ..shape_eval import Known, axis_in, filled
from ..tensor import Tensor
from .arithmetic import Identity

T = Tensor
operator = Collector()


def _made(c: Importer, elements: Sequence[T]) -> list[T]:
    """A sequence, of tensors of one dtype.

    Raises:
        ModelError: their dtypes differ, or some are no tensors.
    """
    dtypes = list(dict.fromkeys(element.type.dtype for element in elements))
    if len(dtypes) > 1:
        raise ModelError(f"it puts {dtypes[0]} and {dtypes[1]} into one sequence; expected tensors of one dtype")
    return [Identity(c, element) for element in elements]


def _position(c: Importer, position: T, count: int, last: int) -> int:
    """A position in a sequence of ``count`` elements, counted from the front."""
    given = c.ints(position, "the position")
    if len(given) != 1 or not -count <= given[0] <= last:
        raise ModelError(f"the position is {list(given)}; expected one from {-count} to {last}")
    return given[0] + count if given[0] < 0 else given[0]


@operator("SequenceEmpty", 11)
def SequenceEmpty(c: Importer, *, dtype: int = 1) -> Any:
    return []


@operator("SequenceConstruct", 11)
def SequenceConstruct(c: Importer, *inputs: T) -> Any:
    return _made(c, inputs)


@operator("SequenceAt", 11)
def SequenceAt(c: Importer, sequence: T, position: T) -> Any:
    rows = sequence.rows
    if rows is None and position.known is None and c.constant(position) is None:
        rows = c.rows(sequence)
    if rows is not None:
        at = c.value(position)
        return ops.gather(rows, ops.reshape(at, shape=()) if at.type.rank else at, axis=0)
    elements = c.elements(sequence)
    return elements[_position(c, position, len(elements), len(elements) - 1)]


@operator("SequenceInsert", 11)
def SequenceInsert(c: Importer, sequence: T, tensor: T, position: T | None = None) -> Any:
    elements = list(c.elements(sequence))
    at = len(elements) if position is None else _position(c, position, len(elements), len(elements))
    made = _made(c, [*elements[:1], tensor])[-1]
    return [*elements[:at], made, *elements[at:]]


@operator("SequenceErase", 11)
def SequenceErase(c: Importer, sequence: T, position: T | None = None) -> Any:
    elements = list(c.elements(sequence))
    if not elements:
        raise ModelError(f"the sequence {sequence.name!r} is empty")
    at = -1 if position is None else _position(c, position, len(elements), len(elements) - 1)
    del elements[at]
    return elements


@operator("SequenceLength", 11)
def SequenceLength(c: Importer, sequence: T) -> Any:
    count = len(c.elements(sequence)) if sequence.rows is None else sequence.rows.type.shape[0]
    return Known(filled((), count), int64)


@operator("ConcatFromSequence", 11)
def ConcatFromSequence(c: Importer, sequence: T, *, axis: int, new_axis: int = 0) -> Any:
    if sequence.rows is not None:
        rows = sequence.rows
        if new_axis:
            return moved(rows, 0, axis_in(axis, rows.type.rank))
        return merged(rows, axis_in(axis, rows.type.rank - 1))
    values = [c.value(element) for element in c.elements(sequence)]
    if not values:
        raise ModelError(f"the sequence {sequence.name!r} is empty: the shape of its concatenation is not known")
    rank = values[0].type.rank
    if new_axis:
        at = axis_in(axis, rank + 1)
        values = [ops.reshape(v, shape=(*v.type.shape[:at], 1, *v.type.shape[at:])) for v in values]
        rank += 1
    return ops.concat(*values, axis=axis_in(axis, rank)) if len(values) > 1 else values[0]


@operator("SplitToSequence", 11)
def SplitToSequence(c: Importer, x: T, split: T | None = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    value = c.value(x)
    at = axis_in(axis, value.type.rank)
    size = value.type.shape[at]
    if isinstance(size, Dim):
        c.ask(x, "how many tensors there are in a split of", repeats=True)
    sizes = _split_sizes(c, split, size)
    rows = _rows(value, at, sizes)
    # Beside a split ONNX ignores keepdims; PyTorch's exporter and onnxruntime don't where it is the number 1.
    ones = split is not None and split.type.rank == 0 and set(sizes) <= {1}
    if (split is None or ones) and not keepdims:
        return [ops.reshape(row, shape=(*row.type.shape[:at], *row.type.shape[at + 1 :])) for row in rows]
    return rows


def _split_sizes(c: Importer, split: T | None, size: int) -> list[int]:
    """The sizes of slices along an axis: as they are listed, or equal, but the last may be smaller."""
    if split is None:
        return [1] * _count(size)
    given = list(c.ints(split, "split"))
    if split.type.rank:
        if min(given, default=0) < 0 or sum(given) != size:
            raise ModelError(f"split {given} adds up to {sum(given)}; expected sizes of slices of {size}")
        return given
    if given[0] < 1:
        raise ModelError(f"split is {given[0]}; expected a positive size")
    _count(-(-size // given[0]))
    return [min(given[0], size - start) for start in range(0, size, given[0])]


def _count(tensors: int) -> int:
    """How many tensors an axis is split into, each of which becomes a node."""
    if tensors > MOST_NODES:
        raise ModelError(f"it makes {tensors} tensors; at most {MOST_NODES} are made, a node each")
    return tensors


def _rows(value: Value, axis: int, sizes: Sequence[int]) -> list[Any]:
    """Slices of these sizes, one after the other."""
    found, start = [], 0
    for size in sizes:
        found.append(slice_axis(value, axis, start, start + size))
        start += size
    return found


@operator("SequenceMap", 17)
def SequenceMap(c: Importer, sequence: T, *others: T, body: GraphRecord) -> Any:
    several = [c.elements(t) if t.is_sequence else None for t in (sequence, *others)]
    count = len(c.elements(sequence))
    for other in several:
        if other is not None and len(other) != count:
            raise ModelError(f"its sequences have {count} and {len(other)} elements; expected as many")
    mapped: list[list[T]] = [[] for _ in body.outputs]
    for index in range(count):
        given = [t if many is None else many[index] for t, many in zip((sequence, *others), several, strict=True)]
        with repeating():
            found = c.inlined(body, given)
        for results, result in zip(mapped, found, strict=True):
            results.append(result)
    return tuple(_made(c, results) for results in mapped)


@operator("Optional", 15)
def Optional(c: Importer, x: T | None = None, **attributes: ValueType) -> Any:
    return Tensor(c.node.outputs[0]) if x is None else Identity(c, x)


@operator("OptionalHasElement", 15)
def OptionalHasElement(c: Importer, x: T | None = None) -> Any:
    return Known(filled((), x is not None and not x.is_absent), bool_)


@operator("OptionalGetElement", 15)
def OptionalGetElement(c: Importer, x: T) -> Any:
    if x.is_absent:
        raise ModelError(f"the optional {x.name!r} has no element")
    return Identity(c, x)
