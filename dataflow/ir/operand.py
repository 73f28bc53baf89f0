"""A tensor as a plan names it, and how often the steps of a body run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..host.quick_init import quick_init
from .tracing import active
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


def is_contiguous(shape: Sequence[Any], strides: Sequence[int]) -> bool:
    """True when the strides are row-major without gaps; axes of size one don't count."""
    if strides == contiguous_strides(tuple(shape)):
        return True
    return 0 in shape or all(
        d == 1 or s == e for d, s, e in zip(shape, strides, contiguous_strides(tuple(shape)), strict=True)
    )
