"""Converters of hashes: of texts and numbers, and of the tokens that stand before each token."""

from __future__ import annotations

from typing import Any

from dataflow import Value, int32, ops, string
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import full, number, slice_axis
from ...importer import Importer
from ...tensor import Tensor

T = Tensor
operator = Collector("com.microsoft")


@operator("MurmurHash3")
def MurmurHash3(c: Importer, x: T, *, positive: int = 1, seed: int = 0) -> Any:
    value = c.value(x)
    if value.type.dtype != string and value.type.dtype.bits not in (32, 64):
        raise ModelError(f"its input is {value.type}; expected strings, or numbers of 32 or 64 bits")
    y = ops.murmur_hash(value, seed=seed % (1 << 32))
    return y if positive else ops.bitcast(y, to=int32)


@operator("NGramHashMapping")
def NGramHashMapping(
    c: Importer,
    input_ids: T,
    multipliers: T,
    vocab_sizes: T,
    past_ids: T | None = None,
    head_offsets: T | None = None,
    eos_token_id: T | None = None,
    segment_ids: T | None = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
) -> Any:
    """For each token hashes of it with 1, 2, ... tokens before it (batch, tokens, hashes), and the last tokens."""
    ids, reach = c.value(input_ids), max_ngram_size - 1
    if ids.type.rank != 2 or reach < 1 or n_head_per_ngram < 1:
        raise ModelError(
            f"input_ids is {ids.type}, max_ngram_size {max_ngram_size}, n_head_per_ngram {n_head_per_ngram}; expected "
            "(batch, tokens), at least 2 and at least 1"
        )
    (batch, tokens), dtype = ids.type.shape, ids.type.dtype
    absent: Any = number(c.builder, pad_id, dtype)
    if eos_token_id is not None:
        absent = ops.reshape(c.value(eos_token_id), shape=())
    if past_ids is None:
        before = ops.broadcast_to(ops.reshape(absent, shape=(1, 1)), shape=(batch, reach))
    else:
        before = c.value(past_ids)
    every = ops.concat(before, ids, axis=1)
    ends = _ends(c, every, absent, segment_ids, reach, bool(reset_on_eos) and eos_token_id is not None)
    factors, moduli = c.value(multipliers), c.value(vocab_sizes)
    hashes, separated, mixed = [], None, ops.mul(ids, slice_axis(factors, 0, 0, 1))
    for distance in range(1, max_ngram_size):
        start = reach - distance
        token = slice_axis(every, 1, start, start + tokens)
        for end, offset in ends:
            here = slice_axis(end, 1, start + offset, start + offset + tokens)
            separated = here if separated is None else ops.logical_or(separated, here)
        token = token if separated is None else ops.where(separated, absent, token)
        mixed = ops.bitwise_xor(mixed, ops.mul(token, slice_axis(factors, 0, distance, distance + 1)))
        own = slice_axis(moduli, 0, (distance - 1) * n_head_per_ngram, distance * n_head_per_ngram)
        hashes.append(ops.mod(ops.reshape(mixed, shape=(batch, tokens, 1)), own))
    y = ops.concat(*hashes, axis=2)
    y = y if head_offsets is None else ops.add(y, c.value(head_offsets))
    return (y, slice_axis(every, 1, tokens, tokens + reach))[: max(1, len(c.node.outputs))]


def _ends(
    c: Importer, every: Value, last: Any, segment_ids: T | None, reach: int, resets: bool
) -> list[tuple[Value, int]]:
    """What separates tokens from those before them: bools for each token, and from where on a token reads them."""
    found: list[tuple[Value, int]] = []
    if resets:  # a token that ends a text separates itself too
        found.append((ops.equal(every, last), 0))
    if segment_ids is not None:  # from the first token of a segment on
        segments = c.value(segment_ids)
        batch, tokens = segments.type.shape
        changed = ops.logical_not(ops.equal(slice_axis(segments, 1, 1, tokens), slice_axis(segments, 1, 0, tokens - 1)))
        unknown = full(c.builder, (batch, reach + 1), 0, changed.type.dtype)
        found.append((ops.concat(unknown, changed, axis=1), 1))
    return found
