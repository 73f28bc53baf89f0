"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..ir.dims import Dim, Shape
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import TensorType, int64
from ..ir.value import Value
from .arithmetic import div, mul
from .cast import cast
from .infer import (
    builder_for,
    need_float,
    need_number,
    normal_axes,
    normal_axis,
    operand,
    product,
    reduced,
    reduced_shape,
    result,
    scalar_like,
)
from .logic import equal
from .scatter import zeros_like
from .shape import broadcast_to, reshape, transpose
from .sort import linear_recurrence, shifted

_AXES: dict[str, Any] = {"axes": REQUIRED, "keepdims": True}


def _broadcast_back(node: Node, value: Value) -> Value:
    """A reduced value broadcast back to the shape of the node's input."""
    x = operand(node)
    axes = normal_axes(node.op.name, node.attributes["axes"], x.type.rank)
    kept = reduced_shape(x.type.shape, axes, True)
    if value.type.shape != kept:
        value = reshape(value, shape=kept)
    return broadcast_to(value, shape=x.type.shape)


def _mean_gradient(node: Node, dy: Value) -> Value:
    x = operand(node)
    return _broadcast_back(node, over_count(dy, x, **node.attributes))


def over_count(value: Value, x: Value, *, axes: Sequence[int], keepdims: bool) -> Value:
    """A value divided by how many elements of x a reduction takes for each result."""
    count = product([x.type.shape[a] for a in normal_axes("reduce_mean", axes, x.type.rank)])
    if isinstance(count, Dim):  # counted in the graph: it folds away once the size is known
        ones = broadcast_to(scalar_like(x, 1), shape=x.type.shape)
        return div(value, reduce_sum(ones, axes=axes, keepdims=keepdims))
    return mul(value, builder_for(value).scalar_of(max(count, 1), lambda n: 1.0 / n, value.type.dtype))


def _extreme_gradient(node: Node, dy: Value) -> Value:
    """Shared evenly among the elements that are the extreme."""
    x = operand(node)
    hit = cast(equal(x, _broadcast_back(node, result(node))), to=x.type.dtype)
    axes = node.attributes["axes"]
    count = reduce_sum(hit, axes=axes, keepdims=node.attributes["keepdims"])
    return mul(hit, _broadcast_back(node, div(dy, count)))


def _mean_infer(x: TensorType, *, axes: Sequence[int], keepdims: bool) -> TensorType:
    need_float("reduce_mean", x)
    return reduced("reduce_mean")(x, axes=axes, keepdims=keepdims)


def _prod_gradient(node: Node, dy: Value) -> Value:
    """Times the product of the other elements: of those before each one, times that of those behind it.

    Nothing is divided by what may be 0, and no element stands for another number, so that derivatives of any order are
    those of the product.
    """
    x = operand(node)
    axes = normal_axes(node.op.name, node.attributes["axes"], x.type.rank)
    cotangent = _broadcast_back(node, dy)
    if not axes:
        return cotangent
    if len(axes) == 1:
        return mul(cotangent, _others(x, axes[0]))
    left = [axis for axis in range(x.type.rank) if axis not in axes]
    order = [*left, *axes]
    moved = transpose(x, perm=order)
    rows = reshape(moved, shape=(*moved.type.shape[: len(left)], product([x.type.shape[a] for a in axes])))
    others = reshape(_others(rows, len(left)), shape=moved.type.shape)
    return mul(cotangent, transpose(others, perm=[order.index(axis) for axis in range(x.type.rank)]))


def _others(x: Value, axis: int) -> Value:
    """For each element the product of all others along an axis."""

    def before(reverse: bool) -> Value:
        first = shifted(zeros_like(x), axis, reverse, first=1)
        found: Value = linear_recurrence(shifted(x, axis, reverse), first, axis=axis, reverse=reverse)
        return found

    return mul(before(False), before(True))


def _numbers_infer(name: str) -> Any:
    """Of numbers: a sum of bools would be one, whether any holds, where NumPy counts."""

    def infer(x: TensorType, *, axes: Sequence[int], keepdims: bool) -> TensorType:
        need_number(name, x)
        return reduced(name)(x, axes=axes, keepdims=keepdims)

    return infer


def _reduce(name: str, gradient: Any, doc: str, infer: Any = None) -> Op:
    return Op(
        name,
        ("x",),
        infer or reduced(name),
        attributes=_AXES,
        gradient=gradient,
        reduction=True,
        cost=lambda n: sum(v.type.elements for v in n.inputs if v is not None),
        doc=doc,
    )


reduce_sum: Op = _reduce("reduce_sum", _broadcast_back, "the sum over axes", _numbers_infer("reduce_sum"))
reduce_mean: Op = _reduce("reduce_mean", _mean_gradient, "the mean over axes", _mean_infer)
reduce_max: Op = _reduce("reduce_max", _extreme_gradient, "the largest over axes")
reduce_min: Op = _reduce("reduce_min", _extreme_gradient, "the smallest over axes")
reduce_prod: Op = _reduce("reduce_prod", _prod_gradient, "the product over axes", _numbers_infer("reduce_prod"))


def _arg(name: str, doc: str) -> Op:
    def infer(x: TensorType, *, axis: int, keepdims: bool, select_last_index: bool) -> TensorType:
        gone = normal_axis(name, axis, x.rank)
        if x.shape[gone] == 0:
            raise InputError(f"{name}: axis {axis} of {x} has no elements")
        return TensorType(int64, reduced_shape(x.shape, (gone,), keepdims))

    attributes = {"axis": 0, "keepdims": True, "select_last_index": False}
    return Op(name, ("x",), infer, attributes=attributes, doc=doc)


argmax: Op = _arg("argmax", "the index of the largest along axis")
argmin: Op = _arg("argmin", "the index of the smallest along axis")


def can_sum_to(x: TensorType, shape: Shape) -> bool:
    """Whether broadcasting ``shape`` can give the shape of ``x``; named sizes are taken to fit."""
    lead = x.rank - len(shape)
    return lead >= 0 and all(
        s in (1, d) or isinstance(s, Dim) or isinstance(d, Dim) for s, d in zip(shape, x.shape[lead:], strict=True)
    )


def _sum_to_infer(x: TensorType, *, shape: Shape) -> TensorType:
    need_number("sum_to", x)
    if not can_sum_to(x, shape):
        raise InputError(f"sum_to: {x} does not come from broadcasting shape {shape}")
    return TensorType(x.dtype, tuple(shape))


def summed_to(x: Value, *, shape: Shape) -> Value:
    """The sums that ``sum_to`` stands for."""
    lead = x.type.rank - len(shape)
    axes = [*range(lead)]
    axes += [lead + i for i, s in enumerate(shape) if s == 1 and x.type.shape[lead + i] != 1]
    if axes:
        x = reduce_sum(x, axes=tuple(axes), keepdims=True)
    return reshape(x, shape=tuple(shape))


def _sum_to_gradient(node: Node, dy: Value) -> Value:
    return broadcast_to(dy, shape=operand(node).type.shape)


sum_to: Op = Op(
    "sum_to",
    ("x",),
    _sum_to_infer,
    attributes={"shape": REQUIRED},
    gradient=_sum_to_gradient,
    decompose=summed_to,
    doc="sums over the axes along which ``shape`` was broadcast to x's shape",
)

OPS = (reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod, argmax, argmin, sum_to)
