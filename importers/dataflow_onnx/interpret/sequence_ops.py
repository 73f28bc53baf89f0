"""Operators on sequences and optionals, for arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataflow.errors import InputError

from ..file.records import Array, NodeRecord
from .frames import Item

Operator = Callable[..., Any]


def _elements(item: Item) -> list[Array]:
    if not isinstance(item, list):
        what = "an optional without an element" if item is None else f"a tensor, {item.dtype}{list(item.shape)}"
        raise InputError(f"its input is {what}; expected a sequence")
    return item


def tensor(item: Item) -> Array:
    """A tensor.

    Raises:
        InputError: it is a sequence, or absent.
    """
    if item is None or isinstance(item, list):
        what = "an optional without an element" if item is None else f"a sequence of {len(item)} tensors"
        raise InputError(f"its input is {what}; expected a tensor")
    return item


def number(item: Item) -> Any:
    """The only element of a tensor.

    Raises:
        InputError: it has none, or several.
    """
    array = tensor(item)
    if array.size != 1:
        raise InputError(f"its input is {array.dtype}{list(array.shape)}; expected one element")
    return array.reshape(())[()]


def made(elements: Sequence[Array]) -> list[Array]:
    """A sequence, of tensors of one dtype.

    Raises:
        InputError: their dtypes differ.
    """
    dtypes = list(dict.fromkeys(element.dtype for element in elements))
    if len(dtypes) > 1:
        raise InputError(f"it puts {dtypes[0]} and {dtypes[1]} into one sequence; expected tensors of one dtype")
    return list(elements)


def _position(item: Item, count: int, last: int) -> int:
    position = int(number(item))
    if not -count <= position <= last:
        raise InputError(f"the position is {position}; expected one from {-count} to {last}")
    return position + count if position < 0 else position


def _at(sequence: Item, position: Item) -> Array:
    elements = _elements(sequence)
    return elements[_position(position, len(elements), len(elements) - 1)]


def _insert(sequence: Item, element: Item, position: Item = None) -> list[Array]:
    elements = _elements(sequence)
    at = len(elements) if position is None else _position(position, len(elements), len(elements))
    if elements and elements[0].dtype != tensor(element).dtype:
        made([elements[0], tensor(element)])
    return [*elements[:at], tensor(element), *elements[at:]]


def _erase(sequence: Item, position: Item = None) -> list[Array]:
    elements = list(_elements(sequence))
    if not elements:
        raise InputError("the sequence is empty")
    del elements[len(elements) - 1 if position is None else _position(position, len(elements), len(elements) - 1)]
    return elements


def _concatenated(sequence: Item, *, axis: int, new_axis: int = 0) -> Array:
    elements = _elements(sequence)
    if not elements:
        raise InputError("the sequence is empty: the shape of its concatenation is not known")
    try:
        joined = np.stack(elements, axis) if new_axis else np.concatenate(elements, axis)
    except ValueError as error:
        raise InputError(f"its tensors don't fit: {error}") from None
    return np.ascontiguousarray(joined)


def _split(x: Item, split: Item = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    array = tensor(x)
    if not -array.ndim <= axis < array.ndim:
        raise InputError(f"the axis is {axis}; the tensor has {array.ndim}")
    size = array.shape[axis]
    if split is None:
        sizes = [1] * size
    elif tensor(split).ndim:
        sizes = [int(n) for n in tensor(split)]
        if min(sizes, default=0) < 0 or sum(sizes) != size:
            raise InputError(f"split {sizes} adds up to {sum(sizes)}; expected sizes of slices of {size}")
    else:
        step = int(number(split))
        if step < 1:
            raise InputError(f"split is {step}; expected a positive size")
        sizes = [min(step, size - start) for start in range(0, size, step)]
    ones = split is not None and tensor(split).ndim == 0 and set(sizes) <= {1}  # see the importer's converter
    squeezed = (split is None or ones) and not keepdims
    found, start = [], 0
    for count in sizes:
        row = array[(slice(None),) * (axis % array.ndim) + (slice(start, start + count),)]
        found.append(np.squeeze(row, axis) if squeezed else row)
        start += count
    return [np.array(row, order="C") for row in found]


def _get(item: Item) -> Item:
    if item is None:
        raise InputError("the optional has no element")
    return item


OPERATORS: dict[str, Operator] = {
    "SequenceConstruct": lambda *elements: made([tensor(element) for element in elements]),
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": lambda sequence: np.array(len(_elements(sequence)), np.int64),
    "ConcatFromSequence": _concatenated,
    "SplitToSequence": _split,
    "Optional": lambda item=None, **_: item,
    "OptionalHasElement": lambda item=None: np.array(item is not None),
    "OptionalGetElement": _get,
}


def runs(node: NodeRecord) -> bool:
    """Whether a node is one of these."""
    return not node.domain and node.op in OPERATORS
