"""Sizes that are unknown at load: conditions on named sizes, and nodes that compute sizes that depend on data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, Value, float64, int64, ops
from dataflow.errors import ModelError
from dataflow.plugin import at_least, least_size

from .emit import cast_to, iota, number
from .importer import Importer
from .shape_eval import axes_in, product
from .tensor import Tensor

T = Tensor
_FAR = (1 << 31) - 1  # ends from here on mean: up to the end; TensorFlow's converter writes this one
_TABLE = 16  # an end of a slice that is so much or more, less a size, counts from the first element
_DISTANT = 10_000_000  # ends from here on mostly do: JAX writes 10^9, Paddle this one; checked once the size is known


def required(value: Value, left: Any, right: Any, text: str, equal: int = 1) -> Any:
    """``value`` where two sizes are equal, or differ with ``equal`` = 0; named ones are compared once they are known.

    Raises:
        ModelError: they are known, and that doesn't hold.
    """
    if not isinstance(left, Dim) and not isinstance(right, Dim):
        if (left == right) != bool(equal):
            raise ModelError(text)
        return value
    return value if equal and left == right else ops.require(value, left=left, right=right, text=text, equal=equal)


def within(operand: Value, shape: Sequence[Any]) -> Any:
    """``operand`` where it broadcasts to ``shape``, so that what is computed with it keeps that shape.

    Raises:
        ModelError: it doesn't; where named sizes decide, an error follows once they are known.
    """
    own = (1,) * (len(shape) - operand.type.rank) + operand.type.shape
    pairs = list(zip(own, shape, strict=False))
    known = [(n, size) for n, size in pairs if not isinstance(n, Dim) and not isinstance(size, Dim)]
    if len(own) != len(shape) or any(n not in (1, size) for n, size in known):
        raise ModelError(f"{operand.type} does not broadcast to shape ({', '.join(map(str, shape))})")
    if all(n == size or (not isinstance(n, Dim) and n == 1) for n, size in pairs):
        return operand
    return ops.broadcast_to(operand, shape=tuple(shape))


def size_value(c: Importer, size: Any) -> Any:
    """A size as an int64 scalar of the graph."""
    if not isinstance(size, Dim):
        return number(c.builder, size, int64)
    return c.builder.add(ops.sizes, (), {"values": (size,), "shape": ()}).outputs[0]


def counts_from_the_end(at: Any) -> bool:
    """Whether an end of a slice is a named size with a minus, as exporters write the last rows, if that is negative.

    A large number less a size is an index into a table of positions, counted from the first.
    """
    least = at_least(-at) if isinstance(at, Dim) else None
    return least is not None and (least >= 0 or (at.is_linear and least > -_TABLE))


def may_not_be_negative(at: Any) -> bool:
    """Whether an end of a slice that is taken for one from the last element may be one from the first."""
    return counts_from_the_end(at) and (at_least(-at) or 0) < 1


def may_lie_before_the_axis(at: Any, step: int, size: Any) -> bool:
    """Whether a slice that goes backwards may begin before an axis, where a size isn't known: at 0 then."""
    if step > 0 or isinstance(at, Dim):
        return step < 0 and counts_from_the_end(at)
    return isinstance(size, Dim) and -_FAR < at < -1


def may_count_from_the_end(at: Any) -> bool:
    """Whether a computed end of a slice, which is taken for one from the beginning, may be negative."""
    if not isinstance(at, Dim) or counts_from_the_end(at):
        return False
    least = at_least(at)
    return least is None or least < 0


def is_taken_for_the_end(at: Any, size: Any) -> bool:
    """Whether ``clamped_ends`` takes an end for one beyond an axis whose size it doesn't know."""
    return isinstance(size, Dim) and not isinstance(at, Dim) and _DISTANT <= at < _FAR


def clamped_ends(start: Any, end: Any, step: int, size: Any, is_read: bool) -> tuple[Any, Any]:
    """Both ends inside an axis, as ops.slice wants them.

    Ends beyond a size that inputs have are clamped once the inputs are there, by converting again. Those of a size
    that is read from data are clamped by expressions, but where the first or the last element alone is taken: nodes
    behind such a slice want an axis of 1.
    """
    open_ended = not is_read or (start == 0 and end == 1) or (start == -1 and not isinstance(end, Dim) and end >= _FAR)

    def from_the_end(at: Any, low: int) -> Any:
        return size + at if open_ended else size - least_size([-at, size - low])

    def clamp(at: Any, low: int, high: Any) -> Any:
        if isinstance(at, Dim):
            beyond = at_least(at - size)
            if beyond is not None and beyond >= 0:
                return high
            return from_the_end(at, low) if counts_from_the_end(at) else at
        at = int(at)
        if at <= -_FAR:
            return low
        if at >= _FAR:
            return high
        if at < 0:
            return from_the_end(at, low) if isinstance(size, Dim) else max(size + at, low)
        if isinstance(high, Dim):
            if open_ended:
                return high if at >= _DISTANT else at
            return at if at == 0 else least_size([at, high])
        return min(at, high)

    if step > 0:
        begin = clamp(start, 0, size)
        stop = clamp(end, 0, size)
        if not isinstance(begin, Dim) and not isinstance(stop, Dim):
            return begin, max(stop, begin)
        ordered = open_ended or begin == 0 or stop == size or isinstance(start, Dim) or isinstance(end, Dim)
        return begin, stop if ordered else begin + stop - least_size([begin, stop])
    if size == 0:
        return -1, -1
    begin, stop = clamp(start, 0, size - 1), clamp(end, -1, size - 1)  # as the standard says, where NumPy has none
    if not open_ended and isinstance(begin, Dim):
        begin = least_size([begin, size - 1])  # of an axis of none
    if not isinstance(begin, Dim) and not isinstance(stop, Dim):
        return begin, min(stop, begin)
    ordered = open_ended or stop == -1 or begin == size - 1 or isinstance(start, Dim) or isinstance(end, Dim)
    return begin, stop if ordered else least_size([begin, stop])


