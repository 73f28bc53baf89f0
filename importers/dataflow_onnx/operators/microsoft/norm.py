"""Converters of normalizations behind sums, of embeddings, and of layer norm as it was before ONNX had one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dataflow import Dim, Value, float32, int32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to, full, number, slice_axis
from ...importer import Importer
from ...shape_eval import axis_in
from ...tensor import Tensor
from ..norm import grouped, normalized, per_channel
from .layout import to_channels_first, to_channels_last

T = Tensor
operator = Collector("com.microsoft")
unversioned = Collector()
"""Operators that onnxruntime writes into ONNX's own domain, at any opset."""


def _layer_norm(c: Importer, x: T, scale: T, bias: T | None, axis: int, epsilon: float, center: int) -> list[Any]:
    """The result in the scale's dtype, and the mean and inverse deviation of each row where the file reads them."""
    y, *rest = normalized(c, x, scale, bias, axis, epsilon, center)
    return [cast_to(y, c.value(scale).type.dtype), *rest]


@unversioned("LayerNormalization")
def LayerNormalization_1(
    c: Importer,
    x: T,
    scale: T,
    bias: T | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    found = _layer_norm(c, x, scale, bias, axis, epsilon, 1)
    return tuple(found[: len(c.node.outputs)])


@unversioned("SimplifiedLayerNormalization")
def SimplifiedLayerNormalization(
    c: Importer, x: T, scale: T, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    y = _layer_norm(c, x, scale, None, axis, epsilon, 0)[0]
    if len(c.node.outputs) < 2 or not c.node.outputs[1]:
        return y
    value = cast_to(c.value(x), float32)
    axes = tuple(range(axis_in(axis, value.type.rank), value.type.rank))
    return y, ops.reciprocal(ops.sqrt(ops.add(ops.reduce_mean(ops.mul(value, value), axes=axes, keepdims=1), epsilon)))


def _sum(c: Importer, x: T, skip: T, bias: T | None) -> Any:
    """The sum of both and a bias, which is added to the product of matrices among them, if one is: kernels fuse it."""
    first, second = c.value(x), c.value(skip)
    if bias is None:
        return ops.add(first, second)
    recent = reversed(c.builder.nodes())
    maker = next((n for n in recent if first in n.outputs or second in n.outputs), None)
    if maker is not None and maker.op is ops.matmul and second in maker.outputs:
        return ops.add(first, ops.add(second, c.weight(bias)))
    return ops.add(ops.add(first, c.weight(bias)), second)


def _skip_norm(c: Importer, total: Value, scale: T, bias: T | None, epsilon: float, center: int) -> Any:
    """The norm of a sum, the mean and inverse deviation of each row where the file reads them, and the sum."""
    y, *rest = normalized(c, Tensor("the sum", total), scale, bias, -1, epsilon, center)
    wanted = len(c.node.outputs)
    return (y, *rest, total)[: max(1, wanted)]


@operator("SkipLayerNormalization")
def SkipLayerNormalization(
    c: Importer, x: T, skip: T, gamma: T, beta: T | None = None, bias: T | None = None, *, epsilon: float = 1e-12
) -> Any:
    return _skip_norm(c, _sum(c, x, skip, bias), gamma, beta, epsilon, 1)


@operator("SkipSimplifiedLayerNormalization")
def SkipSimplifiedLayerNormalization(
    c: Importer, x: T, skip: T, gamma: T, bias: T | None = None, *, epsilon: float = 1e-12
) -> Any:
    unread = [name for name in c.node.outputs[1:3] if name]
    if unread:
        raise ModelError(f"its output {unread[0]!r} is not supported")
    return _skip_norm(c, _sum(c, x, skip, bias), gamma, None, epsilon, 0)


@operator("EmbedLayerNormalization")
def EmbedLayerNormalization(
    c: Importer,
    input_ids: T,
    segment_ids: T | None,
    word_embedding: T,
    position_embedding: T,
    segment_embedding: T | None,
    gamma: T,
    beta: T,
    mask: T | None = None,
    position_ids: T | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> Any:
    """The norm of the sum of the embeddings, how many tokens of each row are no padding, and the sum."""
    ids = c.value(input_ids)
    if ids.type.rank != 2:
        raise ModelError(f"input_ids is {ids.type}; expected (batch, sequence)")
    total = ops.gather(c.weight(word_embedding), ids, axis=0)
    if position_ids is None:
        total = ops.add(total, slice_axis(c.weight(position_embedding), 0, 0, ids.type.shape[1]))
    else:
        total = ops.add(total, ops.gather(c.weight(position_embedding), c.value(position_ids), axis=0))
    if (segment_ids is None) != (segment_embedding is None):
        raise ModelError("segment_ids and segment_embedding come together or not at all")
    if segment_ids is not None and segment_embedding is not None:
        total = ops.add(total, ops.gather(c.weight(segment_embedding), c.value(segment_ids), axis=0))
    y = normalized(c, Tensor("the sum", total), gamma, beta, -1, epsilon, 1)[0]
    return (y, _lengths(c, ids, mask), total)[: max(1, len(c.node.outputs))]


def _lengths(c: Importer, ids: Value, mask: T | None) -> Any:
    """How many elements of each row of the mask are 1; zeros without a mask."""
    if mask is None:
        return full(c.builder, (ids.type.shape[0],), 0, int32)
    ones = ops.equal(c.value(mask), number(c.builder, 1, c.value(mask).type.dtype))
    return ops.reduce_sum(ops.cast(ones, to=int32), axes=(1,), keepdims=0)


def _group_norm(
    c: Importer, value: Value, gamma: T, beta: T, groups: int, epsilon: float, activation: int, channels_last: int
) -> Any:
    if value.type.rank != 4 or activation not in (0, 1):
        raise ModelError(f"its input is {value.type}, activation {activation}; expected four axes, and 0 or 1")
    upcast = to_channels_first(cast_to(value, float32), channels_last)
    factor, shift = (per_channel(c.weight(t), upcast) for t in (gamma, beta))
    y = ops.add(ops.mul(grouped(upcast, groups, epsilon), factor), shift)
    y = ops.mul(y, ops.sigmoid(y)) if activation else y
    return cast_to(to_channels_last(y, channels_last), value.type.dtype)


@operator("GroupNorm")
def GroupNorm(
    c: Importer,
    x: T,
    gamma: T,
    beta: T,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Any:
    return _group_norm(c, c.value(x), gamma, beta, groups, epsilon, activation, channels_last)


@operator("SkipGroupNorm")
def SkipGroupNorm(
    c: Importer,
    x: T,
    gamma: T,
    beta: T,
    skip: T,
    bias: T | None = None,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Any:
    value, more = c.value(x), c.value(skip)
    if more.type.rank == 2:  # one number per example and channel
        n, channels = more.type.shape
        more = ops.reshape(more, shape=(n, 1, 1, channels) if channels_last else (n, channels, 1, 1))
    total = ops.add(value, more)
    if bias is not None:
        vector = c.weight(bias)
        total = ops.add(total, vector if channels_last else per_channel(vector, total))
    y = _group_norm(c, total, gamma, beta, groups, epsilon, activation, channels_last)
    return (y, total)[: max(1, len(c.node.outputs))]


_GATES: dict[str, Callable[[Value], Any]] = {
    "silu": lambda x: ops.mul(x, ops.sigmoid(x)),
    "swish": lambda x: ops.mul(x, ops.sigmoid(x)),
    "sigmoid": ops.sigmoid,
}


@operator("BranchwiseRMSNorm")
def BranchwiseRMSNorm(
    c: Importer, x: T, scale: T | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> Any:
    """RMS norm of the last axis, which may hold several branches side by side."""
    given = c.value(x)
    *lead, size = given.type.shape
    if isinstance(size, Dim) or (num_branches and size % num_branches):
        raise ModelError(f"its input is {given.type}; expected a multiple of {num_branches} columns")
    shape = (*lead, num_branches, size // num_branches) if num_branches else given.type.shape
    value = ops.reshape(cast_to(given, float32), shape=shape)
    square = ops.reduce_mean(ops.mul(value, value), axes=(-1,), keepdims=1)
    y = ops.div(value, ops.sqrt(ops.add(square, epsilon)))
    if scale is not None:
        factor = cast_to(c.weight(scale), float32)
        if factor.type.rank == 1 and factor.type.shape != shape[-1:]:
            factor = ops.reshape(factor, shape=shape[-2:])
        y = ops.mul(y, factor)
    return cast_to(ops.reshape(y, shape=given.type.shape), given.type.dtype)


@operator("GatedRMSNorm")
def GatedRMSNorm(c: Importer, x: T, scale: T, gate: T, *, activation: str = "silu", epsilon: float = 1e-5) -> Any:
    """RMS norm of each run of as many elements as the scale has, times an activation of the gate."""
    value, factor = c.value(x), c.weight(scale)
    if activation not in _GATES:
        raise ModelError(f"activation is {activation!r}; expected one of {', '.join(_GATES)}")
    *lead, width = value.type.shape
    size = factor.type.shape[0]
    if isinstance(width, Dim) or isinstance(size, Dim) or size == 0 or width % size:
        raise ModelError(f"its input is {value.type} and its scale {factor.type}; expected a divisor of the last axis")
    rows = ops.reshape(cast_to(value, float32), shape=(*lead, width // size, size))
    y = ops.layer_norm(rows, cast_to(factor, float32), axis=len(lead) + 1, epsilon=epsilon, center=0)
    y = ops.mul(ops.reshape(y, shape=value.type.shape), _GATES[activation](cast_to(c.value(gate), float32)))
    return cast_to(y, value.type.dtype)
