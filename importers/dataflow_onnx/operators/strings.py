"""Converters of operators on strings, and of counts of n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Value, float32, int64, ops, string
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import cast_to, full, iota, number, slice_axis
from ..file.records import Array
from ..importer import Importer
from ..re2 import python_pattern
from ..tensor import Tensor

T = Tensor
operator = Collector()


@operator("StringConcat", 20)
def StringConcat(c: Importer, x: T, y: T) -> Any:
    return ops.string_concat(c.value(x), c.value(y))


@operator("RegexFullMatch", 20)
def RegexFullMatch(c: Importer, x: T, *, pattern: str = "") -> Any:
    return ops.regex_full_match(c.value(x), pattern=python_pattern(pattern))


@operator("StringSplit", 20)
def StringSplit(c: Importer, x: T, *, delimiter: str = "", maxsplit: int = -1) -> Any:
    value = c.value(x)
    if maxsplit < -1:
        raise ModelError(f"maxsplit is {maxsplit}; expected at least 0")
    counts = ops.string_split_count(value, delimiter=delimiter, maxsplit=maxsplit)
    flat = ops.reshape(counts, shape=(_elements(counts),))
    most = ops.reduce_max(ops.concat(flat, c.builder.constant(np.zeros(1, np.int64)), axis=0), axes=(0,), keepdims=0)
    count = c.count(most, "number of substrings")
    return ops.string_split(value, delimiter=delimiter, maxsplit=maxsplit, count=count), counts


def _elements(value: Value) -> Any:
    total: Any = 1
    for size in value.type.shape:
        total = total * size
    return total


def _sorted_keys(keys: Sequence[Any], dtype: Any) -> Array:
    """Keys as ``find`` takes them: ascending, without equals."""
    return np.array(sorted(set(keys)), dtype)


@operator("StringNormalizer", 10)
def StringNormalizer(
    c: Importer,
    x: T,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Any:
    value = c.value(x)
    shape = value.type.shape
    if value.type.dtype != string or len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 1):
        raise ModelError(f"its input is {value.type}; expected strings [C] or [1, C]")
    if locale[:2] in ("tr", "az", "lt"):
        raise ModelError(f"locale {locale!r} has other rules for upper and lower case, which are not supported")
    words = ops.reshape(value, shape=(shape[-1],))
    ascii_only = locale.partition(".")[0] in ("C", "POSIX")
    if stopwords:
        words = _without(c, words, stopwords, bool(is_case_sensitive), ascii_only)
    if case_change_action != "NONE":
        words = ops.string_case(words, case=case_change_action.lower(), ascii_only=ascii_only)
    return ops.reshape(words, shape=(1, words.type.shape[0])) if len(shape) == 2 else words


def _lower(word: str, ascii_only: bool) -> str:
    return word.encode().lower().decode() if ascii_only else word.lower()  # bytes have the case of ASCII alone


def _without(c: Importer, words: Value, stopwords: Sequence[str], case_sensitive: bool, ascii_only: bool) -> Any:
    """The words that are no stop words, in order; one empty string where none is left."""
    g = c.builder
    stops = list(stopwords) if case_sensitive else [_lower(word, ascii_only) for word in stopwords]
    keys = g.constant(_sorted_keys(stops, object))
    compared = words if case_sensitive else ops.string_case(words, case="lower", ascii_only=ascii_only)
    kept = ops.equal(ops.find(compared, keys), number(g, keys.type.elements, int64))
    left = ops.reduce_sum(ops.cast(kept, to=int64), axes=(0,), keepdims=1)
    none = ops.equal(left, number(g, 0, int64))
    words = ops.concat(words, g.constant(np.array([""], object)), axis=0)
    kept = ops.concat(kept, none, axis=0)
    count = c.count(ops.add(left, ops.cast(none, to=int64)), "number of words")
    return ops.gather(words, ops.reshape(ops.nonzero(kept, count=count), shape=(count,)), axis=0)


@operator("TfIdfVectorizer", 9)
def TfIdfVectorizer(
    c: Importer,
    x: T,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] = (),
) -> Any:
    value = c.value(x)
    if value.type.rank not in (1, 2):
        raise ModelError(f"its input is {value.type}; expected a row of tokens, or several")
    pool = pool_int64s if pool_strings is None else pool_strings
    if pool is None or (pool_int64s is not None and pool_strings is not None):
        raise ModelError("expected one of pool_int64s and pool_strings")
    levels = _levels(pool, ngram_counts, ngram_indexes, min_gram_length, max_gram_length)
    size = max(ngram_indexes) + 1
    scale = _weights(weights, ngram_indexes) if weights and mode != "TF" else None
    rows = value.type.shape[0] if value.type.rank == 2 else 1
    tokens = ops.reshape(value, shape=(rows, value.type.shape[-1]))
    tokens = tokens if value.type.dtype == string else cast_to(tokens, int64)
    counts = _counts(c, tokens, levels, max_skip_count, size)
    if mode == "IDF":
        counts = ops.cast(ops.less(number(c.builder, 0, float32), counts), to=float32)
    if scale is not None:
        counts = ops.mul(counts, c.builder.constant(scale))
    return counts if value.type.rank == 2 else ops.reshape(counts, shape=(size,))


def _weights(weights: Sequence[float], columns: Sequence[int]) -> Array:
    """The weight of each column: the i-th is that of the i-th n-gram, as the standard and ONNX Runtime have it.

    Raises:
        ModelError: there are more or fewer weights than n-grams, or n-grams of one column have different ones.
    """
    if len(weights) != len(columns) or min(columns) < 0:
        raise ModelError(f"there are {len(weights)} weights for {len(columns)} n-grams")
    found = np.zeros(max(columns) + 1, np.float32)
    found[list(columns)] = weights
    if not np.array_equal(found[list(columns)], np.array(weights, np.float32)):
        raise ModelError("n-grams of one column have different weights")
    return found


_Levels = list[dict[tuple[Any, ...], int]]
"""By length of n-grams: those that are counted and their beginnings, with the column, or -1."""


def _levels(pool: Sequence[Any], starts: Sequence[int], columns: Sequence[int], least: int, most: int) -> _Levels:
    """The n-grams of a pool by their length.

    Raises:
        ModelError: lengths, starts or columns don't fit the pool.
    """
    if not 1 <= least <= most or not starts or not columns or min(columns) < 0:
        raise ModelError(f"n-grams of {least} to {most} tokens with {len(columns)} columns can't be counted")
    if list(starts) != sorted(starts) or starts[0] != 0 or starts[-1] > len(pool):
        raise ModelError(f"ngram_counts {tuple(starts)} are no ascending starts in a pool of {len(pool)}")
    levels: _Levels = [{} for _ in range(min(most, len(starts)))]
    which = 0
    for length, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), start=1):
        if (end - begin) % length:
            raise ModelError(f"the pool has {end - begin} tokens for n-grams of {length}")
        for at in range(begin, end, length):
            if which >= len(columns):
                raise ModelError(f"the pool has more n-grams than the {len(columns)} ngram_indexes")
            if least <= length <= most:
                gram = tuple(pool[at : at + length])
                for shorter in range(1, length):
                    levels[shorter - 1].setdefault(gram[:shorter], -1)
                levels[length - 1][gram] = columns[which]
            which += 1
    return levels


def _counts(c: Importer, tokens: Value, levels: _Levels, skips: int, size: int) -> Any:
    """How often the n-grams of each column occur in each row: (rows, size).

    N-grams are found token by token: the number of a beginning and that of the next token give the number of the
    longer one. Tokens outside of the pool, and those behind the end of a row, have a number that no n-gram has.
    """
    g = c.builder
    rows, length = tokens.type.shape
    text = tokens.type.dtype == string
    vocabulary = _sorted_keys([gram[-1] for level in levels for gram in level], object if text else np.int64)
    token_of = {token: index for index, token in enumerate(vocabulary.tolist())}
    unknown = len(vocabulary)
    known = ops.find(tokens, g.constant(vocabulary))
    reach = (skips + 1) * (len(levels) - 1)
    if reach:
        known = ops.concat(known, full(g, (rows, reach), unknown, int64), axis=1)
    tables = _tables(levels, token_of)
    found = []
    for distance in range(1, skips + 2):
        state: Any = None
        for order, (keys, columns) in enumerate(tables):
            offset = order * distance
            token = slice_axis(known, 1, offset, offset + length)
            code = token if state is None else ops.add(ops.mul(state, number(g, unknown + 1, int64)), token)
            state = ops.find(code, g.constant(keys))
            if order or distance == 1:  # single tokens are the same at every distance
                found.append(ops.gather(g.constant(np.where(columns < 0, size, columns)), state, axis=0))
    hits = ops.concat(*found, axis=1) if len(found) > 1 else found[0]
    column = ops.add(hits, ops.mul(ops.reshape(iota(g, rows), shape=(rows, 1)), number(g, size + 1, int64)))
    ones = full(g, (rows * (length * len(found)),), 1.0, float32)
    flat = ops.reshape(column, shape=(rows * (length * len(found)),))
    total = ops.index_add(flat, ones, size=rows * (size + 1))
    return slice_axis(ops.reshape(total, shape=(rows, size + 1)), 1, 0, size)


def _tables(levels: _Levels, token_of: dict[Any, int]) -> list[tuple[Any, Any]]:
    """Per length the codes of n-grams, ascending, and their columns, with -1 for what is none."""
    found = []
    numbers: dict[tuple[Any, ...], int] = {(): 0}
    for level in levels:
        codes = {gram: numbers[gram[:-1]] * (len(token_of) + 1) + token_of[gram[-1]] for gram in level}
        order = sorted(level, key=codes.__getitem__)
        numbers = {gram: index for index, gram in enumerate(order)}
        keys = np.array([codes[gram] for gram in order], np.int64)
        found.append((keys, np.array([*(level[gram] for gram in order), -1], np.int64)))
    return found