def ends_of_data(c: Importer, x: T, starts: T, ends: T, axes: Any, steps: Any) -> tuple[list[Any], list[Any]]:
    """Starts and ends, of which some are computed: clamped to their axes by nodes, then read."""
    if any(step < 1 for step in steps or ()):
        c.ask(starts if c.constant(starts) is None else ends, "an end of a slice that goes backwards,")
    chosen = axes_in(range(starts.type.elements) if axes is None else axes, len(x.type.shape))
    size = _vector(c, [x.type.shape[axis] for axis in chosen])
    zero, clamped = number(c.builder, 0, int64), []
    for tensor in (starts, ends):
        at = cast_to(c.value(tensor), int64)
        at = ops.where(ops.less(at, zero), ops.add(at, size), at)
        clamped.append(ops.minimum(ops.maximum(at, zero), size))
    clamped[1] = ops.maximum(*clamped)
    names = [f"{what} of {c.node.describe()}" for what in ("start", "end")]
    found = [c.read_sizes(Tensor(name, value), name) for name, value in zip(names, clamped, strict=True)]
    return list(found[0].numbers), list(found[1].numbers)


def window_of_data(c: Importer, x: Value, starts: T, count: int, axes: Any) -> Any:
    """``count`` elements of an axis from a computed start on, in a body, where no size can depend on data.

    A start from which there are fewer is an error, where the slice would be smaller.
    """
    (axis,) = axes_in((0,) if axes is None else axes, x.type.rank)
    size = _vector(c, [x.type.shape[axis]])
    start = ops.reshape(cast_to(c.value(starts), int64), shape=(1,))
    crosses = ops.logical_and(ops.less(start, 0), ops.greater_equal(ops.add(start, count), 0))
    at = ops.add(ops.where(crosses, size, start), iota(c.builder, count))
    return ops.gather(x, at, axis=axis)


def _vector(c: Importer, sizes: Sequence[Any]) -> Any:
    """Sizes as an int64 vector of the graph."""
    if not any(isinstance(n, Dim) for n in sizes):
        return c.builder.constant(np.array(sizes, np.int64))
    return c.builder.add(ops.sizes, (), {"values": tuple(sizes), "shape": (len(sizes),)}).outputs[0]


def target_of_data(c: Importer, value: Value, shape: T, allowzero: int) -> list[Any]:
    """The computed shape of a reshape; nodes replace 0 by the size it copies, and -1 by the size that remains."""
    wanted = c.value(shape)
    if wanted.type.rank != 1 or not wanted.type.is_bound or wanted.type.dtype != int64 or not wanted.type.elements:
        return c.sizes(shape, "the shape")  # which says what is wrong
    count = wanted.type.elements
    zero, one = number(c.builder, 0, int64), number(c.builder, 1, int64)
    if not allowzero:
        own = [*value.type.shape[:count], *(0,) * (count - value.type.rank)]
        wanted = ops.where(ops.equal(wanted, zero), _vector(c, own), wanted)
    open_ = ops.equal(wanted, number(c.builder, -1, int64))
    rest = ops.reduce_prod(ops.where(open_, one, wanted), axes=(0,), keepdims=0)
    total = size_value(c, product(value.type.shape)) if value.type.rank else one
    left = ops.div(total, ops.maximum(rest, one))
    name = f"shape of {c.node.describe()}"
    return list(c.read_sizes(Tensor(name, ops.where(open_, left, wanted)), name).numbers)


def expansion_of_data(c: Importer, x: T, shape: T) -> list[Any]:
    """The computed target of an expansion: where it is 1, the operand's own size."""
    wanted, own = c.value(shape), x.type.shape
    if wanted.type.rank != 1 or not wanted.type.is_bound or wanted.type.dtype != int64 or not wanted.type.elements:
        return c.sizes(shape, "the shape")
    count = wanted.type.elements
    tail = [*(1,) * (count - len(own)), *own[max(0, len(own) - count) :]]
    name = f"shape of {c.node.describe()}"
    one = number(c.builder, 1, int64)
    return list(c.read_sizes(Tensor(name, ops.where(ops.equal(wanted, one), _vector(c, tail), wanted)), name).numbers)


def range_of_data(c: Importer, start: Value, limit: Value, delta: Value) -> Any:
    """A range of computed ends: nodes compute its length, which is read, and its elements."""
    dtype = start.type.dtype
    first, last, step = (ops.cast(ops.reshape(v, shape=()), to=float64) for v in (start, limit, delta))
    count = ops.maximum(ops.ceil(ops.div(ops.sub(last, first), step)), 0.0)
    length = c.count(ops.cast(count, to=int64), "length")
    index = ops.cast(iota(c.builder, length), to=dtype)
    return ops.add(ops.reshape(start, shape=()), ops.mul(index, ops.reshape(delta, shape=())))
