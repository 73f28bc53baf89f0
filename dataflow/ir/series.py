"""A series of plans: for sizes that grow in equal steps, alike but for numbers that change in equal steps too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .operand import Operand
from .plan import Plan, Transfer
from .types import TensorType

Shapes = tuple[tuple[int, ...], ...]
"""Of all inputs, in the model's order."""
_LEAST = 64  # steps that a series goes on from the sizes for which it is made; at least so far that they double
_LOWEST = 2  # the smallest of the growing sizes: to an op 0 and 1 may be special


class NotInSeries(Exception):
    """At the sizes of one plan of a series a kernel wants something else than in the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Plans number 0 to ``count``, of which the first and the last are here.

    Every number in them, of a shape, stride, offset or attribute, is ``first + t * (last - first) / count`` in number
    ``t``, which is whole. All of them lie in the arenas of the last.

    Attributes:
        first: with offsets in the arenas of ``plan``.
        plan: the last.
        count: how many steps the last is from the first.
        second: number 1, where strides, bytes and starts of views change in steps that grow evenly: number ``t`` is
            ``first + t * step + t * (t - 1) * bend``. Sizes and attributes change in equal steps in any case.
    """

    first: Plan
    plan: Plan
    count: int
    second: Plan | None = None

    def numbers(self, first: tuple[int, ...], last: tuple[int, ...], t: int) -> tuple[int, ...]:
        """Numbers of plan ``t``, from those of the first and the last."""
        if first == last:
            return last
        return tuple([a + (b - a) // self.count * t for a, b in zip(first, last, strict=True)])

    def layout(self, first: Operand, second: Operand | None, last: Operand, t: int) -> tuple[int, ...]:
        """The strides of an operand of plan ``t``, and where it starts in its base tensor; ``second`` as the plan."""
        begin, end = (*first.strides, first.origin), (*last.strides, last.origin)
        if second is None:
            return self.numbers(begin, end, t)
        between, n = (*second.strides, second.origin), self.count
        return tuple(
            [
                a + t * (b - a) + t * (t - 1) * ((c - a - n * (b - a)) // (n * (n - 1)))
                for a, b, c in zip(begin, between, end, strict=True)
            ]
        )

    def operand(self, first: Operand, last: Operand, t: int) -> Operand:
        """An operand of plan ``t``."""
        if first == last:
            return last
        positions = self.numbers((first.offset, first.origin), (last.offset, last.origin), t)
        sizes = self.numbers(first.type.sizes, last.type.sizes, t)
        strides = self.numbers(first.strides, last.strides, t)
        type_ = TensorType(last.type.dtype, sizes)
        return replace(last, offset=positions[0], origin=positions[1], type=type_, strides=strides)

    def transfer(self, first: Transfer, last: Transfer, t: int) -> Transfer:
        """A transfer of plan ``t``."""
        source, target = self.operand(first.source, last.source, t), self.operand(first.target, last.target, t)
        return replace(last, source=source, target=target)


@dataclass(frozen=True, slots=True)
class Line:
    """Shapes that grow in equal steps: ``start + t * step``, for ``t`` from 0 to ``count``."""

    start: Shapes
    step: Shapes
    count: int

    def at(self, t: int, which: Sequence[int] | None = None) -> Shapes:
        """The shapes of number ``t``, or some of them."""
        some = range(len(self.start)) if which is None else which
        return tuple([self._shape(t, self.start[i], self.step[i]) for i in some])

    @staticmethod
    def _shape(t: int, start: tuple[int, ...], step: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([a + t * b for a, b in zip(start, step, strict=True)]) if any(step) else start

    def number(self, shapes: Shapes) -> int | None:
        """The ``t`` of shapes, which may be beyond the ends; None where they are not on the line."""
        which, axis = next((i, step.index(max(step))) for i, step in enumerate(self.step) if any(step))
        if len(shapes[which]) != len(self.step[which]):
            return None
        t, rest = divmod(shapes[which][axis] - self.start[which][axis], self.step[which][axis])
        return t if not rest and self.at(t) == shapes else None

    def finest(self) -> Line:
        """The line between the same ends in the smallest steps of whole numbers."""
        by = math.gcd(*[size for step in self.step for size in step])
        step = tuple([tuple([size // by for size in each]) for each in self.step])
        return Line(self.start, step, self.count * by)

    def doubled(self) -> Line:
        """The line to where one of its sizes is twice that of its end."""
        return Line(self.start, self.step, self.count + min(size // step for size, step in self._growing(self.count)))

    def _growing(self, t: int) -> list[tuple[int, int]]:
        """The sizes of number ``t`` that grow, and by how much."""
        return [
            (size, step)
            for shape, by in zip(self.at(t), self.step, strict=True)
            for size, step in zip(shape, by, strict=True)
            if step
        ]

    def around(self, t: int) -> Line:
        """The line from its lowest sizes to twice those of number ``t`` or beyond."""
        growing = self._growing(t)
        down = max(0, min((size - _LOWEST) // step for size, step in growing))
        up = max(_LEAST, max(size // step for size, step in growing))
        return Line(self.at(t - down), self.step, down + up)


def step_between(before: Shapes, after: Shapes) -> Shapes | None:
    """By how much each size grew; None where one shrank, a rank changed, or none grew."""
    if tuple(map(len, before)) != tuple(map(len, after)):
        return None
    step = tuple(tuple([b - a for a, b in zip(x, y, strict=True)]) for x, y in zip(before, after, strict=True))
    numbers = [n for by in step for n in by]
    return step if min(numbers, default=0) >= 0 and any(numbers) else None


def line_through(several: Sequence[Shapes]) -> Line | None:
    """The line from the least to the largest of some shapes, in steps as large as they allow.

    Args:
        several: shapes of which no two are alike.

    Returns:
        None where they aren't on a line, or a size shrinks on it.
    """
    ends = sorted(several, key=lambda shapes: sum(map(sum, shapes)))
    difference = step_between(ends[0], ends[-1])
    if difference is None:
        return None
    by = math.gcd(*[size for step in difference for size in step])
    line = Line(ends[0], tuple([tuple([size // by for size in step]) for step in difference]), by)
    numbers = [line.number(shapes) for shapes in several]
    if any(number is None for number in numbers):
        return None
    by = math.gcd(*[number for number in numbers if number is not None])
    step = tuple([tuple([size * by for size in each]) for each in line.step])
    return Line(line.start, step, line.count // by)
