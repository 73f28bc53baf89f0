"""A series of plans: for sizes that grow in equal steps, alike but for numbers that change in equal steps too."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .operand import Operand
from .plan import Plan, Transfer
from .types import TensorType


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
    """

    first: Plan
    plan: Plan
    count: int

    def numbers(self, first: tuple[int, ...], last: tuple[int, ...], t: int) -> tuple[int, ...]:
        """Numbers of plan ``t``, from those of the first and the last."""
        if first == last:
            return last
        return tuple([a + (b - a) // self.count * t for a, b in zip(first, last, strict=True)])

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
