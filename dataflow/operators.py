"""Operators, slicing and the few methods of a Value: each adds nodes to its builder.

What they take is what NumPy takes: numbers and arrays beside a value become constants of its dtype, and slices
are clamped to the axis.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from . import ops
from .errors import InputError
from .graph import Array, Value
from .op import Op
from .ops.rules import normal_axis, product
from .types import Dim, Size

Operand = Value | complex | np.generic | Array | Sequence[Any]


def binary(op: Op, a: Operand, b: Operand) -> Value:
    """``op`` of two operands, one of which is a value.

    Raises:
        InputError: the other has a number that the value's dtype doesn't hold, or the op refuses their types.
    """
    like = a if isinstance(a, Value) else b
    assert isinstance(like, Value)
    return cast("Value", op(_operand(op, a, like), _operand(op, b, like)))


def divided(a: Operand, b: Operand) -> Value:
    """a / b, of floats.

    Raises:
        InputError: they are whole numbers, whose quotient has another dtype in Python than here.
    """
    for side in (a, b):
        if isinstance(side, Value) and not side.type.dtype.is_float:
            raise InputError(
                f"/ of {side.name!r}, which is {side.type}: expected a float; cast it first, or use df.ops.div, "
                "which rounds towards zero"
            )
    return binary(ops.div, a, b)


def _operand(op: Op, item: Operand, like: Value) -> Value:
    """``item``, as a constant of the dtype of ``like`` if it is none yet."""
    if isinstance(item, Value):
        return item
    assert like.builder is not None
    given, dtype = np.asarray(item), like.type.dtype
    with np.errstate(all="ignore"):
        array = given.astype(dtype.numpy) if given.dtype.kind in "biuf" else None
    # Floats may be rounded; whole numbers and bools are kept exactly or refused.
    if array is None or not (dtype.is_float or np.array_equal(array, given)):
        raise InputError(
            f"{op.name} of {like.name!r}, which is {like.type}, and {item!r}: expected what {dtype} can hold; "
            "cast the value first"
        )
    return like.builder.scalar(array.item(), dtype) if array.ndim == 0 else like.builder.constant(array)


# ---- x[...] -------------------------------------------------------------------------------------------


def sliced(x: Value, key: Any) -> Value:
    """``x[key]`` for ints, slices, None (a new axis) and Ellipsis, as in NumPy.

    Along an axis of a named size nothing can be clamped: a range that leaves it is an error when the size is known.

    Raises:
        InputError: too many indices, one outside its axis, or one that is something else.
    """
    items = _expanded(x, key if isinstance(key, tuple) else (key,))
    ranges: list[tuple[Size, Size, int]] = []
    shape: list[Size | None] = []  # of the result; None stands for the size of the axis at this place
    for item in items:
        if item is None:
            shape.append(1)
            continue
        axis = len(ranges)
        if isinstance(item, slice):
            ranges.append(_range(x, axis, item))
            shape.append(None)
        else:
            at = _index(x, axis, item)
            ranges.append((at, at + 1, 1))
            shape.append(-1)
    whole = all(r == (0, d, 1) for r, d in zip(ranges, x.shape, strict=True))
    read = x
    if not whole:
        starts, stops, steps = zip(*ranges, strict=True)
        read = ops.slice(x, starts=starts, stops=stops, steps=steps)
    sizes = iter(read.shape)
    result: list[Size] = []
    for place in shape:
        if place == 1:
            result.append(1)
            continue
        size = next(sizes)
        if place is None:
            result.append(size)
    return read if tuple(result) == read.shape else cast("Value", ops.reshape(read, shape=tuple(result)))


def _expanded(x: Value, items: tuple[Any, ...]) -> list[Any]:
    """The items with full slices for Ellipsis and for the axes that are left over."""
    count = sum(item is not None and item is not Ellipsis for item in items)
    places = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(places) > 1:
        raise InputError(f"slice of {x.name!r}: '...' comes {len(places)} times; expected once at most")
    if count > x.type.rank:
        raise InputError(f"slice of {x.name!r}: {count} indices for {x.type}, which has {x.type.rank} axes")
    at = places[0] if places else len(items)
    return [*items[:at], *[slice(None)] * (x.type.rank - count), *items[at + 1 :]]


def _whole(x: Value, axis: int, item: Any) -> int:
    """``item`` as an int."""
    where = f"slice of {x.name!r}, axis {axis}"
    if isinstance(item, Value):
        raise InputError(f"{where}: index {item!r} is a value; use df.ops.gather(x, indices, axis={axis})")
    if isinstance(item, (bool, np.bool_, list, tuple, np.ndarray)):
        raise InputError(
            f"{where}: got {item!r}; expected an int, a slice, None or ...; use df.ops.gather(x, indices, axis={axis}) "
            "for several indices and df.ops.where for a mask"
        )
    try:
        return operator.index(item)
    except TypeError:
        raise InputError(f"{where}: got {item!r}; expected an int, a slice, None or ...") from None


def _index(x: Value, axis: int, item: Any) -> Size:
    """A single index, counted from the front."""
    at, size = _whole(x, axis, item), x.shape[axis]
    if isinstance(size, int) and not -size <= at < size:
        raise InputError(f"slice of {x.name!r}, axis {axis}: index {at} is outside {x.type}; its size is {size}")
    return size + at if at < 0 else at


def _range(x: Value, axis: int, item: slice) -> tuple[Size, Size, int]:
    """Start, stop and step as the slice op takes them: from the front, stop -1 before the first element."""
    size = x.shape[axis]
    start, stop, step = (
        None if part is None else _whole(x, axis, part) for part in (item.start, item.stop, item.step)
    )
    if step == 0:
        raise InputError(f"slice of {x.name!r}, axis {axis}: the step is 0")
    step = 1 if step is None else step
    if isinstance(size, Dim):
        first, last = (0, size) if step > 0 else (size - 1, -1)
        return _from_front(start, size, first), _from_front(stop, size, last), step
    begin, end, _ = slice(start, stop, step).indices(size)
    empty = len(range(begin, end, step)) == 0
    return (0, 0, 1) if empty else (begin, end, step)


def _from_front(at: int | None, size: Dim, default: Size) -> Size:
    if at is None:
        return default
    return size + at if at < 0 else at


# ---- methods ------------------------------------------------------------------------------------------


def reshaped(x: Value, shape: Sequence[Size]) -> Value:
    """``x`` under another shape, of which one size may be -1: what is left.

    Raises:
        InputError: the sizes don't fit.
    """
    unknown = [i for i, d in enumerate(shape) if not isinstance(d, Dim) and d == -1]
    sizes = list(shape)
    if len(unknown) > 1:
        raise InputError(f"reshape of {x.name!r}: -1 comes {len(unknown)} times in {tuple(shape)}; expected once at most")
    if unknown:
        total, rest = product(x.shape), product([d for i, d in enumerate(sizes) if i != unknown[0]])
        if rest == 0 or (isinstance(total, int) and isinstance(rest, int) and total % rest):
            raise InputError(
                f"reshape of {x.name!r}: {x.type} has {total} elements, which {tuple(shape)} can't share out evenly"
            )
        sizes[unknown[0]] = total // rest
    return cast("Value", ops.reshape(x, shape=tuple(sizes)))


def transposed(x: Value, perm: Sequence[int]) -> Value:
    """``x`` with its axes in the order ``perm``; in reverse order for none.

    Raises:
        InputError: ``perm`` is no order of the axes.
    """
    rank = x.type.rank
    order = tuple(normal_axis("transpose", p, rank) for p in perm) if perm else tuple(reversed(range(rank)))
    return cast("Value", ops.transpose(x, perm=order))


def reduced(op: Op, x: Value, axes: int | Sequence[int] | None, keepdims: bool) -> Value:
    """``op`` over ``axes``; over all of them for None.

    Raises:
        InputError: an axis doesn't exist or comes twice.
    """
    over = range(x.type.rank) if axes is None else (axes,) if isinstance(axes, int) else axes
    return cast("Value", op(x, axes=tuple(over), keepdims=int(keepdims)))
