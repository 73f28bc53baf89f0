"""Ops whose indices are a tensor as large as what they read or write: by element, and by rows of coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..errors import InputError
from ..ir.dims import Dim, Size, SizeNotKnown
from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import TensorType
from ..ir.value import Builder, Value
from .arithmetic import add, div, mul, sub
from .cast import cast
from .gather import range_
from .infer import alike, normal_axis, operand, product, result, scalar_like
from .logic import equal, where
from .rules.subgraph import zeros
from .shape import reshape

REDUCTIONS = ("none", "add", "mul", "max", "min")


def _need_indices(name: str, indices: TensorType) -> None:
    if indices.dtype.name not in ("int32", "int64"):
        raise InputError(f"{name}: indices are {indices}; expected int32 or int64")


def zeros_like(value: Value) -> Value:
    """Zeros of the same type."""
    return zeros(_builder(value), value.type)


def _builder(value: Value) -> Builder:
    assert value.builder is not None
    return value.builder


# ---- by element -----------------------------------------------------------------------------------------


def _check_elements(name: str, data: TensorType, indices: TensorType, axis: int) -> int:
    _need_indices(name, indices)
    if not (data.rank == indices.rank and data.rank > 0):
        raise InputError(f"{name}: data is {data}, indices are {indices}: ranks differ")
    at = normal_axis(name, axis, data.rank)
    for i, (have, want) in enumerate(zip(data.shape, indices.shape, strict=True)):
        fits = i == at or isinstance(have, Dim) or isinstance(want, Dim) or want <= have
        if not fits:
            raise InputError(f"{name}: indices {indices} reach beyond {data} along axis {i}")
    return at


def _gather_elements_infer(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    _check_elements("gather_elements", x, indices, axis)
    return TensorType(x.dtype, indices.shape)


def _gather_elements_gradient(node: Node, dy: Value) -> tuple[Value, None]:
    x, indices = node.inputs
    assert x is not None
    axis = node.attributes["axis"]
    dx = scatter_elements(zeros_like(x), indices, dy, axis=axis, reduction="add")
    return dx, None


gather_elements: Op = Op(
    "gather_elements",
    ("x", "indices"),
    _gather_elements_infer,
    attributes={"axis": 0},
    gradient=_gather_elements_gradient,
    doc="y[i][j] = x[indices[i][j]][j] for axis 0; negative indices count from the end; checked at run time",
)


def _scatter_elements_infer(
    data: TensorType, indices: TensorType, updates: TensorType, *, axis: int, reduction: str
) -> TensorType:
    _check_elements("scatter_elements", data, indices, axis)
    _check_updates("scatter_elements", data, updates, indices.shape, reduction)
    return data


def _check_updates(
    name: str, data: TensorType, updates: TensorType, expected: tuple[Size, ...], reduction: str
) -> None:
    if reduction not in REDUCTIONS:
        raise InputError(f"{name}: reduction {reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    if updates.dtype != data.dtype:
        raise InputError(f"{name}: data is {data}, updates are {updates}: give both one dtype")
    fits = updates.shape == expected or not updates.is_bound or any(isinstance(n, Dim) for n in expected)
    if not fits:
        raise InputError(f"{name}: updates are {updates}; expected {TensorType(data.dtype, expected)}")


def _scatter_gradient(node: Node, dy: Value) -> tuple[Value, None, Value]:
    """The cotangents of the data and the updates, by the reduction's rule."""
    given = dict(node.attributes)
    reduction = given.pop("reduction")
    scatter, gather = (scatter_elements, gather_elements) if node.op is scatter_elements else (scatter_nd, gather_nd)
    scattered, gathered = partial(scatter, **given), partial(gather, **given)
    data, updates = _RULES[reduction](scattered, gathered, node, dy)
    return data, None, updates


Ops = tuple[Callable[..., Value], Callable[..., Value], Node, Value]
"""The scatter and the gather of the same indices, the node, and its cotangent."""


def _replaced(*of: *Ops) -> tuple[Value, Value]:
    """What was replaced gets none: elements of the data, and updates that a later one replaced."""
    scattered, gathered, node, dy = of
    _, indices, updates = node.inputs
    assert updates is not None
    numbers = _numbered(updates)
    positions = zeros(_builder(updates), TensorType(numbers.type.dtype, dy.type.shape))
    last = gathered(scattered(positions, indices, numbers, reduction="none"), indices)
    taken = gathered(dy, indices)
    kept = scattered(dy, indices, zeros_like(updates), reduction="none")
    return kept, where(equal(last, numbers), taken, zeros_like(taken))


def _added(*of: *Ops) -> tuple[Value, Value]:
    _, gathered, node, dy = of
    return dy, gathered(dy, node.inputs[1])


def _chosen(*of: *Ops) -> tuple[Value, Value]:
    """Of the largest or smallest: shared evenly among the elements and updates that equal the result."""
    scattered, gathered, node, dy = of
    data, updates, y, indices = operand(node), operand(node, 2), result(node), node.inputs[1]
    hit = cast(equal(data, y), to=dy.type.dtype)
    hits = cast(equal(updates, gathered(y, indices)), to=dy.type.dtype)
    share = div(dy, scattered(hit, indices, hits, reduction="add"))
    return mul(hit, share), mul(hits, gathered(share, indices))


