"""A tensor as a plan names it, and how often the steps of a body run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..host.quick_init import quick_init
from .tracing import active, number_of
from .types import TensorType, contiguous_strides

BodyKind = Literal["repeat", "when", "while"]


@quick_init
@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a plan names it: bytes at an offset of an arena.

    Attributes:
        arena: index into the plan's arenas; -1 before placement.
        offset: bytes from the arena's begin.
        type: bound dtype and shape.
        strides: in elements.
        value: number of the base tensor whose bytes these are.
        origin: where in the base tensor it begins, in bytes.
        iteration_stride: bytes that it moves per iteration in a loop's body.
        buffer_stride: bytes that it moves on odd iterations only.
    """

    arena: int
    offset: int
    type: TensorType
    strides: tuple[int, ...]
    value: int
    origin: int = 0
    iteration_stride: int = 0
    buffer_stride: int = 0

    @property
    def bytes(self) -> int:
        """From the first to the last element; negative strides reach below the offset and count too."""
        low, high = self.span
        return high - low

    @property
    def span(self) -> tuple[int, int]:
        """First and one-past-last byte, relative to the offset."""
        find = _span if active() is None else _span.__wrapped__
        return find(self.type.sizes, self.strides, self.type.dtype.nbytes(1))

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps."""
        return is_contiguous(self.type.shape, self.strides)


@functools.lru_cache(4096)
def _span(sizes: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, int]:
    """First and one-past-last byte of a tensor, relative to its first element; nothing for one without elements."""
    if 0 in sizes:
        return 0, 0
    reach = [(d - 1) * s * size for d, s in zip(sizes, strides, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + size


Layout = tuple[tuple[Any, ...], tuple[Any, ...], int]
"""Sizes, strides in elements, and bytes of an element."""


def outside(source: Layout, view: Layout, offset: Any) -> tuple[int, int, int, int] | None:
    """Of a view with elements that its source hasn't, the first and last one, and those of the source; else None.

    All in elements of the source, as ``offset`` is, where the view begins; its strides are in elements of its own.
    Traced sizes are what they are now; where a size is only named nothing is said.
    """
    find = _outside if active() is None else _outside.__wrapped__
    return find(source, view, offset)


@functools.lru_cache(4096)
def _outside(source: Layout, view: Layout, offset: Any) -> tuple[int, int, int, int] | None:
    begin, seen, there = number_of(offset), _reach(*view[:2]), _reach(*source[:2])
    if begin is None or seen is None or there is None or not seen:
        return None
    low, high = there or (0, -1)
    size, own = source[2], view[2]
    first, last = (begin * size + seen[0] * own) // size, (begin * size + (seen[1] + 1) * own - 1) // size
    return None if low <= first and last <= high else (first, last, low, high)


def _reach(sizes: Sequence[Any], strides: Sequence[Any]) -> tuple[int, int] | tuple[()] | None:
    """Where the lowest and the highest element lie, from the first; empty: there is none; None: it isn't known."""
    numbers = [number_of(d) for d in sizes]
    if 0 in numbers:
        return ()
    found = [(d, number_of(s)) for d, s in zip(numbers, strides, strict=True)]
    reach = [(d - 1) * s for d, s in found if d is not None and s is not None]
    if len(reach) < len(found):
        return None
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)


def is_contiguous(shape: Sequence[Any], strides: Sequence[int]) -> bool:
    """True when the strides are row-major without gaps; axes of size one don't count."""
    if strides == contiguous_strides(tuple(shape)):
        return True
    return 0 in shape or all(
        d == 1 or s == e for d, s, e in zip(shape, strides, contiguous_strides(tuple(shape)), strict=True)
    )
