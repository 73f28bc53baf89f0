"""Operators, slicing and the few methods of a Value: each adds nodes to its builder.

What they take is what NumPy takes: numbers and arrays beside a value become constants of its dtype, and slices
are clamped to the axis. Sizes that have names are numbers, too: x[: x.shape[0] // 2].
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import InputError
from ...host import checks
from ...ir.dims import Dim, Size, at_least, least_size
from ...ir.types import bool_
from ...ir.value import Value, ValueLike, refuse_bool
from ..arithmetic import abs_, add, div, mod, mul, neg, pow_, sub
from ..dynamic_shape import require
from ..infer import normal_axis, product
from ..linalg import matmul
from ..logic import (
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from ..reduce import reduce_mean, reduce_sum
from ..shape import reshape, slice_, transpose

_CONNECTIVES = (logical_and, logical_or, logical_xor, bitwise_and, bitwise_or, bitwise_xor)
_BINARY = {op.name: op for op in (add, sub, mul, div, pow_, mod, matmul, *_CONNECTIVES)}
_UNARY = {op.name: op for op in (neg, abs_)}
_REDUCTIONS = {op.name: op for op in (reduce_sum, reduce_mean)}


def binary(name: str, a: ValueLike, b: ValueLike) -> Value:
    """The op called ``name`` of two operands, one of which is a value.

    Raises:
        InputError: the other has a number that the value's dtype doesn't hold, or the op refuses their types.
    """
    like = a if isinstance(a, Value) else b
    assert isinstance(like, Value)
    return _BINARY[name](_operand(name, a, like), _operand(name, b, like))


def divided(a: ValueLike, b: ValueLike) -> Value:
    """The quotient a / b, of floats.

    Raises:
        InputError: they are whole numbers, whose quotient has another dtype in Python than here.
    """
    for side in (a, b):
        if isinstance(side, Value) and not side.type.dtype.is_float:
            raise InputError(
                f"/ of {side.name!r}, which is {side.type}: expected a float; cast it first, or use df.ops.div, "
                "which rounds towards zero"
            )
    return binary("div", a, b)


def connected(name: str, a: ValueLike, b: ValueLike) -> Value:
    """``and``, ``or`` or ``xor`` of bools, or of the bits of integers.

    Raises:
        InputError: the values are of floats, or differ in dtype.
    """
    like = a if isinstance(a, Value) else b
    assert isinstance(like, Value)
    return binary(f"{_connective(like)}_{name}", a, b)


def unary(name: str, x: Value) -> Value:
    """The op called ``name`` of a value."""
    return _UNARY[name](x)


def inverted(x: Value) -> Value:
    """``~x``, of bools or of the bits of integers.

    Raises:
        InputError: the value is of floats.
    """
    return logical_not(x) if _connective(x) == "logical" else bitwise_not(x)


def _connective(x: Value) -> str:
    """The family of the ops that ``&``, ``|``, ``^`` and ``~`` of the value are."""
    return "logical" if x.type.dtype is bool_ else "bitwise"


def _operand(name: str, item: ValueLike, like: Value) -> Value:
    """``item``, as a constant of the dtype of ``like`` if it is no value yet."""
    if isinstance(item, Value):
        return item
    assert like.builder is not None
    refuse_bool(name, like, item)
    dtype = like.type.dtype
    try:
        given = np.asarray(item)
    except ValueError:  # rows of different lengths
        given = np.empty((), object)
    except Exception:  # of an object that refuses
        given = checks.array(f"{name} of {like.name!r}: an operand", item)
    known = given.dtype.kind in "biuf" or given.dtype == dtype.numpy
    with np.errstate(all="ignore"):
        array = given.astype(dtype.numpy) if known else given
    # Floats may be rounded; whole numbers and bools are kept exactly or refused.
    if not known or not (dtype.is_float or np.array_equal(array, given)):
        raise InputError(
            f"{name} of {like.name!r}, which is {like.type}, and {item!r}: expected what {dtype} can hold; "
            "cast the value first"
        )
    return like.builder.scalar(array.item(), dtype) if array.ndim == 0 else like.builder.constant(array)


# ---- x[...] -------------------------------------------------------------------------------------------


def sliced(x: Value, key: Any) -> Value:
    """``x[key]`` for ints, slices, None (a new axis) and Ellipsis, as in NumPy.

    Along an axis of a named size nothing can be clamped: a range of elements that leaves it is an error when the size
    is known. So is a size as an index or end where it could be negative or not, if it is not what it was taken for.

    Raises:
        InputError: too many indices, one outside its axis, or one that is something else.
    """
    items = _expanded(x, key if isinstance(key, tuple) else (key,))
    ranges: list[tuple[Size, Size, int]] = []
    for item in items:
        if item is not None:
            ranges.append(_range(x, len(ranges), item))
    read = _of_known_signs(x, [item for item in items if item is not None])
    if any(r != (0, size, 1) for r, size in zip(ranges, x.shape, strict=True)):
        starts, stops, steps = zip(*ranges, strict=True)
        read = slice_(read, starts=starts, stops=stops, steps=steps)
    sizes, shape = iter(read.shape), []
    for item in items:
        size = 1 if item is None else next(sizes)
        if item is None or isinstance(item, slice):  # the axis of a single index goes
            shape.append(size)
    return read if tuple(shape) == read.shape else reshape(read, shape=tuple(shape))


def _expanded(x: Value, items: tuple[Any, ...]) -> list[Any]:
    """The items with full slices for Ellipsis and for the axes that are left over."""
    count = sum(item is not None and item is not Ellipsis for item in items)
    ellipses = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise InputError(f"slice of {x.name!r}: '...' comes {len(ellipses)} times; expected once at most")
    if count > x.type.rank:
        raise InputError(f"slice of {x.name!r}: {count} indices for {x.type}, which has {x.type.rank} axes")
    at = ellipses[0] if ellipses else len(items)
    return [*items[:at], *[slice(None)] * (x.type.rank - count), *items[at + 1 :]]


def _index(x: Value, axis: int, item: Any) -> Size:
    """``item`` as an int, or the size that it is."""
    where = f"slice of {x.name!r}, axis {axis}"
    if isinstance(item, Value):
        raise InputError(f"{where}: index {item!r} is a value; use df.ops.gather(x, indices, axis={axis})")
    if isinstance(item, (bool, np.bool_, list, tuple, np.ndarray)):
        raise InputError(
            f"{where}: got {item!r}; expected an int, a slice, None or ...; use df.ops.gather(x, indices, axis={axis}) "
            "for several indices and df.ops.where for a mask"
        )
    try:
        return item if isinstance(item, Dim) else operator.index(item)
    except TypeError:
        raise InputError(f"{where}: got {item!r}; expected an int, a slice, None or ...") from None


def _range(x: Value, axis: int, item: Any) -> tuple[Size, Size, int]:
    """Start, stop and step as the slice op takes them: from the front, stop -1 before the first element."""
    size = x.shape[axis]
    if not isinstance(item, slice):
        at = _index(x, axis, item)
        if not isinstance(size, Dim) and not isinstance(at, Dim) and not -size <= at < size:
            raise InputError(f"slice of {x.name!r}, axis {axis}: index {at} is outside {x.type}; its size is {size}")
        first = _from_front(at, size)
        return first, first + 1, 1
    start, stop, step = (None if end is None else _index(x, axis, end) for end in (item.start, item.stop, item.step))
    if step == 0:
        raise InputError(f"slice of {x.name!r}, axis {axis}: the step is 0")
    if isinstance(step, Dim):
        raise InputError(f"slice of {x.name!r}, axis {axis}: the step is the size {step}; expected an int")
    step = 1 if step is None else step
    if isinstance(size, Dim) or isinstance(start, Dim) or isinstance(stop, Dim):
        first, last = (0, size) if step > 0 else (size - 1, -1)
        begin = first if start is None else _from_front(start, size)
        return begin, last if stop is None else _from_front(stop, size), step
    inside = range(*slice(start, stop, step).indices(size))
    return (inside.start, inside.stop, step) if inside else (0, 0, 1)


def _from_front(at: Size, size: Size) -> Size:
    """An index or end counted from the first element, as a size is that can be positive."""
    negative = _never_positive(at) if isinstance(at, Dim) else at < 0
    return size + at if negative else at


def _never_positive(at: Dim) -> bool:
    least = at_least(-at)
    return least is not None and least >= 0


def _of_known_signs(x: Value, items: Sequence[Any]) -> Value:
    """``x`` where sizes among its indices and ends have the signs that they were taken for."""
    ends = ((axis, at) for axis, item in enumerate(items) for at in _ends(item) if isinstance(at, Dim))
    read = x
    for axis, at in ends:
        where, least, most = f"slice of {x.name!r}, axis {axis}: the index or end {at}", at_least(at), at_least(-at)
        if most == 0:
            text = f"{where} is 0, which doesn't count from the end"
            read = require(read, left=at, right=0, equal=False, text=text)
        elif not _never_positive(at) and (least is None or least < 0):
            text = f"{where} is negative; give one that counts from the end as a number, e.g. x[:-1]"
            read = require(read, left=least_size([0, at]), right=0, text=text)
    return read


def _ends(item: Any) -> tuple[Any, ...]:
    return (item.start, item.stop) if isinstance(item, slice) else (item,)


# ---- methods ------------------------------------------------------------------------------------------


def reshaped(x: Value, shape: Sequence[Any]) -> Value:
    """``x`` under another shape, of which one size may be -1: what is left.

    Raises:
        InputError: the sizes don't fit.
    """
    sizes: list[Size] = [d if isinstance(d, Dim) else _int("reshape", x, d) for d in _spelt_out(shape)]
    unknown = [i for i, d in enumerate(sizes) if d == -1]
    listed = f"({', '.join(map(str, sizes))})"
    if len(unknown) > 1:
        raise InputError(f"reshape of {x.name!r}: -1 comes {len(unknown)} times in {listed}; expected once at most")
    if unknown:
        total, rest = product(x.shape), product([d for d in sizes if d != -1])
        if rest == 0 or (isinstance(total, int) and isinstance(rest, int) and total % rest):
            raise InputError(f"reshape of {x.name!r}: no size instead of -1 in {listed} gives the elements of {x.type}")
        sizes[unknown[0]] = total // rest
    return reshape(x, shape=tuple(sizes))


def transposed(x: Value, perm: Sequence[Any]) -> Value:
    """``x`` with its axes in the order ``perm``; in reverse order for none.

    Raises:
        InputError: ``perm`` is no order of the axes.
    """
    order = tuple(normal_axis("transpose", _int("transpose", x, p), x.type.rank) for p in _spelt_out(perm))
    return transpose(x, perm=order if perm else tuple(reversed(range(x.type.rank))))


def reduced(name: str, x: Value, axes: int | Sequence[int] | None, keepdims: bool) -> Value:
    """The reduction called ``name`` over ``axes``; over all of them for None.

    Raises:
        InputError: an axis doesn't exist or comes twice.
    """
    given = range(x.type.rank) if axes is None else axes if isinstance(axes, Sequence) else (axes,)
    over = tuple(_int(name, x, a) for a in given)
    return _REDUCTIONS[name](x, axes=over, keepdims=keepdims)


def _spelt_out(given: Sequence[Any]) -> Sequence[Any]:
    """The numbers themselves, or the one sequence of them."""
    return given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _int(name: str, x: Value, number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise InputError(f"{name} of {x.name!r}: got {number!r}; expected an int") from None
