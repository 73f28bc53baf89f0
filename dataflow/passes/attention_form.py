"""Attention that was found in a graph, and the nodes that take its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.builder import GraphBuilder
from ..ir.dims import Shape
from ..ir.graph import Graph, Node
from ..ir.rewrite import replace_nodes
from ..ir.tracing import Keys
from ..ir.types import TensorType
from ..ir.value import Value
from ..ops.arithmetic import add, div, maximum, mul
from ..ops.attention import attention
from ..ops.infer import broadcast_shape
from ..ops.linalg import swapped
from ..ops.logic import where
from ..ops.shape import reshape, transpose
from .attention_scores import AtLeast, Leaf, Mask, Scaled, Sum, leaves
from .dead_code import eliminate_dead_code
from .view_axes import Axis, divided, laid_out


@dataclass(frozen=True, slots=True)
class Layout:
    """How the result of the op becomes that of a node.

    Attributes:
        last: the node.
        transposed: of the op.
        swapped: the last two axes are swapped behind it.
    """

    last: Node
    transposed: bool
    swapped: bool


@dataclass(frozen=True, slots=True)
class Form:
    """Attention where it was found.

    Attributes:
        last: the node whose result it gives.
        first: the product of queries and keys.
        lead: sizes of the leading axes.
        group: queries of a group that are rows of one matrix; 0 where they are not.
        q, kt, v: the operands.
        factors: what multiplies rows or columns of the product, each with True where it divides.
        mask: what is added.
        attributes: of the op.
        swapped: whether the last two axes are swapped behind it.
        pin: of the first node.
    """

    last: Node
    first: Node
    lead: tuple[int, ...]
    group: int
    q: Leaf
    kt: Leaf
    v: Leaf
    factors: tuple[tuple[Leaf, bool], ...]
    mask: Mask | None
    attributes: Mapping[str, Any]
    swapped: bool
    pin: str

    def axes(self, leaf: Leaf, *, keys: bool = False) -> tuple[Axis, ...]:
        """The axes of an operand; ``keys``: one that all queries of a group share."""
        if not self.group:
            laid = divided(leaf.lead, self.lead)
            assert laid is not None
            return (*laid, leaf.row, leaf.column)
        laid = divided(leaf.lead, (*self.lead, self.group))
        assert laid is not None
        return (*laid[:-1], leaf.row if keys else laid[-1], leaf.column)

    def shape(self, leaf: Leaf, *, keys: bool = False) -> tuple[int, ...]:
        """The shape of an operand, of size 1 along axes where its elements repeat."""
        return laid_out(self.axes(leaf, keys=keys))[2]

    def types(self) -> tuple[TensorType | None, ...]:
        """Those of the op's operands."""
        shapes: list[Shape] = [self.shape(self.q), self.shape(self.kt, keys=True), self.shape(self.v, keys=True)]
        for leaf, _ in self.factors:
            index = int(_of_columns(leaf))
            shapes[index] = broadcast_shape("attention", shapes[index], self.shape(leaf))
        q, kt, v = (
            TensorType(leaf.value.type.dtype, shape)
            for leaf, shape in zip((self.q, self.kt, self.v), shapes, strict=True)
        )
        if self.mask is None:
            return q, kt, v, None
        every = broadcast_shape("attention", *(self.shape(leaf) for leaf in leaves(self.mask)))
        floats = [leaf.value.type.dtype for leaf in leaves(self.mask) if leaf.value.type.dtype.kind == "f"]
        return q, kt, v, TensorType(floats[0] if floats else q.dtype, every)


def _of_columns(leaf: Leaf) -> bool:
    """Whether a factor is one of columns: of the keys."""
    return any(factor.axis is not None for factor in leaf.column)


def replaced(graph: Graph, forms: Mapping[Node, Form], differentiable: bool) -> Graph:
    """The graph with the op where forms of it were found.

    Args:
        graph: bound.
        forms: by the node whose result each gives.
        differentiable: gradients will read the logarithms of sums, and other extra outputs.
    """
    made: dict[str, str] = {}  # the pins of nodes, by name
    masks, keys = dict[Any, Value](), Keys()  # layers share them

    def replace(builder: GraphBuilder, node: Node, new: Mapping[Value, Value]) -> Sequence[Value]:
        value = _Making(builder, new, masks, keys, forms[node]).result(made)
        assert node.outputs[0] is not None
        if node.outputs[0].name != value.name:
            builder.rename(value, node.outputs[0].name)
        return (value,)

    result = replace_nodes(graph, forms.keys(), replace)
    nodes = eliminate_dead_code(result, extras=not differentiable).nodes
    pinned = (dataclasses.replace(n, pin=made[n.name]) if n.name in made else n for n in nodes)
    return dataclasses.replace(result, nodes=tuple(pinned))


class _Making:
    """Makes the nodes of one form."""

    def __init__(
        self,
        builder: GraphBuilder,
        new: Mapping[Value, Value],
        masks: dict[Any, Value],
        keys: Keys,
        form: Form,
    ) -> None:
        self._builder, self._new, self._masks, self._keys, self._form = builder, new, masks, keys, form

    def result(self, made: dict[str, str]) -> Value:
        """What stands for the result of the last node; adds the node of the op and its pin to ``made``."""
        form = self._form
        operands = [self._leaf(form.q), self._leaf(form.kt, keys=True), self._leaf(form.v, keys=True)]
        for leaf, divides in form.factors:
            index = int(_of_columns(leaf))
            operands[index] = (div if divides else mul)(operands[index], self._leaf(leaf))
        if form.mask is not None:
            key = self._keys.of(form.mask, form.lead, form.group)
            if key not in self._masks:
                self._masks[key] = self._mask(form.mask)
            operands.append(self._masks[key])
        node = self._builder.add(attention, operands, form.attributes, name=form.last.name)
        made[node.name] = form.pin
        y = node.outputs[0]
        assert y is not None
        value = swapped(y) if form.swapped else y
        wanted = form.last.outputs[0]
        assert wanted is not None
        return self._reshaped(value, wanted.type.sizes)

    def _reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        return value if value.type.sizes == shape else reshape(value, shape=shape)

    def _leaf(self, leaf: Leaf, *, keys: bool = False) -> Value:
        axes = self._form.axes(leaf, keys=keys)
        first, perm, shape = laid_out(axes)
        if leaf.view.number is None and not leaf.swapped and shape == leaf.value.type.sizes:
            return self._new[leaf.value]
        value = self._new[leaf.view.base]
        if perm != tuple(range(len(perm))):
            value = transpose(self._reshaped(value, first), perm=perm)
        return self._reshaped(value, shape)

    def _mask(self, mask: Mask) -> Value:
        if isinstance(mask, Leaf):
            return self._leaf(mask)
        if isinstance(mask, Sum):
            return add(self._mask(mask.left), self._mask(mask.right))
        if isinstance(mask, Scaled):
            return mul(self._mask(mask.mask), mask.number)
        if isinstance(mask, AtLeast):
            return maximum(self._mask(mask.mask), mask.number)
        dtype = self._form.q.value.type.dtype
        number = self._builder.scalar(mask.number, dtype)
        other = self._builder.scalar(0.0, dtype) if mask.mask is None else self._mask(mask.mask)
        condition = self._leaf(mask.condition)
        return where(condition, number, other) if mask.when else where(condition, other, number)
