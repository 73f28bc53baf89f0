"""Which values of a graph are rounded when its products are those of integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..ir.graph import Graph, Node
from ..ir.types import float32
from ..ir.value import Value
from ..layers.layers import Layer, constants_of, end_of

_RECTIFYING = ("relu", "clip")  # a kernel of integers does them where it stores its results
_MOVING = ("max_pool", "reshape", "transpose", "concat", "slice")  # give elements of their operands as they are
_MEANS = ("avg_pool", "reduce_mean")


@dataclass(frozen=True, slots=True)
class Product:
    """A product or convolution of a computed value and a stored tensor.

    Attributes:
        node: it.
        weight: the stored tensor.
        axis: of the outputs in it.
        bias: stored, a number for each output that nothing else reads.
        norm: the batch norm that alone reads the result, where all else that it reads is stored.
    """

    node: Node
    weight: Value
    axis: int
    bias: Value | None
    norm: Node | None

    @property
    def source(self) -> Value:
        """The computed operand."""
        source = self.node.inputs[0]
        assert source is not None
        return source

    @property
    def result(self) -> Value:
        """The result, that of the batch norm where there is one."""
        result = (self.norm or self.node).outputs[0]
        assert result is not None
        return result

    @property
    def added(self) -> list[Value]:
        """What is stored beside the weight and becomes part of it or of the bias."""
        of_norm = [] if self.norm is None else [*self.node.inputs[2:], *self.norm.inputs[1:]]
        return [v for v in (self.bias, *of_norm) if v is not None]


def products_of(graph: Graph, layers: Sequence[Layer]) -> list[Product]:
    """The products of layers whose weight can be stored as integers, in the order of the graph.

    That is a float32 tensor which nothing reads but products, all with its outputs along one axis.
    """
    readers, constants = graph.readers(), constants_of(graph)
    position = {node: index for index, node in enumerate(graph.nodes)}
    found = []
    for layer in layers:
        axes = {_output_axis(layer, use.node, use.swapped) for use in layer.uses}
        axis = axes.pop() if len(axes) == 1 else None
        stored = layer.stored and layer.alone and not layer.flat and layer.weight.type.dtype == float32
        if not stored or axis is None:
            continue
        for use in layer.uses:
            bias = end_of(graph, layer, use, readers, constants)[1]
            alone = bias is not None and bias in graph.initializers and len(readers[bias]) == 1
            norm = _norm_behind(graph, use.node, readers) if layer.kind == "conv" and len(layer.uses) == 1 else None
            found.append(Product(use.node, layer.weight, axis, bias if alone else None, norm))
    return sorted(found, key=lambda product: position[product.node])


def groups_of(graph: Graph, products: Sequence[Product]) -> list[tuple[Value, ...]]:
    """The values that are rounded to bytes, by groups of one scale: what products read, and what these come from.

    Elements that are only moved keep their scale. Both operands of a sum, and what is averaged, are rounded too where
    the result is and they come of products: the sum is then one of bytes.
    """
    makers, constants = graph.producers(), constants_of(graph)
    points: dict[Value, Value] = {product.source: product.source for product in products}  # by value, one of its group
    integral = _integral(graph, products, points, constants)

    def first_of(value: Value) -> Value:
        while points[value] is not value:
            value = points[value]
        return value

    queue = list(points)
    while queue:
        value = queue.pop()
        direct, behind = makers.get(value), _behind_rectifying(value, makers)
        if direct is not None and direct.op.name in _MOVING:
            for operand in _floats(direct):
                if operand in integral:
                    if operand not in points:
                        points[operand] = operand
                        queue.append(operand)
                    points[first_of(operand)] = first_of(value)
        elif behind is not None and behind.op.name in ("add", *_MEANS):
            operands = _floats(behind)
            if constants.isdisjoint(operands) and not integral.isdisjoint(operands):
                for operand in operands:
                    if operand not in points:
                        points[operand] = operand
                        queue.append(operand)
    groups: dict[Value, list[Value]] = {}
    for value in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs if v is not None)):
        if value in points:
            groups.setdefault(first_of(value), []).append(value)
    return [tuple(group) for group in groups.values()]


def _output_axis(layer: Layer, node: Node, swapped: bool) -> int | None:
    """The axis of a stored weight along which a node's outputs lie; None of a node that is no product."""
    if node.op.name == "conv":
        return 0
    if node.op.name != "matmul":
        return None
    return 0 if layer.transposed != swapped else 1


def _norm_behind(graph: Graph, node: Node, readers: Mapping[Value, Sequence[Node]]) -> Node | None:
    result = node.outputs[0]
    reading = readers.get(result, ()) if result is not None and result not in graph.outputs.values() else ()
    stored = len(reading) == 1 and reading[0].op.name == "batch_norm" and reading[0].inputs[0] is result
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if not stored or (bias is not None and bias not in graph.initializers):
        return None
    return reading[0] if all(v in graph.initializers for v in reading[0].inputs[1:]) else None


def _floats(node: Node) -> list[Value]:
    """The operands of float32 that aren't attributes of a movement."""
    operands = node.inputs if node.op.name in ("add", "concat") else node.inputs[:1]
    return [v for v in operands if v is not None and v.type.dtype == float32]


def _behind_rectifying(value: Value, makers: Mapping[Value, Node]) -> Node | None:
    """The node that gives a value, before what keeps it in a range."""
    node = makers.get(value)
    while node is not None and node.op.name in _RECTIFYING:
        source = node.inputs[0]
        node = None if source is None else makers.get(source)
    return node


def _integral(
    graph: Graph, products: Sequence[Product], points: Collection[Value], constants: Collection[Value]
) -> set[Value]:
    """The values that come of inputs, of products and of rounded values by what bytes allow."""
    found = {value for value in graph.inputs if value.type.dtype == float32} | set(points)
    found |= {product.result for product in products}
    sums = {product.result for product in products if product.node.op.name == "matmul"}  # that a bias is added to
    for node in graph.nodes:
        result = node.outputs[0] if node.outputs else None
        if result is None or result.type.dtype != float32:
            continue
        operands = _floats(node)
        if node.op.name in (*_RECTIFYING, *_MOVING, *_MEANS):
            known = any(operand in found for operand in operands)
        elif node.op.name == "add":
            biased = any(operand in constants for operand in operands)
            known = any(operand in (sums if biased else found) for operand in operands)
        else:
            continue
        if known:
            found.add(result)
    return found
