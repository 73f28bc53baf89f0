"""Converters of multi-head attention, with projections, masks of padding and a cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dataflow import Dim, Value, ops
from dataflow.errors import ModelError
from dataflow.plugin import Size

from ...converters import Collector
from ...dynamic_sizes import required, size_value
from ...emit import along, cast_to, iota, number, slice_axis
from ...importer import Importer
from ...shape_eval import product
from ...tensor import Tensor
from ..attention import heads_of
from ..linalg import MatMul

T = Tensor
operator = Collector("com.microsoft")


def context(
    c: Importer,
    q: Value,
    k: Value,
    v: Value,
    bias: Value | None,
    scale: float | None,
    softcap: float = 0.0,
    sink: Value | None = None,
) -> Any:
    """Attention of queries (batch, heads, rows, size) to keys and values, (batch, rows, heads * size of values).

    Args:
        c: the importer.
        q: the queries.
        k: the keys, (batch, heads, keys, size).
        v: the values, (batch, heads, keys, size of values).
        bias: what is added to the scores, of their dtype, or None.
        scale: of the scores; None for one by the square root of the size.
        softcap: scores are kept below it by a tanh; 0 leaves them.
        sink: a score of each head (heads,) that takes weight and gives nothing, or None.

    Raises:
        ModelError: the size is not known, or 0.
    """
    scores = ops.mul(ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), scale_of(q, scale))
    if softcap > 0:
        scores = ops.mul(ops.tanh(ops.mul(scores, 1 / softcap)), softcap)
    scores = scores if bias is None else ops.add(scores, bias)
    if sink is None:
        return joined(ops.matmul(ops.softmax(scores, axis=-1), v))
    column = ops.reshape(sink, shape=(1, sink.type.shape[0], 1, 1))
    column = ops.broadcast_to(column, shape=(*scores.type.shape[:3], 1))
    weights = ops.softmax(ops.concat(scores, column, axis=-1), axis=-1)
    return joined(ops.matmul(slice_axis(weights, -1, 0, scores.type.shape[-1]), v))


def scale_of(q: Value, scale: float | None) -> float:
    """The factor of the scores; onnxruntime takes 0 for the default too."""
    size = q.type.shape[-1]
    if scale:
        return scale
    if isinstance(size, Dim) or size == 0:
        raise ModelError(f"queries are {q.type}; expected a known size of the heads, from 1 on")
    return 1 / math.sqrt(size)


def joined(y: Value) -> Any:
    """(batch, heads, rows, size) as (batch, rows, heads * size)."""
    n, heads, rows, size = y.type.shape
    return ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), shape=(n, rows, product([heads, size])))


def _padding(c: Importer, mask: Value, batch: Size, rows: Size, keys: Size) -> Any:
    """Which keys are no padding, as bools that broadcast to (batch, heads, rows, keys).

    Args:
        c: the importer.
        mask: integers: 1 or 0 for each key, (batch, keys) or (batch, rows, keys); or the end of each row's keys
            (batch,), with their starts behind them (2 * batch,), or with sums of lengths (3 * batch + 2,), not read.
        batch: size of the scores.
        rows: size of the scores.
        keys: size of the scores.

    Raises:
        ModelError: it has another shape.
    """
    shape = mask.type.shape
    if mask.type.rank in (2, 3):
        wanted = (batch, keys) if mask.type.rank == 2 else (batch, rows, keys)
        for own, size in zip(shape, wanted, strict=True):
            text = f"the mask is {mask.type}; expected ({', '.join(map(str, wanted))})"
            mask = required(mask, own, size, text)
        open_ = ops.greater(mask, number(c.builder, 0, mask.type.dtype))
        return ops.reshape(open_, shape=(shape[0], 1, *((1,) if mask.type.rank == 2 else ()), *shape[1:]))
    if mask.type.rank != 1 or shape[0] not in (batch, 2 * batch, 3 * batch + 2):
        expected = f"({batch}, {keys}), ({batch}, {rows}, {keys}), ({batch},), ({2 * batch},) or ({3 * batch + 2},)"
        raise ModelError(f"the mask is {mask.type}; expected the shape {expected}")
    key = cast_to(iota(c.builder, keys), mask.type.dtype)
    ends = ops.reshape(slice_axis(mask, 0, 0, batch), shape=(batch, 1, 1, 1))
    open_ = ops.less(key, ends)
    if shape[0] != 2 * batch:
        return open_
    starts = ops.reshape(slice_axis(mask, 0, batch, 2 * batch), shape=(batch, 1, 1, 1))
    return ops.logical_and(open_, ops.greater_equal(key, starts))


def masked(
    c: Importer,
    q: Value,
    k: Value,
    padding: T | None,
    filter_value: float,
    added: T | None,
    past: Size | None,
) -> Any:
    """What is added to the scores of queries (batch, heads, rows, size) and keys, or None.

    Args:
        c: the importer.
        q: the queries.
        k: the keys, with those of the cache before them.
        padding: see ``_padding``, or None.
        filter_value: what the scores of padding get.
        added: a tensor that is added, or None.
        past: how many keys lie in the cache, where no query may attend to later keys; else None.
    """
    batch, _, rows, _ = q.type.shape
    keys, dtype = k.type.shape[2], q.type.dtype
    zero = number(c.builder, 0, dtype)
    bias = None
    if padding is not None:
        open_ = _padding(c, c.value(padding), batch, rows, keys)
        bias = ops.where(open_, zero, number(c.builder, filter_value, dtype))
    if past is not None:
        row = ops.add(along(iota(c.builder, rows), 0, 2), size_value(c, past))
        earlier = ops.less_equal(along(iota(c.builder, keys), 1, 2), row)
        bias = ops.where(earlier, zero if bias is None else bias, number(c.builder, -math.inf, dtype))
    if added is not None:
        bias = c.value(added) if bias is None else ops.add(bias, c.value(added))
    return bias


def _without_sharing(shared: int, **given: T | None) -> None:
    """Raises ModelError where the cache is a buffer that the node changes in place."""
    names = [name for name, tensor in given.items() if tensor is not None]
    if shared or names:
        what = "past_present_share_buffer is 1" if shared else f"{names[0]} is given"
        raise ModelError(f"{what}: a cache that is changed in place is not supported; expected one that grows")


@operator("Attention")
def Attention(
    c: Importer,
    x: T,
    weights: T,
    bias: T | None = None,
    mask_index: T | None = None,
    past: T | None = None,
    attention_bias: T | None = None,
    past_sequence_length: T | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> Any:
    """Attention of the projections of one tensor."""
    if do_rotary:
        raise ModelError("do_rotary is not supported; expected 0")
    projected = MatMul(c, x, weights)
    if bias is not None:
        projected = ops.add(projected, c.weight(bias))
    return self_attention(
        c,
        projected,
        mask_index,
        past,
        attention_bias,
        past_sequence_length,
        num_heads=num_heads,
        mask_filter_value=mask_filter_value,
        shared=past_present_share_buffer,
        sizes=qkv_hidden_sizes,
        scale=scale,
        unidirectional=unidirectional,
    )


def self_attention(
    c: Importer,
    projected: Value,
    mask_index: T | None,
    past: T | None,
    attention_bias: T | None,
    past_sequence_length: T | None,
    *,
    num_heads: int,
    mask_filter_value: float,
    shared: int,
    sizes: Sequence[int] | None,
    scale: float | None,
    unidirectional: int,
) -> Any:
    """Attention of queries, keys and values that lie beside each other: (batch, rows, sum of their sizes).

    Raises:
        ModelError: the sizes don't fit, or the cache is changed in place.
    """
    _without_sharing(shared, past_sequence_length=past_sequence_length)
    width = projected.type.shape[-1]
    if projected.type.rank != 3 or isinstance(width, Dim):
        raise ModelError(f"the projection is {projected.type}; expected (batch, rows, size)")
    sizes = sizes or (width // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != width or min(sizes) < 1:
        raise ModelError(f"the sizes of queries, keys and values are {tuple(sizes)}; expected a sum of {width}")
    ends = (0, sizes[0], sizes[0] + sizes[1], width)
    q, k, v = (
        heads_of(slice_axis(projected, -1, start, stop), num_heads, "a projection")
        for start, stop in itertools.pairwise(ends)
    )
    before: Size = 0
    if past is not None:
        cache = c.value(past)
        if cache.type.rank != 5:
            raise ModelError(f"past is {cache.type}; expected (2, batch, heads, keys, size)")
        before = cache.type.shape[3]
        k, v = (ops.concat(_entry(cache, i), new, axis=2) for i, new in enumerate((k, v)))
    bias = masked(c, q, k, mask_index, mask_filter_value, attention_bias, before if unidirectional else None)
    y = context(c, q, k, v, bias, scale)
    if len(c.node.outputs) < 2 or not c.node.outputs[1]:
        return y
    if sizes[0] != sizes[2]:
        raise ModelError(f"keys have the size {sizes[1]}, values {sizes[2]}; expected equal ones for present, or none")
    return y, ops.concat(*(ops.reshape(t, shape=(1, *t.type.shape)) for t in (k, v)), axis=0)


def _entry(cache: Value, index: int) -> Any:
    """One entry of the first axis, without it."""
    return ops.reshape(slice_axis(cache, 0, index, index + 1), shape=cache.type.shape[1:])


@operator("MultiHeadAttention")
def MultiHeadAttention(
    c: Importer,
    query: T,
    key: T | None = None,
    value: T | None = None,
    bias: T | None = None,
    key_padding_mask: T | None = None,
    attention_bias: T | None = None,
    past_key: T | None = None,
    past_value: T | None = None,
    past_sequence_length: T | None = None,
    cache_indirection: T | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> Any:
    _without_sharing(0, past_sequence_length=past_sequence_length, cache_indirection=cache_indirection)
    q, k, v = _operands(c, query, key, value, bias, num_heads)
    if (past_key is None) != (past_value is None):
        raise ModelError("past_key and past_value come together or not at all")
    before: Size = 0
    if past_key is not None and past_value is not None:
        before = c.value(past_key).type.shape[2]
        k, v = ops.concat(c.value(past_key), k, axis=2), ops.concat(c.value(past_value), v, axis=2)
    causal = before if unidirectional else None
    mask = masked(c, q, k, key_padding_mask, mask_filter_value, attention_bias, causal)
    return (context(c, q, k, v, mask, scale), k, v)[: max(1, len(c.node.outputs))]


def _operands(
    c: Importer, query: T, key: T | None, value: T | None, bias: T | None, heads: int
) -> tuple[Any, Any, Any]:
    """Queries, keys and values with their biases, (batch, heads, rows, size) each."""
    given = [c.value(t) for t in (query, key, value) if t is not None]
    ranks = [t.type.rank for t in given]
    if ranks == [5]:  # (batch, rows, heads, 3, size)
        found = [_interleaved(given[0], i) for i in range(3)]
    elif ranks == [3, 5]:  # keys and values (batch, rows, heads, 2, size)
        found = [given[0], *(_interleaved(given[1], i) for i in range(2))]
    elif ranks in ([3, 3, 3], [3, 4, 4]):
        found = given
    else:
        shapes = ", ".join(map(str, (t.type for t in given)))
        raise ModelError(f"its operands are {shapes}; expected three of three axes, or queries with keys and values")
    if bias is not None:
        vector = c.weight(bias)
        sizes = [product(t.type.shape[2:]) for t in found]
        if ranks == [3, 4, 4]:  # keys and values that were projected before have their biases
            sizes = [sizes[0], sizes[0], vector.type.shape[0] - 2 * sizes[0]]
        start: Any = 0
        for index, size in enumerate(sizes):
            if found[index].type.rank == 3:
                found[index] = ops.add(found[index], slice_axis(vector, 0, start, start + size))
            start = start + size
        if start != vector.type.shape[0]:
            raise ModelError(f"the bias is {vector.type}; expected {start} elements, those of its operands")
    return tuple(heads_of(t, heads, "an operand") for t in found)


def _interleaved(x: Value, index: int) -> Any:
    """(batch, rows, heads, several, size): one of the several, as (batch, rows, heads * size)."""
    n, rows, heads, _, size = x.type.shape
    return ops.reshape(slice_axis(x, 3, index, index + 1), shape=(n, rows, product([heads, size])))
