"""Converters of normalizations: over the batch, over each example, and over neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, Value, float32, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..dynamic_sizes import within
from ..emit import cast_to, number, upcast
from ..importer import Importer
from ..shape_eval import axes_in, axis_in, product
from ..tensor import Tensor
from .reduce import p_norm

T = Tensor
operator = Collector()
_STEP = 1 / 64  # that ones and zeros may be off by where they are quantized


def _batch_norm(c: Importer, x: T, scale: T, bias: T, mean: T, var: T, epsilon: float, momentum: float) -> Any:
    return ops.batch_norm(*_operands(c, x, scale, bias, mean, var), epsilon=epsilon, momentum=momentum)


def _operands(c: Importer, x: T, scale: T, bias: T, mean: T, var: T) -> list[Any]:
    statistics = [c.weight(t, role="statistic") for t in (mean, var)]
    return [c.value(x), c.weight(scale), c.weight(bias), *statistics]


@operator("BatchNormalization", 7)
def BatchNormalization_7(
    c: Importer,
    x: T,
    scale: T,
    bias: T,
    mean: T,
    var: T,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Any:
    if not spatial:
        raise ModelError("spatial=0, statistics per element, is not supported")
    if not any(c.node.outputs[1:]):
        return _batch_norm(c, x, scale, bias, mean, var, epsilon, momentum)
    # More results say that it trains: the new statistics, and those of the batch.
    trained = ops.batch_norm_train(*_operands(c, x, scale, bias, mean, var), epsilon=epsilon, momentum=momentum)
    value = c.value(x)
    axes = (0, *range(2, value.type.rank))
    centered = ops.sub(value, average := ops.reduce_mean(value, axes=axes, keepdims=True))
    variance = ops.reduce_mean(ops.mul(centered, centered), axes=axes, keepdims=False)
    return *trained, ops.reshape(average, shape=variance.type.shape), variance


@operator("BatchNormalization", 14)
def BatchNormalization(
    c: Importer,
    x: T,
    scale: T,
    bias: T,
    mean: T,
    var: T,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Any:
    if not training_mode:
        return _batch_norm(c, x, scale, bias, mean, var, epsilon, momentum)
    return ops.batch_norm_train(*_operands(c, x, scale, bias, mean, var), epsilon=epsilon, momentum=momentum)


@operator("LRN")
def LRN(c: Importer, x: T, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    return ops.lrn(c.value(x), size=size, alpha=alpha, beta=beta, bias=bias)


def _check_stash_type(stash_type: int, *others: int) -> None:
    """Statistics of 16 bits are computed in float32 by every device: no casts are needed for that."""
    if stash_type not in (1, *others):
        raise ModelError(f"stash_type {stash_type} is not supported; expected 1, float32")


def normalized(c: Importer, x: T, scale: T, bias: T | None, axis: int, epsilon: float, center: int) -> list[Any]:
    """The result, and the mean and inverse deviation of each row."""
    value, vectors = c.value(x), [None if t is None else c.weight(t) for t in (scale, bias)]
    at = axis_in(axis, value.type.rank)
    fits = all(v is None or v.type.shape == value.type.shape[at:] for v in vectors)
    # Every device computes 16 bits in float32: casts are needed for vectors that have more alone.
    alike = all(v is None or v.type.dtype == value.type.dtype for v in vectors)
    upcast = value if alike or value.type.dtype.nbytes(1) >= 4 else ops.cast(value, to=float32)
    given = [None if v is None or not fits else cast_to(v, upcast.type.dtype) for v in vectors]
    y = ops.layer_norm(upcast, *given, axis=at, epsilon=epsilon, center=center)
    if not fits:  # they broadcast over the row
        factor, shift = vectors
        y = y if factor is None else ops.mul(y, within(cast_to(factor, y.type.dtype), y.type.shape))
        y = y if shift is None else ops.add(y, within(cast_to(shift, y.type.dtype), y.type.shape))
    wanted = [bool(name) for name in (*c.node.outputs[1:], "", "")][:2]
    rest = statistics(value, at, epsilon) if any(wanted) else (None, None)
    y = cast_to(y, value.type.dtype)
    return [y, *(v if w else None for v, w in zip(rest, wanted, strict=True))]


def statistics(value: Value, at: int, epsilon: float) -> tuple[Value, Value]:
    """The mean and inverse deviation of each row, in float32 where the row has 16 bits.

    As ops that have gradients: the op's own are for its gradient.
    """
    upcast = value if value.type.dtype.nbytes(1) >= 4 else ops.cast(value, to=float32)
    axes = tuple(range(at, upcast.type.rank))
    mean = ops.reduce_mean(upcast, axes=axes, keepdims=1)
    centered = ops.sub(upcast, mean)
    variance = ops.reduce_mean(ops.mul(centered, centered), axes=axes, keepdims=1)
    return mean, ops.reciprocal(ops.sqrt(ops.add(variance, epsilon)))


@operator("LayerNormalization", 17)
def LayerNormalization(
    c: Importer,
    x: T,
    scale: T,
    bias: T | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    _check_stash_type(stash_type)
    found = normalized(c, x, scale, bias, axis, epsilon, 1)
    while found[-1] is None:
        found.pop()
    return tuple(found)


@operator("RMSNormalization", 23)
def RMSNormalization(c: Importer, x: T, scale: T, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    _check_stash_type(stash_type)
    return normalized(c, x, scale, None, axis, epsilon, 0)[0]


def per_channel(vector: Value, value: Value) -> Any:
    """(C,) to broadcast over (N, C, ...)."""
    shape = (1, vector.type.shape[0], *(1,) * (value.type.rank - 2))
    return within(ops.reshape(cast_to(vector, value.type.dtype), shape=shape), value.type.shape)


def _normalizes_groups(c: Importer, value: Value, scale: T, bias: T) -> bool:
    """Whether an exporter decomposed a group norm into this node: groups are channels, by a reshape.

    The learned scale and bias of the group norm are applied after the node, which has ones and zeros of its own.
    """
    if not _is_all(c, scale, 1) or not _is_all(c, bias, 0):
        return False
    for node in reversed(c.builder.nodes()):
        if value in node.outputs:
            if node.op.name not in ("quantize", "dequantize"):
                return node.op.name == "reshape"
            before = node.inputs[0]
            assert before is not None
            value = before
    return False


def _is_all(c: Importer, tensor: T, wanted: int) -> bool:
    """Whether a stored tensor has this number alone; one that is quantized about this number."""
    if tensor.array is not None:
        return not (tensor.array != wanted).any()
    array = c.constant(tensor)
    return array is not None and bool((np.abs(array - np.float32(wanted)) < _STEP).all())


@operator("InstanceNormalization", 6)
def InstanceNormalization(c: Importer, x: T, scale: T, bias: T, *, epsilon: float = 1e-5) -> Any:
    value = c.value(x)
    learned = not _normalizes_groups(c, value, scale, bias)
    factor, shift = c.weight(scale, trainable=learned), c.weight(bias, trainable=learned)

    if value.type.rank < 3:
        raise ModelError(f"its input is {value.type}; expected (N, C, ...) with at least one more axis")
    y = ops.layer_norm(value, axis=2, epsilon=epsilon)
    return ops.add(ops.mul(y, per_channel(factor, y)), per_channel(shift, y))


def grouped(value: Value, groups: int, epsilon: float) -> Any:
    """Normalized over groups of channels."""
    n, channels, *rest = value.type.shape
    if groups < 1 or isinstance(channels, Dim) or channels % groups:
        raise ModelError(f"num_groups is {groups} for {value.type}; expected a divisor of the number of channels")
    flat = ops.reshape(value, shape=(n, groups, product([channels // groups, *rest])))
    return ops.reshape(ops.layer_norm(flat, axis=2, epsilon=epsilon), shape=value.type.shape)


@operator("GroupNormalization", 18)
def GroupNormalization_18(
    c: Importer, x: T, scale: T, bias: T, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """With a scale and bias for each group."""
    _check_stash_type(stash_type, 0)
    y = grouped(c.value(x), num_groups, epsilon)
    each = int(y.type.shape[1]) // num_groups
    expanded = []
    for vector in (c.weight(scale), c.weight(bias)):
        column = ops.reshape(cast_to(vector, y.type.dtype), shape=(num_groups, 1))
        repeated = ops.broadcast_to(column, shape=(num_groups, each))
        expanded.append(per_channel(ops.reshape(repeated, shape=(num_groups * each,)), y))
    return ops.add(ops.mul(y, expanded[0]), expanded[1])


@operator("GroupNormalization", 21)
def GroupNormalization(
    c: Importer, x: T, scale: T, bias: T, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """With a scale and bias for each channel."""
    _check_stash_type(stash_type, 0)
    y = grouped(c.value(x), num_groups, epsilon)
    return ops.add(ops.mul(y, per_channel(c.weight(scale), y)), per_channel(c.weight(bias), y))


@operator("LpNormalization")
def LpNormalization(c: Importer, x: T, *, axis: int = -1, p: int = 2) -> Any:
    given = c.value(x)
    value = upcast(given)
    norm = p_norm(value, p, [axis_in(axis, value.type.rank)])
    zero, one = (number(c.builder, n, value.type.dtype) for n in (0, 1))
    return cast_to(ops.div(value, ops.where(ops.equal(norm, zero), one, norm)), given.type.dtype)


@operator("MeanVarianceNormalization", 9)
def MeanVarianceNormalization(c: Importer, x: T, *, axes: Sequence[int] = (0, 2, 3)) -> Any:
    given = c.value(x)
    value = upcast(given)
    over = tuple(axes_in(axes, value.type.rank))
    centered = ops.sub(value, ops.reduce_mean(value, axes=over, keepdims=1))
    variance = ops.reduce_mean(ops.mul(centered, centered), axes=over, keepdims=1)
    return cast_to(ops.div(centered, ops.add(ops.sqrt(variance), 1e-9)), given.type.dtype)
