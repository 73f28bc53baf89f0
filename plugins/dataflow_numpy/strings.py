"""Reference of ops on strings; numbers in decimal notation."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dataflow import DType
from dataflow.errors import InputError

from .arrays import Array, Attributes, Code


def _each(function: Callable[[str], Any], x: Array, dtype: Any) -> Array:
    """The results of a function of each element."""
    results = map(function, x.reshape(-1).tolist())
    if dtype is not object:
        return np.fromiter(results, dtype, x.size).reshape(x.shape)
    return _strings(list(results), x.shape)


def _strings(texts: list[str], shape: tuple[int, ...]) -> Array:
    """An array of strings that are listed row by row."""
    found = np.empty(len(texts), object)
    found[:] = texts
    return found.reshape(shape)


def _concat(attributes: Attributes, a: Array, b: Array) -> Array:
    return np.asarray(np.add(a, b), object)


class _Changed(dict[int, str]):
    """For ``str.translate``: what becomes of each character, found when it comes first.

    Args:
        change: lower or upper.
        ascii_only: other characters stay.
    """

    def __init__(self, change: Callable[[str], str], ascii_only: bool) -> None:
        self._change, self._ascii_only = change, ascii_only

    def __missing__(self, code: int) -> str:
        character = chr(code)
        other = self._change(character)
        kept = (self._ascii_only and not character.isascii()) or len(other) != 1
        found = self[code] = character if kept else other
        return found


_changed = functools.cache(_Changed)  # four at most


def _case(attributes: Attributes, x: Array) -> Array:
    change = str.lower if attributes["case"] == "lower" else str.upper
    if all(map(str.isascii, x.reshape(-1).tolist())):
        return _each(change, x, object)
    characters = _changed(change, bool(attributes["ascii_only"]))
    return _each(lambda text: change(text) if text.isascii() else text.translate(characters), x, object)


def _substrings(attributes: Attributes, text: str) -> list[str]:
    delimiter, most = attributes["delimiter"], attributes["maxsplit"]
    if delimiter:
        return text.split(delimiter, most)
    return text.strip().split(None, most)


def _split_count(attributes: Attributes, x: Array) -> Array:
    return _each(lambda text: len(_substrings(attributes, text)), x, np.int64)


def _split(attributes: Attributes, x: Array) -> Array:
    count = attributes["count"]
    found = np.full((x.size, count), "", object)
    for row, text in enumerate(x.reshape(-1).tolist()):
        substrings = _substrings(attributes, text)
        if len(substrings) > count:
            raise InputError(f"string_split: element {row} has {len(substrings)} substrings; count is {count}")
        found[row, : len(substrings)] = substrings
    return found.reshape(*x.shape, count)


def _regex(attributes: Attributes, x: Array) -> Array:
    pattern = re.compile(attributes["pattern"])
    return _each(lambda text: pattern.fullmatch(text) is not None, x, np.bool_)


# ---- tokens ------------------------------------------------------------------------------------------


def _matches(pattern: re.Pattern[str], text: str, longest: bool) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of matches, each from the leftmost beginning.

    Python takes the first alternative that fits; for the longest, all ends behind it are tried.
    """
    if not longest:
        yield from (found.span() for found in pattern.finditer(text))
        return
    at = 0
    while at <= len(text) and (found := pattern.search(text, at)) is not None:
        start, stop = found.span()
        longer = (end for end in range(len(text), stop, -1) if pattern.fullmatch(text, start, end))
        stop = next(longer, stop)
        yield start, stop
        at = max(stop, start + 1)


class _Tokenizer:
    """The tokens of texts.

    A graph counts tokens before it asks for them, so those of the texts that were counted last are kept until then.
    """

    MOST_KEPT = 1 << 16  # texts

    def __init__(self, patterns: tuple[str, ...], separates: bool, least: int, longest: bool) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._separates, self._least, self._longest = separates, least, longest
        self._counted: dict[str, list[str]] = {}

    def counts(self, texts: list[str]) -> list[int]:
        """How many tokens each text has."""
        counts: list[int] = []
        counted: dict[str, list[str]] = {}
        for text in texts:
            tokens = counted.get(text)
            if tokens is None:
                tokens = self._tokens(text)
                if len(counted) < self.MOST_KEPT:
                    counted[text] = tokens
            counts.append(len(tokens))
        self._counted = counted
        return counts

    def tokens(self, texts: list[str]) -> Iterator[list[str]]:
        """The tokens of each text, not to be changed."""
        counted, self._counted = self._counted, {}  # another thread's are as good
        for text in texts:
            tokens = counted.get(text)
            yield self._tokens(text) if tokens is None else tokens

    def _between(self, pattern: re.Pattern[str], text: str) -> Iterator[str]:
        at = 0
        for start, stop in _matches(pattern, text, self._longest):
            yield text[at:start]
            at = max(stop, start + 1)
        yield text[at:]

    def _tokens(self, text: str) -> list[str]:
        first, least = self._patterns[0], self._least
        if not (self._separates or self._longest or first.groups):
            found = first.findall(text)
            return list(filter(None, found)) if least == 1 else [token for token in found if len(token) >= least]
        if not self._separates:
            return [text[a:b] for a, b in _matches(first, text, self._longest) if b - a >= least]
        kept = [text]
        for pattern in self._patterns:
            kept = [token for joined in kept for token in self._between(pattern, joined) if len(token) >= least]
        return kept


