"""Axes of views as factors of the axes of what they are views of: through reshape, transpose and broadcast_to.

A view of (2, 8) that is reshaped to (2, 2, 4), transposed and repeated has axes that are factors of those axes, or
repeat. Put together anew they give the same elements in another order or number of axes, without the copy that a
reshape of a transposed or repeated value is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..ir.graph import Node
from ..ir.value import Value
from ..ops.shape import broadcast_to, reshape, transpose

_LONGEST = 12  # views of views


class Factor(NamedTuple):
    """Of an axis.

    Attributes:
        axis: of the base; None where elements repeat.
        inner: how many elements of that axis a step moves.
        size: steps.
    """

    axis: int | None
    inner: int
    size: int


Axis = tuple[Factor, ...]
"""The factors of one axis, the outermost first; none where its size is 1."""


@dataclass(frozen=True, slots=True)
class View:
    """A value as a view of another.

    Attributes:
        base: of what.
        axes: the view's.
        number: by what its elements are multiplied; None where they aren't.
    """

    base: Value
    axes: tuple[Axis, ...]
    number: float | None = None


def axes_of(shape: Sequence[int]) -> tuple[Axis, ...]:
    """The axes of a value that is its own view."""
    return tuple(() if size == 1 else (Factor(axis, 1, size),) for axis, size in enumerate(shape))


def joined(factors: Iterable[Factor]) -> Axis:
    """Fewer factors where two in a row are one."""
    found: list[Factor] = []
    for factor in factors:
        last = found[-1] if found else None
        if (
            last is not None
            and last.axis == factor.axis
            and (factor.axis is None or last.inner == factor.inner * factor.size)
        ):
            found[-1] = Factor(factor.axis, factor.inner, last.size * factor.size)
        else:
            found.append(factor)
    return tuple(found)


def divided(factors: Iterable[Factor], sizes: Iterable[int]) -> list[Axis] | None:
    """Factors in a row as axes of these sizes, the first one first; None where a size is no product of factors."""
    left = list(factors)[::-1]
    found: list[Axis] = []
    for size in sizes:
        axis: list[Factor] = []
        while size > 1:
            if not left:
                return None
            factor = left.pop()
            if size % factor.size == 0:
                axis.append(factor)
                size //= factor.size
            elif factor.size % size == 0:
                inner = factor.size // size
                axis.append(Factor(factor.axis, factor.inner * inner, size))
                left.append(Factor(factor.axis, factor.inner, inner))
                size = 1
            else:
                return None
        found.append(joined(axis))
    return None if left else found


def repeated(axes: Sequence[Axis], before: Sequence[int], shape: Sequence[int]) -> tuple[Axis, ...]:
    """The axes of a value that is broadcast from shape ``before`` to ``shape``."""
    missing = len(shape) - len(before)
    padded = [(), *()] * missing + [*axes]
    sizes = [1] * missing + [*before]
    return tuple(
        (Factor(None, 1, now),) if was == 1 and now > 1 else axis
        for axis, was, now in zip(padded, sizes, shape, strict=True)
    )


def _through(node: Node, axes: tuple[Axis, ...]) -> tuple[Axis, ...] | None:
    """The axes behind a node that is a view, from those before it."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None and y is not None
    if node.op is transpose:
        return tuple(axes[axis] for axis in node.attributes["perm"])
    if node.op is broadcast_to:
        return repeated(axes, x.type.sizes, y.type.sizes)
    if node.op is reshape:
        found = divided(itertools.chain.from_iterable(axes), y.type.sizes)
        return None if found is None else tuple(found)
    return axes  # a product with a number


def is_view(node: Node) -> bool:
    """Whether a node is one of those that a chain of views has."""
    return node.op in (reshape, transpose, broadcast_to)


def through(nodes: Iterable[Node], axes: tuple[Axis, ...]) -> tuple[Axis, ...] | None:
    """The axes behind several nodes in their order; None where one splits an axis that is no product of factors."""
    found: tuple[Axis, ...] | None = axes
    for node in nodes:
        if found is None:
            return None
        found = _through(node, found)
    return found


def view_of(
    value: Value,
    makers: Mapping[Value, Node],
    numbers: Mapping[Node, tuple[Value, float]],
    *,
    matrix: bool = False,
) -> View:
    """A value as a view of what lies as far before it as its last two axes are one factor each.

    Args:
        value: bound, of at least one element.
        makers: the node of each computed value.
        numbers: what nodes multiply by a number, and that number; a chain goes on behind them.
        matrix: it is an operand of a product, whose last two axes don't broadcast: they have no factor that repeats.
    """

    def fits(axis: Axis) -> bool:
        return not axis or (len(axis) == 1 and not (matrix and axis[0].axis is None))

    chain: list[Node] = []
    base = value
    while len(chain) < _LONGEST:
        node = makers.get(base)
        if node is None or not (is_view(node) or node in numbers):
            break
        source = numbers[node][0] if node in numbers else node.inputs[0]
        assert source is not None
        chain.append(node)
        base = source
    for count in range(len(chain), 0, -1):
        last = chain[count - 1]
        source = numbers[last][0] if last in numbers else last.inputs[0]
        assert source is not None
        axes = through(reversed(chain[:count]), axes_of(source.type.sizes))
        if axes is not None and all(map(fits, axes[-2:])):
            factors = [numbers[node][1] for node in chain[:count] if node in numbers]
            return View(source, axes, math.prod(factors) if factors else None)
    return View(value, axes_of(value.type.sizes))


def laid_out(axes: Sequence[Axis]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """How a view is made: reshaped, transposed and reshaped again; axes that repeat get the size 1.

    Args:
        axes: of one factor each, or none; all of the base's elements are in the view.

    Returns:
        The first shape, the permutation, and the last shape.
    """
    own = [axis[0] for axis in axes if axis and axis[0].axis is not None]
    ordered = sorted(own, key=lambda factor: (factor.axis, -factor.inner))
    shape = tuple(axis[0].size if axis and axis[0].axis is not None else 1 for axis in axes)
    return tuple(f.size for f in ordered), tuple(map(ordered.index, own)), shape


def common_sizes(several: Iterable[Sequence[Factor]]) -> tuple[int, ...] | None:
    """Sizes by which the factors of each row are divided without a remainder; None where there are none.

    Args:
        several: rows of factors, each with the same product.
    """
    bounds = [1]
    for row in several:
        for bound in itertools.accumulate((f.size for f in reversed(row)), lambda a, b: a * b):
            if bound not in bounds:
                bounds.append(bound)
    ordered = sorted(bounds)
    if any(b % a for a, b in itertools.pairwise(ordered)):
        return None
    return tuple(b // a for a, b in itertools.pairwise(ordered))[::-1]
