"""Graph -> Graph: between convolutions of quantized values, channels lie together at each position.

A device multiplies these as it reads them; channels that lie a plane apart are copied next to each other first, by
every convolution. Transposes are left at the borders, where a planar value is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.op import Attribute
from ...ir.rewrite import rewrite
from ...ir.types import TensorType
from ...ir.value import Value
from ...ops.pool import max_pool
from ...ops.quantized import add_requantized, conv_requantized, dequantize, quantize
from ...ops.reduce import reduce_mean
from ...ops.rules.channels_last import first_perm, last_perm
from ...ops.shape import concat, reshape, transpose
from ..dead_code import eliminate_dead_code

Results = Sequence["Value | None"]
Attributes = Mapping[str, Attribute]


_BETWEEN = (quantize, dequantize, add_requantized, concat, max_pool)


def put_channels_last(graph: Graph, targets: Targets) -> Graph:
    """The graph with quantized convolutions, and what lies between them, of values with their channels last.

    Args:
        graph: bound.
        targets: the devices and their kernels.
    """
    if not any(node.op is conv_requantized for node in graph.nodes):
        return graph
    return eliminate_dead_code(rewrite(graph, _Layout(targets, _wanted(graph, targets)).replace))


def _wanted(graph: Graph, targets: Targets) -> set[Value | None]:
    """The values that convolutions read with their channels last, also through what lies between convolutions."""
    found: set[Value | None] = set()
    for node in reversed(graph.nodes):
        if node.op is conv_requantized and not targets.pin(node) and targets.taker(_moved(node), node) is not None:
            found.add(node.inputs[0])
        elif node.outputs[0] in found and (node.op.elementwise or node.op in _BETWEEN):
            found.update(node.inputs)
    return found


def _moved(node: Node) -> Node:
    """A convolution with its channels last; it stands in no graph."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None and y is not None
    perm = last_perm(x.type.rank)
    values = [Value(v.name, TensorType(v.type.dtype, tuple(v.type.shape[axis] for axis in perm))) for v in (x, y)]
    attributes = {**node.attributes, "channels_last": True}
    return dataclasses.replace(node, inputs=(values[0], *node.inputs[1:]), outputs=(values[1],), attributes=attributes)


class _Layout:
    """Computes nodes with channels last that read such a value, and convolutions before such.

    Attributes:
        targets: the devices and their kernels.
        wanted: values of the old graph that convolutions read.
        last: what holds the same elements with channels last, by planar values of the new graph.
    """

    def __init__(self, targets: Targets, wanted: set[Value | None]) -> None:
        self.targets, self.wanted = targets, wanted
        self.last: dict[Value, Value] = {}

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Results | None:
        """See ``Replace``."""
        if self.targets.pin(node):
            return None  # it stays the node that the user means
        known = any(v in self.last for v in inputs if v is not None)
        if node.op is conv_requantized and (known or node.outputs[0] in self.wanted):
            x = inputs[0]
            assert x is not None
            attributes = {**node.attributes, "channels_last": True}
            return self._planar(self._run(builder, node, [self._of(x), *inputs[1:]], attributes))
        if not known:
            return None
        if node.op is add_requantized:
            a, *scales = inputs[:3]
            b, *others = inputs[3:]
            assert a is not None and b is not None
            return self._planar(self._run(builder, node, [self._of(a), *scales, self._of(b), *others]))
        if node.op in (quantize, dequantize):
            return self._converted(builder, node, inputs)
        if node.op is concat:
            return self._joined(builder, node, inputs)
        if node.op is max_pool:
            return self._planar(self._pooled(builder, node, inputs[0]))
        if node.op is reduce_mean:
            return self._mean(builder, node, inputs)
        if node.op.elementwise:
            return self._computed(builder, node, inputs)
        return None

    def _of(self, x: Value) -> Value:
        """A value with its channels last."""
        if x not in self.last:
            self.last[x] = transpose(x, perm=last_perm(x.type.rank))
        return self.last[x]

    def _planar(self, y: Value | None) -> Results | None:
        """The planar form of a value with its channels last."""
        if y is None:
            return None
        planar = transpose(y, perm=first_perm(y.type.rank))
        self.last[planar] = y
        return (planar,)

    def _beside(self, builder: GraphBuilder, node: Node, inputs: list[Value | None], y: Value | None) -> Results | None:
        """The node as it is: where planar floats are read, fewer bytes are transposed before they become floats."""
        if y is None:
            return None
        planar = builder.again(node, inputs).outputs
        assert planar[0] is not None
        self.last[planar[0]] = y
        return planar

    def _run(
        self, builder: GraphBuilder, node: Node, inputs: Sequence[Value | None], given: Attributes | None = None
    ) -> Value | None:
        """The result of a node of the same op, where the device of ``node`` has a kernel for it."""
        made = builder.add(node.op, inputs, node.attributes if given is None else given)
        alone = dataclasses.replace(made, outputs=(made.outputs[0], *(None for _ in made.outputs[1:])))
        return None if self.targets.taker(alone, node) is None else made.outputs[0]

    def _converted(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Results | None:
        x, scale, zero = inputs
        assert x is not None and scale is not None
        if scale.type.rank:
            return None
        y = self._run(builder, node, [self._of(x), scale, zero])
        return self._planar(y) if node.op is quantize else self._beside(builder, node, inputs, y)

    def _computed(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Results | None:
        """Where operands have one rank, or none: then they broadcast as before."""
        values = [v for v in inputs if v is not None]
        rank = max(v.type.rank for v in values)
        if len(values) < len(inputs) or any(v.type.rank not in (0, rank) for v in values):
            return None
        y = self._run(builder, node, [self._of(v) if v.type.rank else v for v in values])
        return self._beside(builder, node, inputs, y)

    def _joined(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Results | None:
        values = [v for v in inputs if v is not None]
        axis = last_perm(values[0].type.rank).index(node.attributes["axis"] % values[0].type.rank)
        y = self._run(builder, node, [self._of(v) for v in values], {"axis": axis})
        return self._planar(y) if values[0].type.dtype.is_int else self._beside(builder, node, inputs, y)

    def _pooled(self, builder: GraphBuilder, node: Node, x: Value | None) -> Value | None:
        """As planes whose last axis is the channels, along which windows have one element."""
        assert x is not None
        attributes, spatial = dict(node.attributes), x.type.rank - 2
        if any(node.outputs[1:]) or spatial > 2:
            return None
        for key in ("kernel", "strides", "dilations"):
            attributes[key] = (*attributes[key], 1)
        pads = attributes["pads"]
        attributes["pads"] = (*pads[:spatial], 0, *pads[spatial:], 0)
        batch, *sizes = self._of(x).type.sizes
        y = self._run(builder, node, [reshape(self._of(x), shape=(batch, 1, *sizes))], attributes)
        return None if y is None else reshape(y, shape=(batch, *y.type.sizes[2:]))

    def _mean(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Results | None:
        x = inputs[0]
        assert x is not None
        rank, axes = x.type.rank, node.attributes["axes"]
        if sorted(axis % rank for axis in axes) != list(range(2, rank)):
            return None
        attributes = {**node.attributes, "axes": tuple(range(1, rank - 1))}
        y = self._run(builder, node, [self._of(x)], attributes)
        return self._planar(y) if node.attributes["keepdims"] or y is None else (y,)