_made_tokenizer = functools.lru_cache(64)(_Tokenizer)


def _tokenizer(attributes: Attributes) -> _Tokenizer:
    """That of a node; nodes of equal attributes have one."""
    names = ("patterns", "separates", "least", "longest")
    return _made_tokenizer(*[attributes[name] for name in names])


def _token_count(attributes: Attributes, x: Array) -> Array:
    counts = _tokenizer(attributes).counts(x.reshape(-1).tolist())
    return np.array(counts, np.int64).reshape(x.shape)


def _tokens(attributes: Attributes, x: Array) -> Array:
    count = attributes["count"]
    before, behind = ([attributes[key]] if attributes[key] else [] for key in ("first", "last"))
    fill = [attributes["fill"]] * count
    found: list[str] = []
    for row, tokens in enumerate(_tokenizer(attributes).tokens(x.reshape(-1).tolist() if count else [])):
        begin = len(found)
        found += before
        found += tokens
        found += behind
        width = len(found) - begin
        if width > count:
            raise InputError(f"string_tokens: element {row} has {width} tokens; count is {count}")
        found += fill[width:]
    return _strings(found, (*x.shape, count))


# ---- numbers ------------------------------------------------------------------------------------------

MOST_DIGITS = 1000  # of an integer in a string; no dtype has so many, and longer ones cost quadratic time


def _text(number: Any) -> str:
    """A number as ONNX Runtime writes it: floats with at most eight digits, bools as 0 or 1."""
    if isinstance(number, float):
        if math.isfinite(number):
            return f"{number:.8g}"
        return "NaN" if math.isnan(number) else "INF" if number > 0 else "-INF"
    return str(int(number))


_FLOAT = re.compile(r"\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)\s*", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)


def _number(text: str, to: DType) -> Any:
    """The number that a string is, in decimal notation.

    Raises:
        InputError: it is none, or an integer outside of the dtype.
    """
    integral = to.kind in "iub"
    if not (_INTEGER if integral else _FLOAT).fullmatch(text):
        kind = "an integer" if integral else "a number"
        raise InputError(f"cast: {text!r:.60} is not {kind}, which {to} needs")
    if not integral:
        return float(text)
    number = int(text) if len(text) < MOST_DIGITS else None
    if to.kind == "b":
        return number != 0
    low = -(1 << (to.bits - 1)) if to.kind == "i" else 0
    if number is None or not 0 <= number - low < 1 << to.bits:
        raise InputError(f"cast: {text!r:.60} is outside of {to}")
    return number


def numbers_of_strings(x: Array, to: DType) -> Array:
    """Numbers in decimal notation, for ``to``: floats as float64, integers as int64 or uint64.

    Raises:
        InputError: one is no number, or an integer outside of ``to``.
    """
    held = np.float64 if to.is_float else np.uint64 if to.kind == "u" else np.int64
    return np.array([_number(text, to) for text in x.reshape(-1)], held).reshape(x.shape)


def strings_of_numbers(x: Array) -> Array:
    """Numbers in decimal notation."""
    return _strings([_text(number) for number in x.reshape(-1).tolist()], x.shape)


def _rotated(x: Array, bits: int) -> Array:
    return np.asarray((x << np.uint32(bits)) | (x >> np.uint32(32 - bits)))


def _hashed(data: Array, seed: int) -> Array:
    """MurmurHash3_x86_32 of each row of bytes (rows, bytes)."""
    rows, length = data.shape
    words = np.zeros((rows, -(-length // 4) * 4), np.uint8)
    words[:, :length] = data
    found = np.full(rows, seed, np.uint32)
    for at, block in enumerate(words.view("<u4").astype(np.uint32).T):
        mixed = _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        found ^= mixed
        if at < length // 4:  # of what remains there are fewer than four bytes
            found = _rotated(found, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    found ^= np.uint32(length)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ (found >> np.uint32(shift))) * np.uint32(factor)
    return np.asarray(found ^ (found >> np.uint32(16)))


def _murmur_hash(attributes: Attributes, x: Array) -> Array:
    seed = attributes["seed"]
    if x.dtype != object:
        numbers = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        return _hashed(numbers.reshape(x.size, x.dtype.itemsize), seed).reshape(x.shape)
    texts = [text.encode("utf-8", "surrogatepass") for text in x.reshape(-1).tolist()]
    lengths = np.array([len(text) for text in texts], np.int64)
    found = np.empty(x.size, np.uint32)
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        data = np.frombuffer(b"".join(texts[i] for i in at.tolist()), np.uint8).reshape(len(at), length)
        found[at] = _hashed(data, seed)
    return found.reshape(x.shape)


KERNELS: dict[str, Code] = {
    "string_concat": _concat,
    "murmur_hash": _murmur_hash,
    "string_case": _case,
    "string_split_count": _split_count,
    "string_split": _split,
    "regex_full_match": _regex,
    "string_token_count": _token_count,
    "string_tokens": _tokens,
}
