"""Converters of operators of loops that generate tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataflow import int64, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...dynamic_sizes import size_value
from ...emit import cast_to, full, iota, number, slice_axis
from ...importer import Importer
from ...tensor import Tensor

T = Tensor
operator = Collector("com.microsoft")
_NO_TOKEN = int(np.iinfo(np.int64).min)


@operator("NGramRepeatBlock")
def NGramRepeatBlock(c: Importer, input_ids: T, scores: T, *, ngram_size: int) -> Any:
    """Scores (batch, tokens) with -inf for what would repeat ``ngram_size`` tokens of the ids (batch, rows)."""
    ids, given = c.value(input_ids), c.value(scores)
    if ids.type.rank != 2 or given.type.rank != 2 or ngram_size < 1:
        raise ModelError(
            f"input_ids is {ids.type}, scores {given.type}, ngram_size {ngram_size}; expected (batch, rows), "
            "(batch, tokens) and at least 1"
        )
    batch, rows = ids.type.shape
    reach = ngram_size - 1
    repeats: Any = None
    # Each row of ids is taken for the end of so many tokens; before the first there are none that repeat.
    every = ids if not reach else ops.concat(full(c.builder, (batch, reach), _NO_TOKEN, ids.type.dtype), ids, axis=1)
    for offset in range(reach):
        last = slice_axis(every, 1, rows + offset, rows + offset + 1)
        same = ops.equal(slice_axis(every, 1, offset, offset + rows), last)
        repeats = same if repeats is None else ops.logical_and(repeats, same)
    worst, best = (number(c.builder, n, given.type.dtype) for n in (-math.inf, math.inf))
    if repeats is None:
        limits = ops.broadcast_to(ops.reshape(worst, shape=(1, 1)), shape=(batch, rows))
    else:
        limits = ops.where(repeats, worst, best)
    return ops.scatter_elements(given, ids, limits, axis=1, reduction="min")


@operator("BifurcationDetector")
def BifurcationDetector(
    c: Importer,
    src_tokens: T,
    cur_tokens: T,
    prev_suffix_match_idx: T,
    pred_tokens: T | None = None,
    *,
    max_ngram_size: int = 3,
    min_ngram_size: int = 1,
) -> Any:
    """Tokens after those predicted, up to the first unlike the source's, are taken; and where the source goes on.

    That is behind the only place in the source of the last n-gram, as ``suffix_match_idx``, or -1.
    """
    source, tokens, index = c.value(src_tokens), c.value(cur_tokens), c.value(prev_suffix_match_idx)
    if not 1 <= min_ngram_size <= max_ngram_size or source.type.rank != 1 or tokens.type.rank != 1:
        raise ModelError(
            f"the tokens are {source.type} and {tokens.type}, of n-grams from {min_ngram_size} to {max_ngram_size}; "
            "expected vectors, and sizes from 1 on"
        )
    if pred_tokens is not None:
        predicted = c.value(pred_tokens)
        compared = predicted.type.shape[0] - 1
        at = ops.add(iota(c.builder, compared), ops.reshape(index, shape=(1,)))
        alike = ops.equal(slice_axis(predicted, 0, 0, compared), ops.gather(source, at, axis=0))
        same = ops.less(ops.cumsum(ops.sub(1, cast_to(alike, int64)), axis=0), 1)
        count = ops.add(ops.reduce_sum(cast_to(same, int64), axes=(0,), keepdims=0), 1)
        tokens = ops.concat(tokens, slice_axis(predicted, 0, 0, c.count(count, "tokens")), axis=0)
    size, length = source.type.shape[0], tokens.type.shape[0]
    before = full(c.builder, (max_ngram_size,), _NO_TOKEN, int64)
    after = full(c.builder, (max_ngram_size,), _NO_TOKEN + 1, int64)
    ended, every = ops.concat(before, tokens, axis=0), ops.concat(source, after, axis=0)
    suffix: Any = number(c.builder, -1, int64)
    searches: Any = None
    for n in range(min_ngram_size, max_ngram_size + 1):
        found: Any = None
        for offset in range(n):
            start = length + max_ngram_size - n + offset
            same = ops.equal(slice_axis(every, 0, offset, offset + size + 1), slice_axis(ended, 0, start, start + 1))
            found = same if found is None else ops.logical_and(found, same)
        hits = cast_to(found, int64)
        times = ops.reduce_sum(hits, axes=(0,), keepdims=0)
        fits = ops.logical_and(ops.greater(times, 0), ops.greater_equal(size_value(c, length), n))
        valid = fits if searches is None else ops.logical_and(searches, fits)
        next_ = ops.add(ops.argmax(hits, axis=0, keepdims=0), n)
        several = ops.greater(times, 1)
        suffix = ops.where(valid, ops.where(several, number(c.builder, -1, int64), next_), suffix)
        searches = ops.logical_and(valid, ops.logical_or(several, ops.less(next_, size_value(c, size))))
    return tokens, ops.reshape(suffix, shape=index.type.shape)
