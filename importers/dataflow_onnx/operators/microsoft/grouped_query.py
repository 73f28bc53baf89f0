"""The converter of attention with fewer heads of keys than of queries, a cache whose rows have lengths of their own."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from dataflow import Dim, Value, int64, ops
from dataflow.errors import ModelError
from dataflow.plugin import Size, least_size

from ...converters import Collector
from ...dynamic_sizes import required, size_value
from ...emit import cast_to, full, iota, number, slice_axis
from ...importer import Importer
from ...shape_eval import product
from ...tensor import Tensor, Unsized
from ..attention import heads_of, repeated_heads, rotated
from .attention import context
from .position import tables_at

T = Tensor
operator = Collector("com.microsoft")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where the new tokens of each row of the batch stand.

    Attributes:
        cached: how many keys of the cache are the row's, (batch, 1) of int64; the others are padding.
        positions: of the new tokens, (batch, rows) of int64.
        ends: how many keys there are with the new ones, (batch, 1, 1, 1) of int64.
        first: whether these are the first tokens, a bool; None where they are.
        ragged: rows may have fewer cached keys than the cache holds.
        buffer: where the cache is one that keeps its size, how many keys of it are read; None where it grows.
    """

    cached: Value
    positions: Value
    ends: Value
    first: Value | None
    ragged: bool
    buffer: Size | None = None


def _rows(c: Importer, seqlens_k: T, total_sequence_length: T, batch: Size, rows: Size, past: Size) -> _Rows:
    """The lengths of a batch, from ``seqlens_k``: each row's number of keys less 1.

    The first tokens of all rows come together, without cached keys; later ones end where the row does. A cache grows by
    the new keys, unless as many as there are with these fit into it: then it is a buffer, which keeps its size.
    """
    given = ops.reshape(cast_to(c.value(seqlens_k), int64), shape=(batch, 1))
    lengths = ops.add(given, 1)
    zero, new = number(c.builder, 0, int64), size_value(c, rows)
    later = ops.maximum(ops.sub(lengths, new), zero)
    known = total_sequence_length.known
    if isinstance(past, int) and past == 0:
        return _at(c, ops.mul(given, 0), new, batch, rows, None, ragged=False)
    if known is None:
        all_new = ops.reshape(cast_to(c.value(total_sequence_length), int64), shape=())
        first = ops.equal(all_new, new)
        return _at(c, ops.where(first, zero, later), new, batch, rows, first, ragged=True)
    total = c.sizes(total_sequence_length, "total_sequence_length")[0]
    buffer = isinstance(past, int) and (isinstance(total, Dim) or total <= past)
    if buffer:
        text = f"total_sequence_length is {total}; expected at most {past}, the keys of the cache"
        new = required(new, least_size((total, past)), total, text)
    else:
        text = f"total_sequence_length is {total}; expected {past + rows}, the keys of a cache that grows"
        new = required(new, total, past + rows, text)
    first = ops.equal(size_value(c, total), new)
    found = _at(c, ops.where(first, zero, later), new, batch, rows, first, ragged=buffer or batch != 1)
    return replace(found, buffer=total if buffer else None)


def _at(c: Importer, cached: Value, new: Value, batch: Size, rows: Size, first: Value | None, ragged: bool) -> _Rows:
    positions = ops.add(cached, ops.reshape(iota(c.builder, rows), shape=(1, rows)))
    ends = ops.add(cached, new)
    return _Rows(cached, positions, ops.reshape(ends, shape=(batch, 1, 1, 1)), first, ragged)


def _positions(c: Importer, rows: _Rows, given: T | None) -> Any:
    """Those of the new tokens (batch, rows); of the first tokens only the first of all given ones counts."""
    if given is None:
        return rows.positions
    ids = cast_to(c.value(given), int64)
    if ids.type.rank != 2:
        raise ModelError(f"position_ids is {ids.type}; expected (batch, rows)")
    start = slice_axis(slice_axis(ids, 0, 0, 1), 1, 0, 1)
    counted = ops.add(start, ops.sub(rows.positions, rows.cached))
    return counted if rows.first is None else ops.where(rows.first, counted, ids)


def _appended(c: Importer, cache: Value, new: Value, rows: _Rows) -> Any:
    """The cache with the new entries behind those that are each row's own; zeros behind them. A buffer keeps its size.

    Args:
        c: the importer.
        cache: (batch, heads, past, size).
        new: (batch, heads, rows, size).
        rows: the lengths.
    """
    both = ops.concat(cache, new, axis=2)
    if not rows.ragged:
        return both
    batch, heads, total, size = both.type.shape
    past = size_value(c, cache.type.shape[2])
    count = total if rows.buffer is None else cache.type.shape[2]
    at = ops.reshape(iota(c.builder, count), shape=(1, count))
    shifted = ops.add(at, ops.sub(past, rows.cached))  # (batch, count)
    source = ops.where(ops.less(at, rows.cached), at, shifted)
    last = ops.sub(size_value(c, total), 1)
    lane = ops.reshape(ops.mul(iota(c.builder, product([batch, heads])), size_value(c, total)), shape=(batch, heads, 1))
    index = ops.add(lane, ops.reshape(ops.minimum(source, last), shape=(batch, 1, count)))
    flat = ops.reshape(both, shape=(product([batch, heads, total]), size))
    moved = ops.gather(flat, index, axis=0)
    filled = ops.reshape(ops.less_equal(source, last), shape=(batch, 1, count, 1))
    return ops.where(filled, moved, number(c.builder, 0, moved.type.dtype))