def _multiplied(*of: *Ops) -> tuple[Value, Value]:
    """Times the product of all other factors: of those that aren't 0, and of the one that is.

    Where two others are 0 it is 0, and so is what any further derivative by one of them gives.
    """
    scattered, gathered, node, dy = of
    data, updates, indices = operand(node), operand(node, 2), node.inputs[1]
    zero, zeroes = (cast(equal(v, scalar_like(v, 0)), to=dy.type.dtype) for v in (data, updates))
    factor, factors = add(data, zero), add(updates, zeroes)  # with 1 instead of 0
    product_ = scattered(factor, indices, factors, reduction="mul")
    count = scattered(zero, indices, zeroes, reduction="add")
    # 0, and differentiable where the operand is 0; else a constant, also beside infinities.
    nought, noughts = (where(equal(v, scalar_like(v, 0)), v, scalar_like(v, 0)) for v in (data, updates))
    total = scattered(nought, indices, noughts, reduction="add")

    def others(read: Sequence[Value], factor: Value, zero: Value, nought: Value) -> Value:
        cotangent, product_, count, total = read
        left, rest = sub(count, zero), div(product_, factor)
        finite = where(equal(sub(rest, rest), scalar_like(rest, 0)), rest, scalar_like(rest, 0))
        last = where(equal(left, scalar_like(left, 1)), mul(finite, sub(total, nought)), scalar_like(left, 0))
        return mul(cotangent, where(equal(left, scalar_like(left, 0)), rest, last))

    known = (dy, product_, count, total)
    return others(known, factor, zero, nought), others([gathered(v, indices) for v in known], factors, zeroes, noughts)


_RULES = {"none": _replaced, "add": _added, "mul": _multiplied, "max": _chosen, "min": _chosen}


def _numbered(updates: Value) -> Value:
    """A number for each element."""
    (flat,) = _builder(updates).add(range_, (), {"limit": product(updates.type.shape)}).outputs
    assert flat is not None
    return reshape(flat, shape=updates.type.shape)


scatter_elements: Op = Op(
    "scatter_elements",
    ("data", "indices", "updates"),
    _scatter_elements_infer,
    attributes={"axis": 0, "reduction": "none"},
    gradient=_scatter_gradient,
    inplace=((0, 0),),
    doc="data with y[indices[i][j]][j] = updates[i][j] for axis 0, or what the reduction makes of both; one after the "
    "other, so the last of equal indices stays",
)

# ---- by rows of coordinates -------------------------------------------------------------------------------


def _rows_of(name: str, data: TensorType, indices: TensorType, batch_dims: int) -> tuple[Size, ...]:
    """The shape of what the coordinates choose."""
    _need_indices(name, indices)
    if indices.rank < 1:
        raise InputError(f"{name}: indices are {indices}")
    if isinstance(indices.shape[-1], Dim):
        raise SizeNotKnown(f"{name}: indices are {indices}; the last size is known when they come")
    count = int(indices.shape[-1])
    if not (0 <= batch_dims < indices.rank):
        raise InputError(f"{name}: batch_dims is {batch_dims}, indices are {indices}")
    if not (batch_dims + count <= data.rank):
        raise InputError(f"{name}: {count} coordinates into {data}, behind {batch_dims} shared axes")
    shared = (TensorType(data.dtype, t.shape[:batch_dims]) for t in (data, indices))
    alike(f"{name}: the {batch_dims} shared axes", *shared)
    return (*indices.shape[:-1], *data.shape[batch_dims + count :])


def _gather_nd_infer(x: TensorType, indices: TensorType, *, batch_dims: int) -> TensorType:
    return TensorType(x.dtype, _rows_of("gather_nd", x, indices, batch_dims))


def _gather_nd_gradient(node: Node, dy: Value) -> tuple[Value, None]:
    x, indices = node.inputs
    assert x is not None
    dx = scatter_nd(zeros_like(x), indices, dy, batch_dims=node.attributes["batch_dims"], reduction="add")
    return dx, None


gather_nd: Op = Op(
    "gather_nd",
    ("x", "indices"),
    _gather_nd_infer,
    attributes={"batch_dims": 0},
    gradient=_gather_nd_gradient,
    doc="y[i, ...] = x[indices[i, 0], indices[i, 1], ...]: the last axis of indices holds coordinates",
)


def _scatter_nd_infer(
    data: TensorType, indices: TensorType, updates: TensorType, *, batch_dims: int, reduction: str
) -> TensorType:
    _check_updates("scatter_nd", data, updates, _rows_of("scatter_nd", data, indices, batch_dims), reduction)
    return data


_SCATTER_ND: dict[str, Any] = {"batch_dims": 0, "reduction": "none"}
scatter_nd: Op = Op(
    "scatter_nd",
    ("data", "indices", "updates"),
    _scatter_nd_infer,
    attributes=_SCATTER_ND,
    gradient=_scatter_gradient,
    inplace=((0, 0),),
    doc="data with y[indices[i, 0], indices[i, 1], ...] = updates[i, ...], or what the reduction makes of both",
)

OPS = (gather_elements, scatter_elements, gather_nd, scatter_nd)
