"""Converters of reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Value, bool_, float32, float64, int64, nn, ops, uint8, uint64
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import cast_to, upcast
from ..importer import Importer
from ..shape_eval import axes_in
from ..tensor import Tensor

T = Tensor
operator = Collector()


_OF_NOTHING = {"ReduceMax": -1, "ReduceMin": 1, "ReduceLogSumExp": -1}  # the sign of what ONNX gives

_OF_FLOATS = ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")  # of integers: rounded towards zero

_COMPOSED = ("ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")  # of 16 bits: in float32, then rounded


def _of_nothing(name: str, x: Value, axes: Sequence[int], keepdims: int) -> Any:
    """The identity of a maximum or minimum, for a reduction over no elements: an infinity or a limit of the dtype."""
    sign, dtype = _OF_NOTHING[name], x.type.dtype
    fill: Any = sign * float("inf")
    if dtype == bool_:
        fill = sign > 0
    elif dtype.is_int:
        limits = np.iinfo(dtype.numpy)
        fill = limits.max if sign > 0 else limits.min
    shape = ops.reduce_sum(ops.cast(x, to=float32), axes=axes, keepdims=keepdims).type.shape
    assert x.builder is not None
    number = x.builder.constant(np.full((), fill, dtype.numpy))
    return ops.broadcast_to(number, shape=shape)


def _euclidean_norm(x: Value, axes: Sequence[int], keepdims: int) -> Any:
    """``sqrt(sum of squares)``, whose gradient at 0 is taken as 0: that of sqrt is infinite there."""
    squares = ops.reduce_sum(ops.mul(x, x), axes=axes, keepdims=keepdims)
    zero, one = (x.builder.scalar(n, x.type.dtype) for n in (0.0, 1.0))  # type: ignore[union-attr]
    nothing = ops.equal(squares, zero)
    return ops.where(nothing, zero, ops.sqrt(ops.where(nothing, one, squares)))


def _mean_of_integers(x: Value, axes: Sequence[int], keepdims: int) -> Any:
    """The mean of 64-bit integers, rounded towards zero and exact where float64 rounds what it adds.

    Quotients by the count and remainders are added up apart: neither sum leaves the 64 bits.
    """
    zero, one = (x.builder.scalar(i, x.type.dtype) for i in (0, 1))  # type: ignore[union-attr]
    over: dict[str, Any] = {"axes": tuple(axes), "keepdims": True}
    count = ops.reduce_sum(ops.broadcast_to(one, shape=x.type.shape), **over)
    count = ops.maximum(count, one)
    each = ops.div(x, count)
    rest = ops.reduce_sum(ops.sub(x, ops.mul(each, count)), **over)
    more = ops.div(rest, count)
    quotient, rest = ops.add(ops.reduce_sum(each, **over), more), ops.sub(rest, ops.mul(more, count))
    below = ops.logical_and(ops.greater(quotient, zero), ops.less(rest, zero))
    above = ops.logical_and(ops.less(quotient, zero), ops.greater(rest, zero))
    found = ops.add(ops.where(below, ops.sub(quotient, one), quotient), ops.cast(above, to=x.type.dtype))
    return found if keepdims else ops.reduce_sum(found, axes=tuple(axes), keepdims=False)


def _reduced(name: str, x: Value, axes: Sequence[int], keepdims: int) -> Any:
    """One of ONNX's reductions, in terms of the ops."""
    over: dict[str, Any] = {"axes": tuple(axes), "keepdims": keepdims}
    if name in _OF_NOTHING and any(x.type.shape[a] == 0 for a in axes_in(axes, x.type.rank)):
        return _of_nothing(name, x, **over)
    if x.type.dtype in (int64, uint64) and name == "ReduceMean":
        return _mean_of_integers(x, **over)
    raised = upcast(x) if name in _COMPOSED else x
    if raised is not x:
        return cast_to(_reduced(name, raised, **over), x.type.dtype)
    if x.type.dtype.is_int and name in _OF_FLOATS:
        return ops.cast(_reduced(name, ops.cast(x, to=float64), **over), to=x.type.dtype)
    if name == "ReduceL1":
        return ops.reduce_sum(ops.abs(x), **over)
    if name == "ReduceL2":
        return _euclidean_norm(x, **over)
    if name == "ReduceSumSquare":
        return ops.reduce_sum(ops.mul(x, x), **over)
    if name == "ReduceLogSum":
        return ops.log(ops.reduce_sum(x, **over))
    if name == "ReduceLogSumExp":
        return nn.logsumexp(x, tuple(axes), keepdims=bool(keepdims))
    own = {"ReduceSum": ops.reduce_sum, "ReduceMean": ops.reduce_mean, "ReduceMax": ops.reduce_max}
    own |= {"ReduceMin": ops.reduce_min, "ReduceProd": ops.reduce_prod}
    if x.type.dtype == bool_ and name in ("ReduceMax", "ReduceMin"):
        return ops.cast(own[name](ops.cast(x, to=uint8), **over), to=bool_)
    return own[name](x, **over)


def _reduce(name: str, since: int) -> None:
    """Until opset ``since`` the axes are an attribute, from then on an input."""

    @operator(name)
    def by_attribute(c: Importer, x: T, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Any:
        value = c.value(x)
        return _reduced(name, value, range(value.type.rank) if axes is None else axes, keepdims)

    @operator(name, since)
    def by_input(c: Importer, x: T, axes: T | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        value = c.value(x)
        chosen = None if axes is None else c.ints(axes, "axes")
        if not chosen:
            if noop_with_empty_axes:
                return _over_no_axes(name, value) if name != "ReduceSum" else x
            chosen = tuple(range(value.type.rank))
        return _reduced(name, value, chosen, keepdims)


def _over_no_axes(name: str, x: Value) -> Any:
    """A reduction over no axes: the function that it applies to each element."""
    return _reduced(name, x, (), 1)


for _name in [
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
]:
    _reduce(_name, 18)


_reduce("ReduceSum", 13)


@operator("ArgMax")
def ArgMax(c: Importer, x: T, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return ops.argmax(c.value(x), axis=axis, keepdims=keepdims, select_last_index=select_last_index)


@operator("ArgMin")
def ArgMin(c: Importer, x: T, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return ops.argmin(c.value(x), axis=axis, keepdims=keepdims, select_last_index=select_last_index)


def p_norm(value: Value, p: int, axes: Sequence[int]) -> Any:
    if p == 1:
        return ops.reduce_sum(ops.abs(value), axes=tuple(axes), keepdims=1)
    if p == 2:
        return _euclidean_norm(value, tuple(axes), 1)
    if p < 1:
        raise ModelError(f"p is {p}; expected at least 1")
    total = ops.reduce_sum(ops.pow(ops.abs(value), float(p)), axes=tuple(axes), keepdims=1)
    return ops.pow(total, 1.0 / p)