def _allowed(c: Importer, rows: _Rows, count: Size, keys: Size, causal: int, window: int) -> Any:
    """Which keys a query may attend to, (batch, 1, rows or 1, keys)."""
    key = iota(c.builder, keys)
    if not causal:
        return ops.less(key, rows.ends)
    batch = rows.positions.type.shape[0]
    position = ops.reshape(rows.positions, shape=(batch, 1, count, 1))
    found = ops.less_equal(key, position)
    if window > 0:
        found = ops.logical_and(found, ops.greater(key, ops.sub(position, window)))
    return found


def _split(c: Importer, query: T, key: T | None, value: T | None, heads: int, shared: int) -> tuple[Any, Any, Any]:
    """Queries (batch, heads, rows, size), keys and values (batch, shared heads, rows, size)."""
    if key is not None and value is not None:
        given: tuple[Any, ...] = tuple(c.value(t) for t in (query, key, value))
    else:
        both = c.value(query)
        width = both.type.shape[-1]
        if isinstance(width, Dim):
            raise Unsized(f"query is {both.type}; the last size is known when it comes")
        if key is not None or value is not None or width % (heads + 2 * shared):
            raise ModelError(f"query is {both.type}; expected keys and values beside it, or in it")
        size = width // (heads + 2 * shared)
        ends = (0, heads * size, (heads + shared) * size, width)
        given = tuple(slice_axis(both, -1, a, b) for a, b in itertools.pairwise(ends))
    counts = (heads, shared, shared)
    q, k, v = (heads_of(t, n, "an operand") for t, n in zip(given, counts, strict=True))
    return q, k, v


@operator("GroupQueryAttention")
def GroupQueryAttention(
    c: Importer,
    query: T,
    key: T | None,
    value: T | None,
    past_key: T | None,
    past_value: T | None,
    seqlens_k: T,
    total_sequence_length: T,
    cos_cache: T | None = None,
    sin_cache: T | None = None,
    position_ids: T | None = None,
    attention_bias: T | None = None,
    head_sink: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    q_norm_weight: T | None = None,
    k_norm_weight: T | None = None,
    query_seqlens: T | None = None,
    *,
    kv_num_heads: int,
    num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    local_window_size: int = -1,
    q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> Any:
    """The cache grows by the new keys, or keeps its size where they fit; see ``_rows``."""
    if num_heads < 1 or kv_num_heads < 1 or num_heads % kv_num_heads:
        raise ModelError(f"{num_heads} heads of queries don't fit {kv_num_heads} of keys")
    if (k_quant_type, v_quant_type) != ("NONE", "NONE") or sliding_window_cache or qk_output:
        raise ModelError("a quantized cache, one of a window, or the scores as output are not supported")
    if query_seqlens is not None:
        raise ModelError("query_seqlens, with padding behind the queries of a batch, is not supported")
    q, k, v = _split(c, query, key, value, num_heads, kv_num_heads)
    batch, _, count, _ = q.type.shape
    if (past_key is None) != (past_value is None) or (q_norm_weight is None) != (k_norm_weight is None):
        raise ModelError("past_key and past_value, and the two norms, come together or not at all")
    past: Size = 0 if past_key is None else c.value(past_key).type.shape[2]
    rows = _rows(c, seqlens_k, total_sequence_length, batch, count, past)
    if q_norm_weight is not None and k_norm_weight is not None:
        q, k = (
            ops.layer_norm(t, c.weight(w), axis=3, epsilon=qk_norm_epsilon if own is None else own, center=0)
            for t, w, own in ((q, q_norm_weight, q_norm_epsilon), (k, k_norm_weight, k_norm_epsilon))
        )
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ModelError("do_rotary needs cos_cache and sin_cache")
        cos, sin = tables_at(c, (cos_cache, sin_cache), _positions(c, rows, position_ids))
        q, k = (rotated(t, cos, sin, rotary_interleaved) for t in (q, k))
    if past_key is not None and past_value is not None:
        k, v = _appended(c, c.value(past_key), k, rows), _appended(c, c.value(past_value), v, rows)
    present = (k, v)
    if rows.buffer is not None:
        k, v = (slice_axis(t, 2, 0, rows.buffer) for t in present)
    times = num_heads // kv_num_heads
    if times > 1:
        k, v = repeated_heads(k, times), repeated_heads(v, times)
    zero, never = (number(c.builder, n, q.type.dtype) for n in (0, -math.inf))
    bias = ops.where(_allowed(c, rows, count, k.type.shape[2], causal, local_window_size), zero, never)
    if attention_bias is not None:
        bias = ops.add(bias, c.value(attention_bias))
    sink = None if head_sink is None else c.weight(head_sink)
    if sink is None and smooth_softmax == 1:
        sink = full(c.builder, (num_heads,), 0.0, q.type.dtype)
    y = context(c, q, k, v, bias, scale, softcap, sink)
    return (y, *present)[: max(1, len(c.node.outputs))]
