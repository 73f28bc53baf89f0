"""Converters of residual streams side by side: what a layer reads of them, what it adds, and a gate for them."""

from __future__ import annotations

import math
from typing import Any

from dataflow import Dim, Value, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to, number
from ...importer import Importer
from ...tensor import Tensor

T = Tensor
operator = Collector("com.microsoft")


def _streams(c: Importer, streams: T, branches: int) -> Any:
    """Streams (..., C, H), from (..., C * H) where there are ``branches`` of them."""
    value = c.value(streams)
    if not branches:
        if value.type.rank < 2:
            raise ModelError(f"streams is {value.type}; expected (..., streams, features)")
        return value
    *outer, width = value.type.shape
    if not isinstance(width, Dim) and (branches < 0 or width % branches):
        raise ModelError(
            f"streams is {value.type}; expected a multiple of num_branches, {branches}, along its last axis"
        )
    return ops.reshape(value, shape=(*outer, branches, width // branches))


def _factors(c: Importer, given: T, streams: Value, name: str) -> Any:
    """Factors (..., C, 1) or (..., C, H), from (..., C) or (..., C * H) too."""
    value = cast_to(c.value(given), streams.type.dtype)
    shape = streams.type.shape
    if value.type.rank == len(shape):
        return value
    if value.type.rank == len(shape) - 1:
        *outer, width = value.type.shape
        count = shape[-2]
        if width == count:
            return ops.reshape(value, shape=(*outer, count, 1))
        if width == count * shape[-1]:
            return ops.reshape(value, shape=(*outer, *shape[-2:]))
    raise ModelError(f"{name} is {value.type} for streams {streams.type}; expected a factor for each stream or feature")


@operator("HyperConnectionPreMix")
def HyperConnectionPreMix(
    c: Importer, streams: T, pre_mix: T, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Any:
    value = _streams(c, streams, num_branches)
    y = ops.reduce_sum(ops.mul(value, _factors(c, pre_mix, value, "pre_mix")), axes=(-2,), keepdims=0)
    return y if reduction_scale == 1.0 else ops.mul(y, reduction_scale)


@operator("HyperConnectionPostMix")
def HyperConnectionPostMix(
    c: Importer, streams: T, block_output: T, post_mix: T, stream_mix: T | None = None, *, num_branches: int = 0
) -> Any:
    value, added = _streams(c, streams, num_branches), c.value(block_output)
    *outer, size = added.type.shape
    y = ops.mul(ops.reshape(added, shape=(*outer, 1, size)), _factors(c, post_mix, value, "post_mix"))
    if stream_mix is not None:
        mix = cast_to(c.value(stream_mix), value.type.dtype)
        rank = mix.type.rank
        mix = ops.transpose(mix, perm=(*range(rank - 2), rank - 1, rank - 2))
        y = ops.add(ops.matmul(mix, value), y)
    else:
        y = ops.add(value, y)
    return ops.reshape(y, shape=c.value(streams).type.shape)


@operator("EngramGate")
def EngramGate(
    c: Importer,
    key: T,
    query: T,
    value: T,
    key_norm_scale: T,
    query_norm_scale: T,
    conv_norm_scale: T | None = None,
    *,
    epsilon: float = 1e-5,
) -> Any:
    """Gated values (batch, tokens, streams, features), and their norms by the last scale."""

    def normed(x: Value, scale: T) -> Any:
        return ops.mul(ops.layer_norm(x, axis=x.type.rank - 1, epsilon=epsilon, center=0), c.weight(scale))

    keys, values = c.value(key), c.value(value)
    size = keys.type.shape[-1]
    if keys.type.rank != 4 or values.type.rank != 3 or isinstance(size, Dim):
        raise ModelError(
            f"key is {keys.type}, value {values.type}; expected (batch, tokens, streams, features) with a known number "
            "of features, and (batch, tokens, features)"
        )
    product = ops.mul(normed(keys, key_norm_scale), normed(c.value(query), query_norm_scale))
    dot = ops.mul(ops.reduce_sum(product, axes=(-1,), keepdims=1), 1 / math.sqrt(size))
    magnitude = ops.sqrt(ops.maximum(ops.abs(dot), number(c.builder, 1e-6, dot.type.dtype)))
    gate = ops.sigmoid(ops.mul(ops.sign(dot), magnitude))
    batch, tokens, _ = values.type.shape
    y = ops.mul(gate, ops.reshape(values, shape=(batch, tokens, 1, size)))
    if len(c.node.outputs) < 2:
        return y
    if conv_norm_scale is None:
        raise ModelError("its second output needs conv_norm_scale")
    return y, normed(y, conv_norm_scale)
