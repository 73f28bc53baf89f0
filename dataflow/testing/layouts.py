"""Layouts: how an operand lies in the input that it comes from, in every form of strides that a kernel may meet."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .. import ops
from ..ir.builder import GraphBuilder
from ..ir.types import Array, DType
from ..ir.value import Value


@dataclass(frozen=True, slots=True)
class Along:
    """How the elements of one axis follow each other in the input.

    Attributes:
        step: from one element to the next, in elements of the input; below zero they lie in falling order.
        before: elements of the input that lie before them all.
        repeated: one element stands for all, with stride 0.
    """

    step: int = 1
    before: int = 0
    repeated: bool = False

    def __str__(self) -> str:
        return "repeated" if self.repeated else f"{self.before or ''}:" + (f":{self.step}" if self.step != 1 else "")


@dataclass(frozen=True, slots=True)
class Layout:
    """An operand as a view of an input; between and around its elements the input has others, NaN where it can.

    Attributes:
        axes: each axis of the operand.
        transposed: the input has its axes in reversed order.
    """

    axes: tuple[Along, ...]
    transposed: bool = False

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.axes))}]" + (" transposed" if self.transposed else "")

    @property
    def repeats(self) -> bool:
        """Whether the operand has fewer elements of its own than its shape says."""
        return any(along.repeated for along in self.axes)

    def operand(self, array: Array) -> Array:
        """The data of the operand: that of ``array``, of which repeated axes keep the first index."""
        return np.broadcast_to(array[self._own()], array.shape)

    def input(self, array: Array) -> Array:
        """The data of the input through which an operand with the data of ``operand(array)`` is seen."""
        whole = np.full(self._sizes(array.shape), _stranger(array.dtype), array.dtype)
        lines = [np.arange(start, stop, step) for start, stop, step in self._ranges(array.shape)]
        whole[np.ix_(*lines)] = array[self._own()]
        return np.ascontiguousarray(whole.transpose()) if self.transposed else whole

    def view(self, g: GraphBuilder, name: str, dtype: DType, shape: tuple[int, ...]) -> Value:
        """The operand, through an input ``name`` that this adds to the graph."""
        sizes = self._sizes(shape)
        value = g.input(name, dtype, sizes[::-1] if self.transposed else sizes)
        if self.transposed:
            value = ops.transpose(value, perm=tuple(reversed(range(len(shape)))))
        starts, stops, steps = zip(*self._ranges(shape), strict=True)
        if (starts, stops, steps) != ((0,) * len(shape), sizes, (1,) * len(shape)):
            value = ops.slice(value, starts=starts, stops=stops, steps=steps)
        return ops.broadcast_to(value, shape=shape) if self.repeats else value

    def _own(self) -> tuple[slice, ...]:
        return tuple(slice(1) if along.repeated else slice(None) for along in self.axes)

    def _counts(self, shape: tuple[int, ...]) -> list[int]:
        """Elements of its own along each axis."""
        return [min(1, d) if along.repeated else d for along, d in zip(self.axes, shape, strict=True)]

    def _sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the input, before its axes are reversed."""
        return tuple(a.before + n * abs(a.step) for a, n in zip(self.axes, self._counts(shape), strict=True))

    def _ranges(self, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
        """Where the elements lie along each axis of the input: start, stop and step of a slice."""
        found = []
        for along, n in zip(self.axes, self._counts(shape), strict=True):
            end = along.before + n * abs(along.step)
            falling = along.step < 0 and n > 0
            found.append(
                (end + along.step, along.before - 1, along.step) if falling else (along.before, end, abs(along.step))
            )
        return found


def _stranger(dtype: np.dtype[Any]) -> Any:
    """What no kernel reads unnoticed."""
    if dtype.kind in "fc":
        return np.nan
    return np.iinfo(dtype).max if dtype.kind in "iu" else 1


def same(shape: tuple[int, ...], along: Along, *, transposed: bool = False) -> Layout:
    """The layout of an operand whose axes are all alike."""
    return Layout((along,) * len(shape), transposed)


Shape = tuple[int, ...]
Layouts = tuple[Layout | None, ...]
Variant = Literal["plain", "strided", "turned", "odd", "constant", "repeated", "flipped", "apart", "mixed"]


def every(shapes: Sequence[Shape | None], layout: Callable[[Shape], Layout]) -> Layouts:
    """A layout for each operand that has axes; None, which leaves it as it is, for the others."""
    return tuple(layout(shape) if shape else None for shape in shapes)


def combinations(
    shapes: Sequence[Shape | None], seed: int, fixed: Container[int] = ()
) -> Iterator[tuple[Variant, Layouts]]:
    """Layouts of all operands at a time, each with the name of what it is about.

    ``repeated``: one operand along one axis, and along all; ``flipped``: every operand in falling order; ``apart``:
    dense rows with gaps between them, behind an odd address; ``mixed``: by chance, each operand another.

    Args:
        shapes: of the operands that may be views; None for the others.
        seed: for what is left to chance.
        fixed: indices of operands whose data must stay as it is, so that they are not repeated.
    """
    for index, shape in enumerate(shapes):
        long = () if shape is None or index in fixed else tuple(axis for axis, size in enumerate(shape) if size > 1)
        for chosen in dict.fromkeys([*((axis,) for axis in long), long]):
            if shape and chosen:
                axes = tuple(Along(repeated=axis in chosen) for axis in range(len(shape)))
                yield "repeated", tuple(Layout(axes) if other == index else None for other in range(len(shapes)))
    shapes = [None if shape is None or 0 in shape else shape for shape in shapes]
    if any(shapes):
        yield "flipped", every(shapes, lambda shape: same(shape, Along(-1)))
        yield "apart", every(shapes, lambda shape: Layout((*same(shape[1:], Along()).axes, Along(before=1))))
    random = np.random.default_rng(seed)
    for _ in range(2 if any(shapes) else 0):
        chance = [
            _by_chance(shape, random, index not in fixed) if shape else None for index, shape in enumerate(shapes)
        ]
        yield "mixed", tuple(chance)


def _by_chance(shape: Shape, random: np.random.Generator, repeat: bool) -> Layout:
    axes = []
    for size in shape:
        step, before = (int(random.choice(values)) for values in ((1, 1, 1, -1, 2, -3), (0, 0, 1, 3)))
        axes.append(Along(step, before, bool(random.random() < 0.25) and repeat and size > 1))
    return Layout(tuple(axes), bool(random.random() < 0.3))
