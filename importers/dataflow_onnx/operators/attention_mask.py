"""What attention adds to its scores: masks of the file, causality, windows and lengths."""

from __future__ import annotations

import math
from typing import Any

from dataflow import Value, ops
from dataflow.errors import ModelError
from dataflow.plugin import Size

from ..dynamic_sizes import required, size_value
from ..emit import along, cast_to, iota, number
from ..importer import Importer


def _and(a: Any, b: Any) -> Any:
    return b if a is None else ops.logical_and(a, b)


def _pad_keys(c: Importer, mask: Value, total: Size) -> Any:
    """A mask for the first keys, padded to all of them: the others are refused."""
    *rest, last = mask.type.shape
    missing = total - last
    if (isinstance(missing, int) and missing == 0) or last == 1:
        return mask
    fill = number(c.builder, 0.0 if mask.type.dtype.name == "bool" else -math.inf, mask.type.dtype)
    if isinstance(missing, int) and missing < 0:
        raise ModelError(f"attn_mask is {mask.type}, there are {total} keys")
    mask = required(mask, last, 1, f"attn_mask is {mask.type}: a last size that has a name must not be 1", equal=0)
    tail = ops.broadcast_to(fill, shape=(*rest, missing))
    return ops.concat(mask, tail, axis=-1)


class Mask:
    """Who may attend to whom.

    Attributes:
        allowed: bool, or None; broadcasts over the scores.
        added: of the scores' dtype, or None.
        empty_rows: a query may have nothing to attend to.
    """

    def __init__(self) -> None:
        self.allowed: Any = None
        self.added: Any = None
        self.empty_rows = False

    def bias(self, c: Importer, like: Value) -> Any:
        """What is added to the scores: -inf where attention is not allowed."""
        if self.allowed is None:
            return self.added
        zero, never = number(c.builder, 0.0, like.type.dtype), number(c.builder, -math.inf, like.type.dtype)
        closed = ops.where(self.allowed, zero, never)
        return closed if self.added is None else ops.add(self.added, closed)


def attention_mask(
    c: Importer,
    scores: Value,
    given: Value | None,
    past: Size | None,
    lengths: Value | None,
    is_causal: int,
    window: tuple[int, int],
) -> Mask:
    """The mask of an operator's inputs and attributes.

    Args:
        c: the importer.
        scores: (batch, heads, queries, keys).
        given: the file's own.
        past: how many keys were there before.
        lengths: of each batch entry, how many keys count.
        is_causal: a query sees no key behind it.
        window: how many keys before and behind it a query sees; -1 for all.
    """
    found = Mask()
    queries, keys = scores.type.shape[-2:]
    if given is not None:
        given = _pad_keys(c, given, keys)
        found.empty_rows = True
        if given.type.dtype.name == "bool":
            found.allowed = given
        else:
            found.added = cast_to(given, scores.type.dtype)
    left, right = window
    if is_causal or left >= 0 or right >= 0:
        at: Any = along(iota(c.builder, queries), 0, 2)
        if lengths is not None and past is None:  # (batch, 1, 1, 1): each row of the batch has its own offset
            own = ops.reshape(lengths, shape=(lengths.type.shape[0], 1, 1, 1))
            at = ops.add(at, ops.sub(own, size_value(c, queries)))
            found.empty_rows = True
        elif past is not None:
            at = ops.add(at, size_value(c, past))
        key = along(iota(c.builder, keys), 1, 2)
        if is_causal:
            found.allowed = _and(found.allowed, ops.less_equal(key, at))
        if left >= 0:
            found.allowed = _and(found.allowed, ops.less_equal(ops.sub(at, left), key))
            found.empty_rows = True
        if right >= 0:
            found.allowed = _and(found.allowed, ops.less_equal(key, ops.add(at, right)))
    if lengths is not None:
        own = ops.reshape(lengths, shape=(lengths.type.shape[0], 1, 1, 1))
        found.allowed = _and(found.allowed, ops.less(along(iota(c.builder, keys), 1, 2), own))
        found.empty_rows = True
    return found
