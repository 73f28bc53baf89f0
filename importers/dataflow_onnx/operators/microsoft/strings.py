"""The converter of an operator that takes strings apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import int64, ops, string
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import number
from ...importer import Importer
from ...re2 import first_is_longest, python_pattern
from ...tensor import Tensor

T = Tensor
operator = Collector("com.microsoft")

_START, _END = "\x02", "\x03"  # characters of ASCII that begin and end a text


@operator("Tokenizer")
def Tokenizer(
    c: Importer,
    x: T,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] | None = None,
    tokenexp: str | None = None,
) -> Any:
    """Tokens along a new last axis of as many as the longest row has, with marks; none at all where no row has one."""
    value = c.value(x)
    if value.type.dtype != string or value.type.rank not in (1, 2):
        raise ModelError(f"its input is {value.type}; expected strings [C] or [N, C]")
    if (separators is None) == (tokenexp is None):
        raise ModelError("expected one of separators and tokenexp")
    if mincharnum < 1:
        raise ModelError(f"mincharnum is {mincharnum}; expected at least 1")
    tokens: dict[str, Any] = {"patterns": ("(?s:.)",), "separates": False, "least": mincharnum, "longest": False}
    if tokenexp != "." and list(separators or ()) != [""]:  # else single characters
        given = [tokenexp] if tokenexp is not None else [*(separators or ())]
        tokens["longest"] = not all(map(first_is_longest, given))
        tokens["patterns"] = tuple(_pattern(text, tokens["longest"]) for text in given)
        tokens["separates"] = separators is not None
    counts = ops.string_token_count(value, **tokens)
    total: Any = 1
    for size in counts.type.shape:
        total = total * size
    flat = ops.reshape(counts, shape=(total,))
    most: Any = ops.reduce_max(
        ops.concat(flat, c.builder.constant(np.zeros(1, np.int64)), axis=0), axes=(0,), keepdims=0
    )
    marks = {"first": _START, "last": _END} if mark else {}
    if mark:
        some = ops.cast(ops.less(number(c.builder, 0, int64), most), to=int64)
        most = ops.add(most, ops.add(some, some))
    count = c.count(most, "number of tokens")
    return ops.string_tokens(value, **tokens, **marks, count=count, fill=pad_value)


def _pattern(text: str, longest: bool) -> str:
    """A pattern in Python's syntax; where longer matches than the first are tried, none looks at what is behind it."""
    if not text:
        raise ModelError("an empty pattern among others separates nothing")
    pattern = python_pattern(text)
    if longest and ("\\Z" in pattern or "\\b" in pattern or "\\B" in pattern):
        raise ModelError(
            f"the pattern {text!r:.200} looks at what is behind a match, which is not supported beside several "
            "repetitions or alternatives"
        )
    return pattern
