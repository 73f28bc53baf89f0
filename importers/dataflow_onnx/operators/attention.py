"""Converters of attention and rotary position embedding."""

from __future__ import annotations

import math
from typing import Any

from dataflow import Dim, Value, float32, ops
from dataflow.errors import ModelError
from dataflow.plugin import Size

from ..converters import Collector
from ..dynamic_sizes import required, size_value
from ..emit import along, cast_to, iota, number, slice_axis
from ..importer import Importer
from ..shape_eval import product
from ..tensor import Tensor
from .cast import dtype_of

T = Tensor
operator = Collector()


def heads_of(x: Value, heads: int | None, what: str) -> Any:
    """(batch, sequence, heads * size) as (batch, heads, sequence, size); what has four axes already stays."""
    if x.type.rank == 4:
        return x
    width = x.type.shape[-1]
    if x.type.rank != 3 or not heads or heads < 1 or isinstance(width, Dim) or width % heads:
        raise ModelError(f"{what} is {x.type} with {heads} heads; expected (batch, sequence, heads * size), or 4 axes")
    shape = (*x.type.shape[:2], heads, width // heads)
    return ops.transpose(ops.reshape(x, shape=shape), perm=(0, 2, 1, 3))


def _and(a: Any, b: Any) -> Any:
    return b if a is None else ops.logical_and(a, b)


def _pad_keys(c: Importer, mask: Value, total: Size) -> Any:
    """A mask for the first keys, padded to all of them: the others are refused."""
    *rest, last = mask.type.shape
    missing = total - last
    if (isinstance(missing, int) and missing == 0) or last == 1:
        return mask
    fill = number(c.builder, 0.0 if mask.type.dtype.name == "bool" else -math.inf, mask.type.dtype)
    if isinstance(missing, int) and missing < 0:
        raise ModelError(f"attn_mask is {mask.type}, there are {total} keys")
    mask = required(mask, last, 1, f"attn_mask is {mask.type}: a last size that has a name must not be 1", equal=0)
    tail = ops.broadcast_to(fill, shape=(*rest, missing))
    return ops.concat(mask, tail, axis=-1)


class _Mask:
    """Who may attend to whom.

    Attributes:
        allowed: bool, or None; broadcasts over the scores.
        added: of the scores' dtype, or None.
        empty_rows: a query may have nothing to attend to.
    """

    def __init__(self) -> None:
        self.allowed: Any = None
        self.added: Any = None
        self.empty_rows = False

    def bias(self, c: Importer, like: Value) -> Any:
        """What is added to the scores: -inf where attention is not allowed."""
        if self.allowed is None:
            return self.added
        zero, never = number(c.builder, 0.0, like.type.dtype), number(c.builder, -math.inf, like.type.dtype)
        closed = ops.where(self.allowed, zero, never)
        return closed if self.added is None else ops.add(self.added, closed)


def _mask(
    c: Importer,
    scores: Value,
    given: Value | None,
    past: Size | None,
    lengths: Value | None,
    is_causal: int,
    window: tuple[int, int],
) -> _Mask:
    found = _Mask()
    queries, keys = scores.type.shape[-2:]
    if given is not None:
        given = _pad_keys(c, given, keys)
        found.empty_rows = True
        if given.type.dtype.name == "bool":
            found.allowed = given
        else:
            found.added = given
    left, right = window
    if is_causal or left >= 0 or right >= 0:
        at: Any = along(iota(c.builder, queries), 0, 2)
        if lengths is not None and past is None:  # (batch, 1, 1, 1): each row of the batch has its own offset
            own = ops.reshape(lengths, shape=(lengths.type.shape[0], 1, 1, 1))
            at = ops.add(at, ops.sub(own, size_value(c, queries)))
            found.empty_rows = True
        elif past is not None:
            at = ops.add(at, size_value(c, past))
        key = along(iota(c.builder, keys), 1, 2)
        if is_causal:
            found.allowed = _and(found.allowed, ops.less_equal(key, at))
        if left >= 0:
            found.allowed = _and(found.allowed, ops.less_equal(ops.sub(at, left), key))
            found.empty_rows = True
        if right >= 0:
            found.allowed = _and(found.allowed, ops.less_equal(key, ops.add(at, right)))
    if lengths is not None:
        own = ops.reshape(lengths, shape=(lengths.type.shape[0], 1, 1, 1))
        found.allowed = _and(found.allowed, ops.less(along(iota(c.builder, keys), 1, 2), own))
        found.empty_rows = True
    return found


def repeated_heads(x: Value, times: int) -> Any:
    """(batch, heads, rows, size) with each head ``times`` times, one after the other."""
    n, heads, *rest = x.type.shape
    repeated = ops.broadcast_to(ops.reshape(x, shape=(n, heads, 1, *rest)), shape=(n, heads, times, *rest))
    return ops.reshape(repeated, shape=(n, product([heads, times]), *rest))


@operator("Attention", 23)
def Attention(
    c: Importer,
    q: T,
    k: T,
    v: T,
    attn_mask: T | None = None,
    past_key: T | None = None,
    past_value: T | None = None,
    nonpad_kv_seqlen: T | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Any:
    flat = c.value(q).type.rank == 3
    query = heads_of(c.value(q), q_num_heads, "Q")
    key, value = heads_of(c.value(k), kv_num_heads, "K"), heads_of(c.value(v), kv_num_heads, "V")
    if (past_key is None) != (past_value is None):
        raise ModelError("past_key and past_value come together or not at all")
    past: Size | None = None
    if past_key is not None and past_value is not None:
        before = c.value(past_key)
        past = before.type.shape[2]
        key, value = ops.concat(before, key, axis=2), ops.concat(c.value(past_value), value, axis=2)
    present = (key, value)
    heads, shared, width = query.type.shape[1], key.type.shape[1], query.type.shape[3]
    if any(isinstance(n, Dim) for n in (heads, shared, width)) or shared == 0 or heads % shared:
        raise ModelError(f"{heads} heads of queries of {width} don't fit {shared} of keys")
    if heads != shared:
        key, value = repeated_heads(key, heads // shared), repeated_heads(value, heads // shared)
    if scale is None and width == 0:
        raise ModelError("heads of queries and keys have no elements, and there is no scale")
    if scale is not None and scale < 0:
        raise ModelError(f"scale is {scale}; expected a number from 0 on")
    half = math.sqrt(1 / math.sqrt(width) if scale is None else scale)
    raw = ops.matmul(ops.mul(query, half), ops.transpose(ops.mul(key, half), perm=(0, 1, 3, 2)))
    capped = ops.mul(ops.tanh(ops.mul(raw, 1 / softcap)), softcap) if softcap > 0 else raw
    given = None if attn_mask is None else c.value(attn_mask)
    lengths = None if nonpad_kv_seqlen is None else c.value(nonpad_kv_seqlen)
    mask = _mask(c, capped, given, past, lengths, is_causal, (left_window_size, right_window_size))
    bias = mask.bias(c, capped)
    biased = capped if bias is None else ops.add(capped, bias)
    scores, closed = biased, None
    if bias is not None and mask.empty_rows:
        top = ops.reduce_max(bias, axes=(-1,), keepdims=1)
        closed = ops.equal(top, number(c.builder, -math.inf, top.type.dtype))
        scores = ops.where(closed, number(c.builder, 0.0, scores.type.dtype), scores)
    precision = scores.type.dtype if softmax_precision is None else dtype_of(softmax_precision)
    # Every device computes the softmax of 16 bits in float32: a cast to it would only keep fused kernels away.
    if precision != float32 or scores.type.dtype.bits > 16:
        scores = cast_to(scores, precision)
    weights = ops.softmax(scores, axis=-1)
    weights = cast_to(weights, raw.type.dtype)
    if closed is not None:
        weights = ops.where(closed, number(c.builder, 0.0, weights.type.dtype), weights)
    y = ops.matmul(weights, value)
    if flat:
        n, count, length, size = y.type.shape
        y = ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), shape=(n, length, product([count, size])))
    if not 0 <= qk_matmul_output_mode < 4:
        raise ModelError(f"qk_matmul_output_mode is {qk_matmul_output_mode}; expected 0 to 3")
    shown = (raw, capped, biased, weights)[qk_matmul_output_mode]
    return (y, *present, shown)[: max(1, len(c.node.outputs))]


def rotated(value: Value, cos: Value, sin: Value, interleaved: int) -> Any:
    """Pairs of elements (batch, heads, rows, size), the halves of a vector or neighbours, rotated by angles.

    Args:
        value: the vectors; elements behind as many as there are angles, twice, stay.
        cos: the cosines (batch or 1, 1, rows, half).
        sin: the sines.
        interleaved: pairs are neighbours.
    """
    half, size = int(cos.type.shape[-1]), value.type.shape[-1]
    rotary = 2 * half
    if interleaved:
        first, second = (slice_axis(value, -1, start, rotary, 2) for start in (0, 1))
    else:
        first, second = slice_axis(value, -1, 0, half), slice_axis(value, -1, half, rotary)
    real = ops.sub(ops.mul(cos, first), ops.mul(sin, second))
    imaginary = ops.add(ops.mul(sin, first), ops.mul(cos, second))
    if interleaved:
        pairs = [ops.reshape(v, shape=(*v.type.shape, 1)) for v in (real, imaginary)]
        found = ops.reshape(ops.concat(*pairs, axis=-1), shape=(*value.type.shape[:3], rotary))
    else:
        found = ops.concat(real, imaginary, axis=-1)
    return found if rotary == size else ops.concat(found, slice_axis(value, -1, rotary, size), axis=-1)


@operator("RotaryEmbedding", 23)
def RotaryEmbedding(
    c: Importer,
    x: T,
    cos_cache: T,
    sin_cache: T,
    position_ids: T | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:
    given = c.value(x)
    value = heads_of(given, num_heads or None, "X")
    size = value.type.shape[-1]
    rotary = rotary_embedding_dim or size
    if isinstance(rotary, Dim) or isinstance(size, Dim) or rotary % 2 or not 0 < rotary <= size:
        raise ModelError(f"rotary_embedding_dim is {rotary} for heads of {size}; expected an even number up to that")
    tables = []
    for table in (cos_cache, sin_cache):
        rows = c.weight(table, trainable=False)
        if position_ids is not None:
            rows = ops.gather(rows, c.value(position_ids), axis=0)
        if rows.type.rank != 3 or rows.type.shape[-1] != rotary // 2:
            raise ModelError(f"the cache for each position is {rows.type}; expected (batch, sequence, {rotary // 2})")
        tables.append(ops.reshape(rows, shape=(rows.type.shape[0], 1, *rows.type.shape[1:])))
    cos, sin = tables
    y = rotated(value, cos, sin, interleaved)
    if given.type.rank == 4:
        return y
    return ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), shape=given.type.shape)
