"""Types of attention and of its gradient."""

from __future__ import annotations

import math
from typing import Any

from ...errors import InputError
from ...ir.dims import Shape
from ...ir.types import TensorType
from ..infer import broadcast_shape, need, need_float, same_dtype
from ..linalg import matmul


def rows_first(rank: int) -> tuple[int, ...]:
    """The permutation of (batch, heads..., rows, size) to (batch, rows, heads..., size)."""
    return (0, rank - 2, *range(1, rank - 2), rank - 1)


def scores_of(q: TensorType, kt: TensorType, v: TensorType, mask: TensorType | None) -> Shape:
    """The shape of the scores.

    Raises:
        InputError: the operands don't fit each other.
    """
    need_float("attention", q)
    need(q.dtype.bits >= 16, f"attention: expected a float type of 16 bits or more, got {q}; use cast first")
    scores = matmul.infer(q, kt)
    assert isinstance(scores, TensorType)
    y = matmul.infer(scores, v)
    assert isinstance(y, TensorType)
    fits = y.shape[:-2] == scores.shape[:-2]
    if mask is not None:
        same_dtype("attention", q, mask)
        fits = fits and broadcast_shape("attention", scores.shape, mask.shape) == scores.shape
    if not fits:
        raise InputError(
            f"attention: v is {v} and mask {mask}; they must not have more entries than the scores, {scores}"
        )
    return scores.shape


def attention_infer(
    q: TensorType,
    kt: TensorType,
    v: TensorType,
    mask: TensorType | None = None,
    *,
    scale: float,
    transposed: bool,
    safe: bool,
    softcap: float,
) -> tuple[TensorType, TensorType]:
    """Of attention."""
    shape = scores_of(q, kt, v, mask)
    if not (0 <= softcap < math.inf):
        raise InputError(f"attention: softcap is {softcap}; expected a number above 0, or 0 for none")
    y = (*shape[:-1], v.shape[-1])
    if transposed:
        if not (len(y) >= 4):
            raise InputError(f"attention: transposed is for four axes or more; the result is {y}")
        y = tuple(y[axis] for axis in rows_first(len(y)))
    return TensorType(q.dtype, y), TensorType(q.dtype, shape[:-1])


def grad_infer(
    dy: TensorType,
    y: TensorType,
    logsum: TensorType,
    q: TensorType,
    kt: TensorType,
    v: TensorType,
    mask: TensorType | None = None,
    *,
    scale: float,
    transposed: bool,
    safe: bool,
    softcap: float,
) -> tuple[TensorType, ...]:
    """Of attention_grad."""
    expected = attention_infer(q, kt, v, mask, scale=scale, transposed=transposed, safe=safe, softcap=softcap)
    given = f"attention_grad: dy is {dy}, y {y}, logsum {logsum}; expected {expected[0]} and {expected[1]}"
    need((y, logsum) == expected and dy == y, given)
    lead = logsum.shape[:-1]
    shapes = (q.shape[-2:], (kt.shape[-1], kt.shape[-2]), v.shape[-2:])
    return tuple(TensorType(q.dtype, (*lead, *shape)) for shape in shapes)


def grad_sums_infer(*types: TensorType | None, **attributes: Any) -> tuple[TensorType, ...]:
    """Of attention_grad_sums."""
    found = grad_infer(*types, **attributes)  # type: ignore[arg-type]
    need(found[0].rank > 2, f"attention_grad_sums: q is {types[3]}; expected a batch of them")
    return *found, *(TensorType(t.dtype, (*t.shape[1:-2], t.shape[-1])) for t in found)
