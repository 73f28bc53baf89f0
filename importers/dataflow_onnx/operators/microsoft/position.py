"""Converters of positions of tokens in attention: rotary embeddings and relative biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, Value, float32, int64, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import along, cast_to, equal_slices, iota, number, slice_axis
from ...importer import Importer
from ...tensor import Tensor
from ..attention import heads_of, rotated
from .attention import joined

T = Tensor
operator = Collector("com.microsoft")


def tables_at(c: Importer, tables: tuple[T, T], positions: Value) -> tuple[Any, Any]:
    """The rows of cosines and sines of positions (batch, rows), (batch, 1, rows, size / 2)."""
    found = []
    for table in tables:
        rows = ops.gather(c.weight(table, trainable=False), positions, axis=0)
        found.append(ops.reshape(rows, shape=(rows.type.shape[0], 1, *rows.type.shape[1:])))
    return found[0], found[1]


@operator("RotaryEmbedding")
def RotaryEmbedding(
    c: Importer,
    x: T,
    position_ids: T,
    cos_cache: T,
    sin_cache: T,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Any:
    """The positions are given for each token, or one from which on those of every row count."""
    if is_packed_batching or scale != 1.0:
        raise ModelError(f"is_packed_batching is {is_packed_batching}, scale {scale}; expected 0 and 1")
    given, positions = c.value(x), c.value(position_ids)
    width, half = given.type.shape[-1], c.value(cos_cache).type.shape[-1]
    if isinstance(width, Dim) or isinstance(half, Dim) or half == 0:
        raise ModelError(f"its input is {given.type} and its cache has {half} columns; expected known sizes")
    value = heads_of(given, num_heads or width // (2 * half), "its input")
    if positions.type.rank == 1:
        row = cast_to(iota(c.builder, value.type.shape[2]), positions.type.dtype)
        positions = ops.reshape(ops.add(positions, row), shape=(1, value.type.shape[2]))
    cos, sin = tables_at(c, (cos_cache, sin_cache), positions)
    if rotary_embedding_dim not in (0, 2 * half):
        raise ModelError(f"rotary_embedding_dim is {rotary_embedding_dim}; the cache has {half} columns")
    y = rotated(value, cos, sin, interleaved)
    return y if given.type.rank == 4 else joined(y)


@operator("MRotaryEmbedding")
def MRotaryEmbedding(
    c: Importer,
    x: T,
    position_ids: T,
    cos_cache: T,
    sin_cache: T,
    *,
    mrope_section: Sequence[int],
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Any:
    """Each angle is that of one of three positions (3, batch, rows): of time, height or width."""
    if is_packed_batching or scale != 1.0 or mrope_layout not in (0, 1) or len(mrope_section) != 3:
        text = f"is_packed_batching is {is_packed_batching}, scale {scale}, mrope_layout {mrope_layout}"
        raise ModelError(f"{text}, mrope_section {tuple(mrope_section)}; expected 0, 1, 0 or 1, and three numbers")
    given, positions = c.value(x), c.value(position_ids)
    width, half = given.type.shape[-1], c.value(cos_cache).type.shape[-1]
    if isinstance(width, Dim) or isinstance(half, Dim) or half == 0 or positions.type.rank != 3:
        raise ModelError(f"its input is {given.type}, its positions {positions.type}, its cache has {half} columns")
    if rotary_embedding_dim not in (0, 2 * half):
        raise ModelError(f"rotary_embedding_dim is {rotary_embedding_dim}; the cache has {half} columns")
    value = heads_of(given, num_heads or width // (2 * half), "its input")
    which = np.zeros(half, np.int64)
    if mrope_layout:
        for stream in (1, 2):
            which[stream : 3 * mrope_section[stream] : 3] = stream
    elif sum(mrope_section) == half:
        which = np.repeat(np.arange(3), mrope_section)
    else:
        raise ModelError(f"mrope_section is {tuple(mrope_section)}; the cache has {half} columns")
    masks = [c.builder.constant(which == stream) for stream in (1, 2)]
    angles = []
    for table in (cos_cache, sin_cache):
        rows = ops.gather(c.weight(table, trainable=False), positions, axis=0)  # (3, batch, rows, half)
        streams = [ops.reshape(slice_axis(rows, 0, i, i + 1), shape=rows.type.shape[1:]) for i in range(3)]
        row = ops.where(masks[1], streams[2], ops.where(masks[0], streams[1], streams[0]))
        angles.append(ops.reshape(row, shape=(row.type.shape[0], 1, *row.type.shape[1:])))
    y = rotated(value, angles[0], angles[1], interleaved)
    return y if given.type.rank == 4 else joined(y)


@operator("GemmaRotaryEmbedding")
def GemmaRotaryEmbedding(c: Importer, emb: T, q: T, q_rot: T, k: T, k_rot: T) -> Any:
    """Queries and keys, given with their rotations, by angles (batch, rows, size)."""
    angle, dtype = c.value(emb), c.value(q).type.dtype
    batch, *rest = angle.type.shape
    cos, sin = (ops.reshape(cast_to(f(angle), dtype), shape=(batch, 1, *rest)) for f in (ops.cos, ops.sin))
    return tuple(
        ops.add(ops.mul(c.value(x), cos), ops.mul(c.value(other), sin)) for x, other in ((q, q_rot), (k, k_rot))
    )


@operator("RelativePositionBias")
def RelativePositionBias(
    c: Importer, bias_table: T, query_length: T, key_length: T, *, max_distance: int, is_bidirectional: int = 0
) -> Any:
    """A learned bias for each bucket of distances, as T5 has it: (1, heads, rows, keys).

    The table declares (buckets, heads), but its elements are those of one head after the other.
    """
    table = c.weight(bias_table)
    buckets, heads = table.type.shape
    rows, keys = (c.sizes(t, "a length")[0] for t in (query_length, key_length))
    row, key = along(iota(c.builder, rows), 0, 2), along(iota(c.builder, keys), 1, 2)
    index = _bucket(c, ops.sub(key, row), buckets, max_distance, bool(is_bidirectional))
    y = ops.gather(ops.reshape(table, shape=(heads, buckets)), index, axis=1)
    return ops.reshape(y, shape=(1, *y.type.shape))


def _bucket(c: Importer, distance: Value, buckets: Any, most: int, both: bool) -> Any:
    """The bucket of each distance: one each for the near ones, then by their logarithm (arXiv:1910.10683)."""
    zero = number(c.builder, 0, int64)
    first: Any = zero
    count = buckets
    if both:
        count //= 2
        first = ops.mul(ops.cast(ops.greater(distance, zero), to=int64), number(c.builder, count, int64))
        distance = ops.abs(distance)
    else:
        distance = ops.neg(ops.minimum(distance, zero))
    exact = count // 2
    if isinstance(exact, Dim) or exact < 1 or most <= exact:
        raise ModelError(f"{buckets} buckets with max_distance {most} don't fit each other")
    near = number(c.builder, exact, int64)
    ratio = ops.div(cast_to(ops.maximum(distance, near), float32), float(exact))
    steps = ops.mul(ops.div(ops.log(ratio), math.log(most / exact)), float(count - exact))
    far = ops.add(ops.cast(steps, to=int64), near)
    far = ops.minimum(far, number(c.builder, count - 1, int64))
    return ops.add(first, ops.where(ops.less(distance, near), distance, far))


@operator("GatedRelativePositionBias")
def GatedRelativePositionBias(
    c: Importer,
    query_layer: T,
    query_bias: T,
    rel_pos: T,
    weight: T,
    bias: T,
    eco_a: T,
    token_offset: T | None = None,
    *,
    num_heads: int,
) -> Any:
    """A relative bias times a gate of the queries (batch, heads, rows, rows)."""
    if token_offset is not None:
        raise ModelError("token_offset, rows without padding, is not supported")
    q = heads_of(ops.add(c.value(query_layer), c.weight(query_bias)), num_heads, "query_layer")
    gates = ops.add(ops.matmul(q, c.weight(weight)), c.weight(bias))
    if isinstance(gates.type.shape[-1], Dim) or gates.type.shape[-1] % 2:
        raise ModelError(f"weight is {c.value(weight).type}; expected an even number of columns")
    u, r = (
        ops.sigmoid(ops.reduce_sum(half, axes=(-1,), keepdims=1))
        for half in equal_slices(gates, gates.type.rank - 1, 2)
    )
    gate = ops.add(ops.mul(u, ops.sub(ops.mul(r, c.weight(eco_a)), 1.0)), 2.0)
    return ops.mul(gate, c.value(rel_pos))
