"""Samples of ops on strings."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...ir.types import int64, string
from ..sample import Operand, Sample


def _s(*shape: int, value: Any) -> Operand:
    return Operand(shape, string, value=value)


_WORDS = _s(2, 3, value=[["a,b,,c", "", "ab"], [" x  y z ", "É,", "straße"]])

SAMPLES: list[Sample] = [
    Sample(ops.string_concat, (_WORDS, _s(3, value=["-", "", "ü"]))),
    Sample(ops.string_concat, (_s(0, 3, value=[]), _s(1, 3, value=["-", "", "ü"]))),
    Sample(ops.string_case, (_WORDS,), {"case": "lower"}),
    Sample(ops.string_case, (_WORDS,), {"case": "upper"}),
    Sample(ops.string_case, (_WORDS,), {"case": "lower", "ascii_only": True}),
    Sample(ops.string_split_count, (_WORDS,), {"delimiter": ","}),
    Sample(ops.string_split_count, (_WORDS,)),
    Sample(ops.string_split, (_WORDS,), {"delimiter": ",", "count": 4}),
    Sample(ops.string_split, (_WORDS,), {"maxsplit": 1, "count": 2}),
    Sample(ops.string_split, (_s(0, value=[]),), {"count": 0}),
    Sample(ops.string_token_count, (_WORDS,), {"patterns": ("[a-z]+",)}),
    Sample(ops.string_token_count, (_WORDS,), {"patterns": (r"\b[a-z]+\b",), "longest": False}),
    Sample(ops.string_tokens, (_WORDS,), {"patterns": (",", " "), "separates": True, "least": 2, "count": 2}),
    Sample(ops.string_tokens, (_WORDS,), {"patterns": ("a|ab",), "count": 4, "fill": "#", "first": "<", "last": ">"}),
    Sample(ops.murmur_hash, (_WORDS,), {"seed": 7}),
    Sample(ops.murmur_hash, (Operand((2, 3), int64),), {"seed": (1 << 32) - 1}),
    Sample(ops.murmur_hash, (Operand((3,)),)),
    Sample(ops.regex_full_match, (_WORDS,), {"pattern": "[a-z,]*"}),
]
