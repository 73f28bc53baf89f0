"""Layouts: operands as strided views of larger inputs, in every form of strides that a kernel may meet."""

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
class AxisLayout:
    """One axis of a view.

    Attributes:
        step: distance of neighbouring elements, in elements of the input; negative: the axis is reversed.
        offset: elements of the input before the first one of the view.
        broadcast: the view repeats one element, with stride 0.
    """

    step: int = 1
    offset: int = 0
    broadcast: bool = False

    def __str__(self) -> str:
        return "broadcast" if self.broadcast else f"{self.offset or ''}:" + (f":{self.step}" if self.step != 1 else "")


@dataclass(frozen=True, slots=True)
class Layout:
    """An operand as a view of an input; elements outside the view are NaN, or the largest integer.

    Attributes:
        axes: of the operand.
        order: the input's axes, outermost first, as axes of the operand; None: they are the operand's.
    """

    axes: tuple[AxisLayout, ...]
    order: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.axes))}]" + ("" if self.order is None else f" of {self.order}")

    @property
    def broadcasts(self) -> bool:
        """Whether an axis is broadcast."""
        return any(axis.broadcast for axis in self.axes)

    def operand(self, array: Array) -> Array:
        """The operand's data: that of ``array``, whose broadcast axes repeat the first index."""
        return np.broadcast_to(array[self._distinct()], array.shape)

    def input(self, array: Array) -> Array:
        """The input's data, of which ``operand(array)`` is the view."""
        found = np.full(self._sizes(array.shape), _poison(array.dtype), array.dtype)
        indices = [np.arange(start, stop, step) for start, stop, step in self._ranges(array.shape)]
        found[np.ix_(*indices)] = array[self._distinct()]
        return found if self.order is None else np.ascontiguousarray(found.transpose(self.order))

    def view(self, g: GraphBuilder, name: str, dtype: DType, shape: tuple[int, ...]) -> Value:
        """Add an input ``name`` to the graph; the operand as a view of it."""
        sizes = self._sizes(shape)
        order = self.order or tuple(range(len(shape)))
        value = g.input(name, dtype, tuple(sizes[axis] for axis in order))
        if self.order is not None:
            value = ops.transpose(value, perm=tuple(map(order.index, range(len(shape)))))
        starts, stops, steps = zip(*self._ranges(shape), strict=True)
        if (starts, stops, steps) != ((0,) * len(shape), sizes, (1,) * len(shape)):
            value = ops.slice(value, starts=starts, stops=stops, steps=steps)
        return ops.broadcast_to(value, shape=shape) if self.broadcasts else value

    def _distinct(self) -> tuple[slice, ...]:
        """Selects the elements of an array that the view doesn't repeat."""
        return tuple(slice(1) if axis.broadcast else slice(None) for axis in self.axes)

    def _counts(self, shape: tuple[int, ...]) -> list[int]:
        """Distinct elements per axis."""
        return [min(1, d) if axis.broadcast else d for axis, d in zip(self.axes, shape, strict=True)]

    def _sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the input, with its axes in the operand's order."""
        return tuple(a.offset + n * abs(a.step) for a, n in zip(self.axes, self._counts(shape), strict=True))

    def _ranges(self, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
        """The slice of each axis of the input that is the view: start, stop and step."""
        found = []
        for axis, n in zip(self.axes, self._counts(shape), strict=True):
            end = axis.offset + n * abs(axis.step)
            if axis.step < 0 and n > 0:
                found.append((end + axis.step, axis.offset - 1, axis.step))
            else:
                found.append((axis.offset, end, abs(axis.step)))
        return found


def _poison(dtype: np.dtype[Any]) -> Any:
    """A value that makes the result wrong when a kernel reads it: NaN, the largest integer, True or a word."""
    if dtype.hasobject:
        return "poison"
    if dtype.kind in "fc":
        return np.nan
    return np.iinfo(dtype).max if dtype.kind in "iu" else 1


def uniform(shape: tuple[int, ...], axis: AxisLayout, *, transposed: bool = False) -> Layout:
    """The layout with ``axis`` for each axis of ``shape``; ``transposed``: the order of axes is reversed."""
    return Layout((axis,) * len(shape), tuple(range(len(shape)))[::-1] if transposed else None)


Shape = tuple[int, ...]
Layouts = tuple[Layout | None, ...]
Variant = Literal[
    "plain",
    "strided",
    "transposed",
    "unaligned",
    "constant",
    "broadcast",
    "reversed",
    "padded_rows",
    "mixed",
    "special",
    "in_place",
    "repeated",
    "refused",
    "memory",
]


def every(shapes: Sequence[Shape | None], layout: Callable[[Shape], Layout]) -> Layouts:
    """A layout for each operand that has axes; None, which leaves an operand contiguous, for the others."""
    return tuple(layout(shape) if shape else None for shape in shapes)


def combinations(
    shapes: Sequence[Shape | None], seed: int, fixed: Container[int] = ()
) -> Iterator[tuple[Variant, Layouts]]:
    """Layouts of all operands at a time, each with its variant.

    ``broadcast``: one operand along one axis, and along all; ``reversed``: every axis of every operand;
    ``padded_rows``: contiguous rows with a gap between them and an offset of one element; ``mixed``: random, each
    operand another.

    Args:
        shapes: of the operands that may be views; None for the others.
        seed: of the random layouts.
        fixed: indices of operands whose values matter, e.g. indices in range: they are not broadcast.
    """
    for index, shape in enumerate(shapes):
        long = () if shape is None or index in fixed else tuple(axis for axis, size in enumerate(shape) if size > 1)
        for chosen in dict.fromkeys([*((axis,) for axis in long), long]):
            if shape and chosen:
                axes = tuple(AxisLayout(broadcast=axis in chosen) for axis in range(len(shape)))
                yield "broadcast", tuple(Layout(axes) if other == index else None for other in range(len(shapes)))
    shapes = [None if shape is None or 0 in shape else shape for shape in shapes]
    if any(shapes):
        yield "reversed", every(shapes, lambda shape: uniform(shape, AxisLayout(-1)))
        padded = AxisLayout(offset=1)
        yield "padded_rows", every(shapes, lambda shape: Layout((*uniform(shape[1:], AxisLayout()).axes, padded)))
    random = np.random.default_rng(seed)
    for _ in range(2 if any(shapes) else 0):
        yield (
            "mixed",
            tuple(_random(shape, random, index not in fixed) if shape else None for index, shape in enumerate(shapes)),
        )


def _random(shape: Shape, random: np.random.Generator, broadcast: bool) -> Layout:
    axes = []
    for size in shape:
        step, offset = (int(random.choice(values)) for values in ((1, 1, 1, -1, 2, -3), (0, 0, 1, 3)))
        axes.append(AxisLayout(step, offset, bool(random.random() < 0.25) and broadcast and size > 1))
    shuffled = random.random() < 0.5
    return Layout(tuple(axes), tuple(map(int, random.permutation(len(shape)))) if shuffled else None)
