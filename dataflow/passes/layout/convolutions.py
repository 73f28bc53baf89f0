"""Graph -> Graph: between convolutions the channels of a position lie together, where a device computes them so.

Tensor cores multiply rows of channels. A library that is given planes copies them into such rows before a convolution
and back behind it. Here what lies between convolutions, forward and backward, is computed in that layout too, and
transposes are left at the borders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.op import AnyOp
from ...ir.rewrite import rewrite
from ...ir.types import TensorType
from ...ir.value import Value
from ...ops.conv import conv, conv_grad_input, conv_grad_weight, conv_last, conv_last_grad_input, conv_last_grad_weight
from ...ops.fused import add_relu, conv_add_relu, conv_relu
from ...ops.pool import avg_pool, avg_pool_grad, max_pool, max_pool_grad
from ...ops.rules.channels_last import first_perm, last_perm, permuted
from ...ops.shape import broadcast_to, concat, reshape, slice_, transpose
from ..dead_code import eliminate_dead_code

Results = Sequence["Value | None"]

_FORMS: Mapping[AnyOp, AnyOp] = {
    conv: conv_last,
    conv_relu: conv_last,
    conv_add_relu: conv_last,
    conv_grad_input: conv_last_grad_input,
    conv_grad_weight: conv_last_grad_weight,
}
LEAST = 2
"""How many times the bytes of transposes must be saved: around a lone convolution they are no better than others."""
_SHAPES = ("input_shape", "weight_shape")
_POOLS = (max_pool, max_pool_grad, avg_pool, avg_pool_grad)


def put_convs_last(graph: Graph, targets: Targets) -> Graph:
    """The graph with convolutions, and what lies between them, of values with channels last; itself if it doesn't pay.

    Args:
        graph: bound, its convolutions fused with what follows them.
        targets: the devices and their kernels.
    """
    if not targets.offer(conv_last.name):
        return graph
    taken = {node for node in graph.nodes if node.op in _FORMS and _is_taken(node, targets)}
    if not taken:
        return graph
    made = eliminate_dead_code(rewrite(graph, _Layout(graph, targets, taken).replace))
    return made if LEAST * (_copied(made) - _copied(graph)) < sum(map(_saved, taken)) else graph


def _is_taken(node: Node, targets: Targets) -> bool:
    return not targets.pin(node) and targets.taker(_moved(node), node) is not None


def _moved(node: Node) -> Node:
    """A convolution with its channels last; it stands in no graph."""
    values = [None if v is None else _last_like(v) for v in (*node.inputs, *node.outputs)]
    inputs, outputs = tuple(values[: len(node.inputs)]), tuple(values[len(node.inputs) :])
    op = _FORMS[node.op]
    return dataclasses.replace(node, op=op, inputs=inputs, outputs=outputs, attributes=op.complete(_attributes(node)))


def _last_like(value: Value) -> Value:
    rank = value.type.rank
    return Value(value.name, permuted(value.type, last_perm(rank)) if rank > 2 else value.type)


def _attributes(node: Node) -> dict[str, Any]:
    """The attributes of a convolution for channels last."""
    given = dict(node.attributes)
    for key in _SHAPES:
        if key in given:
            given[key] = _last_shape(given[key])
    if node.op in (conv_relu, conv_add_relu):
        given["relu"] = True
    return given


def _last_shape(shape: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(shape[axis] for axis in last_perm(len(shape)))


# ---- what it costs --------------------------------------------------------------------------------------


def _bytes(value: Value | None) -> int:
    return 0 if value is None else value.type.elements * value.type.dtype.bits // 8


def _saved(node: Node) -> int:
    """Bytes that are not read and written for a convolution: transforms around it, and its end in a pass of its own.

    One of single elements is a product as it stands, in either layout.
    """
    weight = node.outputs[0] if node.op is conv_grad_weight else node.inputs[1]
    assert weight is not None
    alone = all(size == 1 for size in (*weight.type.shape[2:], *node.attributes["strides"]))
    images = [v for v in (*node.inputs[:2], node.outputs[0]) if v is not weight]
    around = 0 if alone else sum(map(_bytes, images))
    ends = _FORMS[node.op] is conv_last and len(node.inputs) > 2
    return 2 * (around + (_bytes(node.outputs[0]) if ends else 0))


def _copied(graph: Graph) -> int:
    """Bytes that transposes read and write, if each is a copy; those of weights are copied in either layout."""
    makers = graph.producers()

    def is_weight(value: Value | None) -> bool:
        maker = makers.get(value) if value is not None else None
        return value in graph.initializers or (maker is not None and maker.op is conv_last_grad_weight)

    found = (n for n in graph.nodes if n.op is transpose and _moves(n) and not is_weight(n.inputs[0]))
    return sum(2 * _bytes(node.outputs[0]) for node in found)


def _moves(node: Node) -> bool:
    """Whether elements get another order."""
    x, perm = node.inputs[0], node.attributes["perm"]
    assert x is not None
    order = [axis for axis in perm if x.type.shape[axis] != 1]
    return order != sorted(order)


# ---- the layout -----------------------------------------------------------------------------------------


class _Layout:
    """Computes nodes with channels last that read such a value, or what a convolution reads.

    Attributes:
        targets: the devices and their kernels.
        taken: convolutions that a device computes so.
        wanted: values of the old graph that these read, also through elementwise ops.
        readers, kept: of values of the old graph: nodes, and whether they are read at its end.
        last: what holds the same elements with channels last, by planar values of the new graph.
        indices: of maxima, as values of the new graph, in planes whose last axis is the channels.
    """

    def __init__(self, graph: Graph, targets: Targets, taken: set[Node]) -> None:
        self.targets, self.taken = targets, taken
        self.wanted: set[Value | None] = set()
        self.readers = graph.readers()
        self.kept = {*graph.outputs.values(), *(s.after for s in graph.states)}
        self.last: dict[Value, Value] = {}
        self.indices: set[Value] = set()
        for node in reversed(graph.nodes):
            if node in taken or (
                node.outputs[0] in self.wanted and (self.is_elementwise(node) or node.op is broadcast_to)
            ):
                self.wanted.update(v for v in node.inputs if v is not None and v.type.rank > 2)

    @staticmethod
    def is_elementwise(node: Node) -> bool:
        """Whether elements of all operands meet at their positions, in any layout."""
        values = [v for v in node.inputs if v is not None]
        rank = max((v.type.rank for v in values), default=0)
        fits = len(values) == len(node.inputs) and all(v.type.rank in (0, rank) for v in values)
        return (node.op.elementwise or node.op is add_relu) and rank > 2 and fits

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Results | None:
        """See ``Replace``."""
        if self.targets.pin(node):
            return None  # it stays the node that the user means
        if node in self.taken:
            values = [v if v is None or v.type.rank < 3 else self._of(v) for v in inputs]
            return self._planar(self._add(builder, node, values, _attributes(node), _FORMS[node.op]))
        known = any(v in self.last or v in self.indices for v in inputs if v is not None)
        if not known and node.outputs[0] not in self.wanted:
            return None
        if self.is_elementwise(node):
            if node.outputs[0] in self.kept and node.outputs[0] not in self.wanted:
                return None  # it reads what it needs by strides, and who gets the result wants planes
            values = [self._of(v) if v is not None and v.type.rank else v for v in inputs]
            return self._planar(self._add(builder, node, values, node.attributes))
        x = inputs[0]
        if node.op is broadcast_to and x is not None and x.type.rank == len(node.attributes["shape"]) > 2:
            shape = _last_shape(node.attributes["shape"])
            return self._planar(broadcast_to(self._of(x), shape=shape))
        if not known or x is None:
            return None
        if node.op is concat:
            values = [v if v is None else self._of(v) for v in inputs]
            axis = last_perm(x.type.rank).index(node.attributes["axis"] % x.type.rank)
            return self._planar(self._add(builder, node, values, {"axis": axis}))
        if node.op is slice_:
            given = {key: _last_shape(bounds) for key, bounds in node.attributes.items()}
            return self._planar(self._add(builder, node, [self._of(x)], given))
        if node.op.reduction:
            return self._reduced(builder, node, x)
        return self._pooled(builder, node, inputs) if node.op in _POOLS else None

    def _of(self, x: Value) -> Value:
        """A value with its channels last."""
        if x not in self.last:
            self.last[x] = _transposed(x, last_perm(x.type.rank))
        return self.last[x]

    def _planar(self, y: Value) -> Results:
        """The planar form of a value with its channels last."""
        planar = _transposed(y, first_perm(y.type.rank))
        self.last[planar] = y
        return (planar,)

    @staticmethod
    def _add(
        builder: GraphBuilder, node: Node, inputs: Sequence[Value | None], attributes: Any, op: AnyOp | None = None
    ) -> Value:
        result = builder.add(op or node.op, inputs, attributes, name=node.name).outputs[0]
        assert result is not None
        return result

    def _reduced(self, builder: GraphBuilder, node: Node, x: Value) -> Results | None:
        """Where the axes that stay keep their order."""
        perm, rank = last_perm(x.type.rank), x.type.rank
        axes = {axis % rank for axis in node.attributes["axes"]}
        left = [axis for axis in perm if axis not in axes]
        keepdims = node.attributes["keepdims"]
        if not keepdims and left != sorted(left):
            return None
        attributes = {**node.attributes, "axes": tuple(sorted(perm.index(axis) for axis in axes))}
        y = self._add(builder, node, [self._of(x)], attributes)
        return self._planar(y) if keepdims else (y,)

    # ---- pools ----

    def _pooled(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Results | None:
        """As planes whose last axis is the channels, along which windows have one element.

        Indices of maxima are then of such planes: they have no planar form, and only the gradient may read them.
        """
        old, x = node.inputs[0], inputs[0]
        assert old is not None and x is not None
        found = node.outputs[1] if node.op is max_pool and len(node.outputs) > 1 else None
        gradients = self.readers.get(found, []) if found is not None else []
        own = node.op is not max_pool_grad or inputs[1] in self.indices
        alone = found not in self.kept and all(reader.op is max_pool_grad for reader in gradients)
        if old.type.rank > 4 or not own or not alone or not all(self._is_pooled(n) for n in (node, *gradients)):
            return None
        values = [_as_plane(self._of(x)), *inputs[1:]]
        made = builder.add(node.op, values, self._pool_attributes(node), name=node.name)
        y = made.outputs[0]
        assert y is not None
        results = self._planar(reshape(y, shape=(y.type.shape[0], *y.type.shape[2:])))
        if found is None or made.outputs[1] is None:
            return results
        self.indices.add(made.outputs[1])
        return (*results, made.outputs[1])

    @staticmethod
    def _pool_attributes(node: Node) -> dict[str, Any]:
        given = dict(node.attributes)
        for key in ("kernel", "strides", "dilations"):
            if key in given:
                given[key] = (*given[key], 1)
        if "pads" in given:
            half = len(given["pads"]) // 2
            given["pads"] = (*given["pads"][:half], 0, *given["pads"][half:], 0)
        if "input_shape" in given:
            batch, *sizes = _last_shape(given["input_shape"])
            given["input_shape"] = (batch, 1, *sizes)
        return given

    def _is_pooled(self, node: Node) -> bool:
        """Whether the device of a pool, or of a gradient of one, has a kernel for it with channels last."""

        def plane(value: Value | None) -> Value | None:
            if value is None:
                return None
            batch, *sizes = _last_shape(value.type.shape)
            return Value(value.name, TensorType(value.type.dtype, (batch, 1, *sizes)))

        inputs, outputs = tuple(map(plane, node.inputs)), tuple(map(plane, node.outputs))
        made = dataclasses.replace(node, inputs=inputs, outputs=outputs, attributes=self._pool_attributes(node))
        return self.targets.taker(made, node) is not None and not self.targets.pin(node)


def _as_plane(x: Value) -> Value:
    batch, *sizes = x.type.shape
    return reshape(x, shape=(batch, 1, *sizes))


def _transposed(x: Value, perm: tuple[int, ...]) -> Value:
    """The transposed value; a reshape where elements keep their order."""
    order = [axis for axis in perm if x.type.shape[axis] != 1]
    if order == sorted(order):
        return reshape(x, shape=tuple(x.type.shape[axis] for axis in perm))
    return transpose(x, perm=perm)
