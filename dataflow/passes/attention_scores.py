"""The scores of attention, read back from the operand of a softmax.

Exporters write the scale before or behind the product, as number or per head, masks as sums, selections and bounds,
and reshape heads into the batch and back between them. All of them are one form: scale * q kt, perhaps
through cap * tanh(. / cap), plus a mask, which is a sum of what was added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from ..ir.graph import Node
from ..ir.value import Value
from ..ops.arithmetic import add, div, maximum, mul, tanh
from ..ops.linalg import matmul
from ..ops.logic import where
from ..ops.shape import reshape
from .view_axes import Factor, View, joined, repeated, view_of

LOWEST = -1e30
"""From here on down a number is what masks mean by minus infinity: it is left of any sum with a score."""
_LONGEST = 16  # ops between product and softmax


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that broadcasts to the scores.

    Attributes:
        value: it.
        view: of what it is made.
        lead: the factors of the scores' leading axes, in a row.
        row, column: of the last two.
        swapped: these are the value's last two in the other order.
    """

    value: Value
    view: View
    lead: tuple[Factor, ...]
    row: tuple[Factor, ...]
    column: tuple[Factor, ...]
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class Sum:
    """Of two masks."""

    left: Mask
    right: Mask


@dataclass(frozen=True, slots=True)
class Scaled:
    """A mask multiplied by a number."""

    mask: Mask
    number: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """``number`` where ``condition`` is ``when``, else the mask, or 0 without one."""

    condition: Leaf
    when: bool
    number: float
    mask: Mask | None


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A mask, or a number where that is larger."""

    mask: Mask
    number: float


Mask = Union[Leaf, Sum, Scaled, Chosen, AtLeast]


def leaf_of(value: Value, view: View, shape: Sequence[int]) -> Leaf:
    """What a value is to scores of a shape, or to matrices with their leading axes, to which it broadcasts."""
    axes = repeated(view.axes, value.type.sizes, shape)
    return Leaf(value, view, tuple(f for axis in axes[:-2] for f in axis), joined(axes[-2]), joined(axes[-1]))


def leaves(mask: Mask | None) -> Iterator[Leaf]:
    """What a mask is computed from."""
    if isinstance(mask, Leaf):
        yield mask
    elif isinstance(mask, Sum):
        yield from leaves(mask.left)
        yield from leaves(mask.right)
    elif isinstance(mask, Chosen):
        yield mask.condition
        yield from leaves(mask.mask)
    elif mask is not None:
        yield from leaves(mask.mask)


def _stand_ins(mask: Mask | None) -> Iterator[float]:
    """The numbers in a mask that stand for minus infinity, as large as they are in the sum."""
    if isinstance(mask, Sum):
        yield from _stand_ins(mask.left)
        yield from _stand_ins(mask.right)
    elif isinstance(mask, Scaled):
        yield from (number * mask.number for number in _stand_ins(mask.mask))
    elif isinstance(mask, (Chosen, AtLeast)):
        yield mask.number
        yield from _stand_ins(mask.mask)


@dataclass(frozen=True, slots=True)
class Scores:
    """What a softmax reads.

    Attributes:
        product: of queries and keys.
        scale: of the product.
        cap: by what the hyperbolic tangent of the scaled product is multiplied; None where there is none.
        factors: tensors that multiply rows or columns of the product, each with True where it divides.
        mask: what is added.
        nodes: from the softmax's operand to the product.
    """

    product: Node
    scale: float = 1.0
    cap: float | None = None
    factors: tuple[tuple[Leaf, bool], ...] = ()
    mask: Mask | None = None
    nodes: tuple[Node, ...] = ()

    def plus(self, mask: Mask) -> Scores:
        """With more added to it."""
        return replace(self, mask=mask if self.mask is None else Sum(self.mask, mask))

    def times(self, number: float) -> Scores:
        """All of it multiplied by a number."""
        mask = None if self.mask is None else Scaled(self.mask, number)
        if self.cap is not None:
            return replace(self, cap=self.cap * number, mask=mask)
        return replace(self, scale=self.scale * number, mask=mask)


class ScoresReader:
    """Reads scores back in one graph.

    Args:
        makers: the node of each computed value.
        alone: whether a value has one reader and is no result.
        constant: the number that a value is for ever, or None.
        exact: results must also have the gradients of the original in rows of which all is masked.
    """

    def __init__(
        self,
        makers: Mapping[Value, Node],
        alone: Callable[[Value], bool],
        constant: Callable[[Value], float | None],
        exact: bool,
    ) -> None:
        self._makers, self._alone, self._constant, self._exact = makers, alone, constant, exact

    def numbers(self) -> dict[Node, tuple[Value, float]]:
        """What nodes multiply by a number, and that number."""
        found = {}
        for node in self._makers.values():
            scaled = self._scaled(node)
            if scaled is not None:
                found[node] = scaled
        return found

    def _scaled(self, node: Node) -> tuple[Value, float] | None:
        if node.op is not mul and node.op is not div:
            return None
        a, b = node.inputs
        result = node.outputs[0]
        assert a is not None and b is not None and result is not None
        for x, other in ((a, b),) if node.op is div else ((a, b), (b, a)):
            number = self._constant(other)
            if number and math.isfinite(number) and x.type == result.type:
                return x, (1 / number if node.op is div else number)
        return None

    def leaf(self, value: Value, shape: Sequence[int]) -> Leaf:
        """What a value is to scores of a shape, to which it broadcasts."""
        return leaf_of(value, view_of(value, self._makers, {}), shape)

    def read(self, value: Value, depth: int = 0) -> Scores | None:
        """What scores are, or None where they are not of that form."""
        node = self._makers.get(value)
        if node is None or not self._alone(value) or depth > _LONGEST:
            return None
        if node.op is matmul:
            return Scores(node, nodes=(node,))
        form = _FORMS.get(node.op)
        found = None if form is None else form(self, node, depth + 1)
        return None if found is None else replace(found, nodes=(node, *found.nodes))

    def _sum(self, node: Node, depth: int) -> Scores | None:
        for x, other in (node.inputs, node.inputs[::-1]):
            inner = self._inside(x, node, depth)
            if inner is not None and other is not None:
                return inner.plus(self.leaf(other, _sizes(node)))
        return None

    def _inside(self, x: Value | None, node: Node, depth: int) -> Scores | None:
        """The scores that an operand is, where it is as large as the result."""
        result = node.outputs[0]
        if x is None or result is None or x.type != result.type:
            return None
        return self.read(x, depth)

    def _product(self, node: Node, depth: int) -> Scores | None:
        scaled = self._scaled(node)
        if scaled is not None:
            inner = self._inside(scaled[0], node, depth)
            found = None if inner is None else inner.times(scaled[1])
            # A number that no longer hides a score would be added to it.
            return found if found is None or all(n <= LOWEST for n in _stand_ins(found.mask)) else None
        orders = (node.inputs,) if node.op is div else (node.inputs, node.inputs[::-1])
        for x, other in orders:
            inner = self._inside(x, node, depth)
            if inner is None or other is None or inner.mask is not None or inner.cap is not None:
                continue
            leaf = self.leaf(other, _sizes(node))
            if all(f.axis is None for f in leaf.row) or all(f.axis is None for f in leaf.column):
                return replace(inner, factors=(*inner.factors, (leaf, node.op is div)))
        return None

    def _capped(self, node: Node, depth: int) -> Scores | None:
        inner = self._inside(node.inputs[0], node, depth)
        if inner is None or inner.mask is not None or inner.cap is not None:
            return None
        return replace(inner, cap=1.0)

    def _chosen(self, node: Node, depth: int) -> Scores | None:
        """Scores where a condition holds, else a number that stands for minus infinity, or vice versa."""
        condition, yes, no = node.inputs
        assert condition is not None and yes is not None and no is not None
        for x, other, when in ((yes, no, False), (no, yes, True)):
            number = self._constant(other)
            if number is None or not number <= LOWEST or (self._exact and number != -math.inf):
                continue
            inner = self._inside(x, node, depth)
            if inner is not None:
                leaf = self.leaf(condition, _sizes(node))
                return replace(inner, mask=Chosen(leaf, when, number, inner.mask))
        return None

    def _bounded(self, node: Node, depth: int) -> Scores | None:
        """Scores that are at least a number that stands for minus infinity: then the mask is."""
        for x, other in (node.inputs, node.inputs[::-1]):
            number = None if other is None else self._constant(other)
            if number is None or not number <= LOWEST or self._exact:
                continue
            inner = self._inside(x, node, depth)
            if inner is not None:
                return inner if inner.mask is None else replace(inner, mask=AtLeast(inner.mask, number))
        return None

    def _reshaped(self, node: Node, depth: int) -> Scores | None:
        x = node.inputs[0]
        assert x is not None
        return self.read(x, depth) if len(x.type.sizes) > 1 and x.type.sizes[-2:] == _sizes(node)[-2:] else None


_FORMS: Mapping[object, Callable[[ScoresReader, Node, int], Scores | None]] = {
    add: ScoresReader._sum,
    mul: ScoresReader._product,
    div: ScoresReader._product,
    tanh: ScoresReader._capped,
    where: ScoresReader._chosen,
    maximum: ScoresReader._bounded,
    reshape: ScoresReader._reshaped,
}


def _sizes(node: Node) -> tuple[int, ...]:
    result = node.outputs[0]
    assert result is not None
    return result.type.sizes
