"""Reference of ops on strings; numbers in decimal notation."""

from __future__ import annotations

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
    found = np.empty(x.size, dtype)
    for index, text in enumerate(x.reshape(-1)):
        found[index] = function(text)
    return found.reshape(x.shape)


def _concat(attributes: Attributes, a: Array, b: Array) -> Array:
    return np.asarray(np.add(a, b), object)


def _case(attributes: Attributes, x: Array) -> Array:
    change = str.lower if attributes["case"] == "lower" else str.upper
    only = attributes["ascii_only"]

    def kept(character: str) -> bool:
        return bool(only) and not character.isascii()

    def changed(text: str) -> str:
        if text.isascii():
            return change(text)
        return "".join(c if kept(c) or len(other := change(c)) != 1 else other for c in text)

    return _each(changed, x, object)


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
    for row, text in enumerate(x.reshape(-1)):
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


def _tokens_of(attributes: Attributes) -> Callable[[str], list[str]]:
    patterns = [re.compile(pattern) for pattern in attributes["patterns"]]
    least, longest = attributes["least"], attributes["longest"]

    def between(pattern: re.Pattern[str], text: str) -> Iterator[str]:
        at = 0
        for start, stop in _matches(pattern, text, longest):
            yield text[at:start]
            at = max(stop, start + 1)
        yield text[at:]

    def tokens(text: str) -> list[str]:
        if not (attributes["separates"] or longest or patterns[0].groups):
            return [token for token in patterns[0].findall(text) if len(token) >= least]
        if not attributes["separates"]:
            return [text[a:b] for a, b in _matches(patterns[0], text, longest) if b - a >= least]
        kept = [text]
        for pattern in patterns:
            kept = [token for joined in kept for token in between(pattern, joined) if len(token) >= least]
        return kept

    return tokens


def _token_count(attributes: Attributes, x: Array) -> Array:
    tokens = _tokens_of(attributes)
    return _each(lambda text: len(tokens(text)), x, np.int64)


def _tokens(attributes: Attributes, x: Array) -> Array:
    tokens, count = _tokens_of(attributes), attributes["count"]
    before, behind = ([attributes[key]] if attributes[key] else [] for key in ("first", "last"))
    found = np.full((x.size, count), attributes["fill"], object)
    for row, text in enumerate(x.reshape(-1) if count else ()):
        marked = [*before, *tokens(text), *behind]
        if len(marked) > count:
            raise InputError(f"string_tokens: element {row} has {len(marked)} tokens; count is {count}")
        found[row, : len(marked)] = marked
    return found.reshape(*x.shape, count)


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
    found = np.empty(x.size, object)
    found[:] = [_text(number) for number in x.reshape(-1).tolist()]
    return found.reshape(x.shape)


KERNELS: dict[str, Code] = {
    "string_concat": _concat,
    "string_case": _case,
    "string_split_count": _split_count,
    "string_split": _split,
    "regex_full_match": _regex,
    "string_token_count": _token_count,
    "string_tokens": _tokens,
}
