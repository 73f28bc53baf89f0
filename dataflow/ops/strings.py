"""Ops on strings, and hashes of elements of any type; only the host's reference has kernels for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.dims import Size
from ..ir.op import REQUIRED, Op
from ..ir.types import TensorType, bool_, int64, string, uint32
from .infer import broadcast_shape, need


def _need_strings(name: str, *types: TensorType) -> None:
    for type_ in types:
        need(type_.dtype == string, f"{name}: expected strings, got {type_}")


def _concat_infer(a: TensorType, b: TensorType) -> TensorType:
    _need_strings("string_concat", a, b)
    return TensorType(string, broadcast_shape("string_concat", a.shape, b.shape))


string_concat: Op = Op("string_concat", ("a", "b"), _concat_infer, doc="a and behind it b, broadcast as in NumPy")


def _case_infer(x: TensorType, *, case: str, ascii_only: bool) -> TensorType:
    _need_strings("string_case", x)
    need(case in ("lower", "upper"), f"string_case: case is {case!r}; expected 'lower' or 'upper'")
    return x


string_case: Op = Op(
    "string_case",
    ("x",),
    _case_infer,
    attributes={"case": REQUIRED, "ascii_only": False},
    doc="x in lower or upper case, character by character; one whose other case is several characters stays, and with "
    "``ascii_only`` all but those of ASCII",
)


def _split_count_infer(x: TensorType, *, delimiter: str, maxsplit: int) -> TensorType:
    _need_strings("string_split_count", x)
    return TensorType(int64, x.shape)


string_split_count: Op = Op(
    "string_split_count",
    ("x",),
    _split_count_infer,
    attributes={"delimiter": "", "maxsplit": -1},
    doc="how many substrings string_split finds in each element",
)


def _split_infer(x: TensorType, *, delimiter: str, maxsplit: int, count: Size) -> TensorType:
    _need_strings("string_split", x)
    return TensorType(string, (*x.shape, count))


string_split: Op = Op(
    "string_split",
    ("x",),
    _split_infer,
    attributes={"delimiter": "", "maxsplit": -1, "count": REQUIRED},
    doc="the substrings between delimiters, along a new last axis of ``count``, filled up with empty strings; after "
    "``maxsplit`` splits the rest is one, -1 is no limit; without a delimiter runs of whitespace separate, and none is "
    "kept at the ends; it is an error that an element has more than ``count``",
)


def _regex_infer(x: TensorType, *, pattern: str) -> TensorType:
    _need_strings("regex_full_match", x)
    return TensorType(bool_, x.shape)


regex_full_match: Op = Op(
    "regex_full_match",
    ("x",),
    _regex_infer,
    attributes={"pattern": REQUIRED},
    doc="whether all of an element matches ``pattern``, in Python's syntax of regular expressions",
)

_TOKENS = {"patterns": REQUIRED, "separates": False, "least": 1, "longest": True}


def _token_count_infer(
    x: TensorType, *, patterns: Sequence[str], separates: bool, least: int, longest: bool
) -> TensorType:
    _need_strings("string_token_count", x)
    need(len(patterns) > 0 and (separates or len(patterns) == 1), "string_token_count: expected a pattern of tokens")
    need(least >= 1, f"string_token_count: least is {least}; expected at least 1")
    return TensorType(int64, x.shape)


string_token_count: Op = Op(
    "string_token_count",
    ("x",),
    _token_count_infer,
    attributes=_TOKENS,
    doc="how many tokens string_tokens finds in each element",
)


def _tokens_infer(x: TensorType, *, count: Size, fill: str, first: str, last: str, **tokens: Any) -> TensorType:
    _token_count_infer(x, **tokens)
    return TensorType(string, (*x.shape, count))


string_tokens: Op = Op(
    "string_tokens",
    ("x",),
    _tokens_infer,
    attributes={**_TOKENS, "count": REQUIRED, "fill": "", "first": "", "last": ""},
    doc="the tokens of each element along a new last axis of ``count``, filled up with ``fill``: the longest matches "
    "of a pattern in Python's syntax from left to right, or what several that separate leave, one after the other; "
    "tokens of fewer than ``least`` characters don't count; around them stand ``first`` and ``last``, if any; with "
    "``longest`` = 0 what the pattern matches first counts, which may look at what is behind it",
)


def _murmur_infer(x: TensorType, *, seed: int) -> TensorType:
    taken = x.dtype == string or x.dtype.bits in (32, 64)
    need(taken, f"murmur_hash: x is {x}; expected strings, or numbers of 32 or 64 bits")
    need(0 <= seed < 1 << 32, f"murmur_hash: seed is {seed}; expected 0 to {(1 << 32) - 1}")
    return TensorType(uint32, x.shape)


murmur_hash: Op = Op(
    "murmur_hash",
    ("x",),
    _murmur_infer,
    attributes={"seed": 0},
    doc="MurmurHash3 in 32 bits of the bytes of each element, the lowest first, and of a string's UTF-8",
)

OPS = (
    string_concat,
    string_case,
    string_split_count,
    string_split,
    regex_full_match,
    string_token_count,
    string_tokens,
    murmur_hash,
)
