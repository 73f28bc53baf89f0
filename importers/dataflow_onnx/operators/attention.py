"""Converters of attention, linear attention and rotary position embedding."""

from __future__ import annotations

import math
from typing import Any

from dataflow import Dim, Value, float32, ops
from dataflow.errors import ModelError
from dataflow.plugin import Size

from ..converters import Collector
from ..emit import cast_to, full, number, slice_axis
from ..file.records import GraphRecord
from ..importer import Importer
from ..shape_eval import product
from ..tensor import Tensor, Unsized
from .attention_mask import attention_mask
from .cast import dtype_of

T = Tensor
operator = Collector()
_PREVIEW = "ai.onnx.preview"


def heads_of(x: Value, heads: int | None, what: str) -> Any:
    """(batch, sequence, heads * size) as (batch, heads, sequence, size); what has four axes already stays."""
    if x.type.rank == 4:
        return x
    width = x.type.shape[-1]
    if x.type.rank == 3 and isinstance(width, Dim):
        raise Unsized(f"{what} is {x.type} with {heads} heads; the last size is known when it comes")
    if x.type.rank != 3 or not heads or heads < 1 or isinstance(width, Dim) or width % heads:
        raise ModelError(f"{what} is {x.type} with {heads} heads; expected (batch, sequence, heads * size), or 4 axes")
    shape = (*x.type.shape[:2], heads, width // heads)
    return ops.transpose(ops.reshape(x, shape=shape), perm=(0, 2, 1, 3))


def repeated_heads(x: Value, times: int) -> Any:
    """(batch, heads, rows, size) with each head ``times`` times, one after the other."""
    n, heads, *rest = x.type.shape
    repeated = ops.broadcast_to(ops.reshape(x, shape=(n, heads, 1, *rest)), shape=(n, heads, times, *rest))
    return ops.reshape(repeated, shape=(n, product([heads, times]), *rest))


def _for_each_query(query: Value, x: Value) -> Any:
    """Keys or values with as many heads as there are of queries, each repeated for its group."""
    heads, shared = query.type.shape[1], x.type.shape[1]
    if isinstance(heads, Dim) or isinstance(shared, Dim) or shared == 0 or heads % shared:
        raise ModelError(f"{heads} heads of queries don't fit {shared} of keys and values")
    return x if heads == shared else repeated_heads(x, heads // shared)


def _scores(query: Value, key: Value, scale: float | None) -> Any:
    """Scaled products of queries and keys; each operand by the square root of the scale, as the operator is defined."""
    width = query.type.shape[3]
    if isinstance(width, Dim) or (scale is None and width == 0):
        raise ModelError(f"queries are {query.type}: heads of {width} elements, and no scale")
    if scale is not None and scale < 0:
        raise ModelError(f"scale is {scale}; expected a number from 0 on")
    half = math.sqrt(1 / math.sqrt(width) if scale is None else scale)
    return ops.matmul(ops.mul(query, half), ops.transpose(ops.mul(key, half), perm=(0, 1, 3, 2)))


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
    key, value = _for_each_query(query, key), _for_each_query(query, cast_to(value, query.type.dtype))
    raw = _scores(query, key, scale)
    capped = ops.mul(ops.tanh(ops.mul(raw, 1 / softcap)), softcap) if softcap > 0 else raw
    given = None if attn_mask is None else c.value(attn_mask)
    lengths = None if nonpad_kv_seqlen is None else c.value(nonpad_kv_seqlen)
    mask = attention_mask(c, capped, given, past, lengths, is_causal, (left_window_size, right_window_size))
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


@operator("FlexAttention", 1, _PREVIEW)
def FlexAttention(
    c: Importer,
    q: T,
    k: T,
    v: T,
    *,
    scale: float | None = None,
    score_mod: GraphRecord | None = None,
    prob_mod: GraphRecord | None = None,
    softmax_precision: int | None = None,
) -> Any:
    query, key, value = (c.value(t) for t in (q, k, v))
    if any(x.type.rank != 4 for x in (query, key, value)):
        raise ModelError(f"Q is {query.type}, K {key.type}, V {value.type}; expected 4 axes each")
    own = query.type.dtype
    computed = dtype_of(softmax_precision) if softmax_precision is not None else own if own.bits > 16 else float32
    scores = cast_to(_scores(query, _for_each_query(query, key), scale), computed)
    if score_mod is not None:
        scores = _modified(c, scores, score_mod)
    weights = ops.softmax(scores, axis=-1)
    if prob_mod is not None:
        weights = _modified(c, weights, prob_mod)
    return cast_to(ops.matmul(weights, cast_to(_for_each_query(query, value), computed)), own)


def _modified(c: Importer, x: Value, body: GraphRecord) -> Any:
    """What a graph of the file makes of a value: another of its type."""
    results = [c.value(tensor) for tensor in c.inlined(body, [x])]
    if len(results) != 1 or results[0].type != x.type:
        given = ", ".join(str(y.type) for y in results)
        raise ModelError(f"the body {body.name!r} gives {given or 'nothing'}; expected {x.type}")
    return results[0]


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


@operator("LinearAttention", 27)
def LinearAttention(
    c: Importer,
    query: T,
    key: T,
    value: T,
    past_state: T | None = None,
    decay: T | None = None,
    beta: T | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> Any:
    q, k, v = (
        heads_of(c.value(t), heads, name)
        for t, heads, name in (
            (query, q_num_heads, "query"),
            (key, kv_num_heads, "key"),
            (value, kv_num_heads, "value"),
        )
    )
    return recurrent_attention(c, q, k, v, past_state, decay, beta, scale=scale, update_rule=update_rule)


def recurrent_attention(
    c: Importer,
    query: Value,
    key: Value,
    value: Value,
    past_state: T | None,
    decay: T | None,
    beta: T | None,
    *,
    scale: float,
    update_rule: str,
) -> tuple[Any, Any]:
    """Linear attention with a state for each head of keys and values, which several heads of queries may share.

    Args:
        c: the importer.
        query: (batch, heads of queries, length, size), scaled by ``scale``, or 1 / sqrt(size) where that is 0.
        key: (batch, heads, length, size).
        value: (batch, heads, length, width).
        past_state: (batch, heads, size, width); zeros by default.
        decay: (batch, length, heads) or (batch, length, heads * size), the logarithm, where the rule is gated.
        beta: (batch, length, heads) or (batch, length, 1), the rate, where the rule corrects by the delta.
        scale: of the queries.
        update_rule: "linear", "gated", "delta" or "gated_delta".

    Returns:
        The result (batch, length, heads of queries * width), and the last state.

    Raises:
        ModelError: where heads, or operands and rule, don't fit.
    """
    gated, corrected = update_rule.startswith("gated"), update_rule.endswith("delta")
    if (decay is not None) != gated or (beta is not None) != corrected:
        there = [name for name, t in (("decay", decay), ("beta", beta)) if t is not None]
        raise ModelError(
            f"update_rule is {update_rule!r}, which doesn't fit {' and '.join(there) or 'no decay or beta'}"
        )
    readers, heads = query.type.shape[1], value.type.shape[1]
    if isinstance(readers, Dim) or isinstance(heads, Dim) or heads == 0 or readers % heads:
        raise ModelError(f"{readers} heads of queries don't fit {heads} of keys and values")
    q, k, v = (cast_to(x, float32) for x in (query, key, value))
    batch, _, length, size = q.type.shape
    if isinstance(size, Dim) or size == 0:
        raise ModelError(f"query is {query.type}; expected heads of a fixed size")
    width, groups = v.type.shape[3], product([batch, heads])
    if past_state is None:
        state = full(c.builder, (groups, size, width), 0.0, float32)
    else:
        state = ops.reshape(cast_to(c.value(past_state), float32), shape=(groups, size, width))
    factor = None if decay is None else ops.exp(_per_head(c, decay, heads, groups, "decay"))
    rate = None if beta is None else _per_head(c, beta, heads, groups, "beta")
    y, last = ops.linear_attention(
        ops.mul(ops.reshape(q, shape=(groups, readers // heads, length, size)), scale or 1 / math.sqrt(size)),
        ops.reshape(k, shape=(groups, length, size)),
        ops.reshape(v, shape=(groups, length, width)),
        state,
        factor,
        rate,
    )
    heads_first = ops.reshape(y, shape=(batch, readers, length, width))
    joined = ops.reshape(
        ops.transpose(heads_first, perm=(0, 2, 1, 3)), shape=(batch, length, product([readers, width]))
    )
    kept = ops.reshape(last, shape=(batch, heads, size, width))
    return cast_to(joined, query.type.dtype), cast_to(kept, (query if past_state is None else past_state).type.dtype)


def _per_head(c: Importer, given: T, heads: int, groups: Any, what: str) -> Any:
    """(batch, length, heads * n), or one number for all heads, as (batch * heads, length, n)."""
    x = cast_to(c.value(given), float32)
    if x.type.rank == 3 and x.type.shape[-1] == 1:
        x = ops.broadcast_to(x, shape=(*x.type.shape[:2], heads))
    split = heads_of(x, heads, what)
    return ops.reshape(split, shape=(groups, *split.type.shape[2:]))
