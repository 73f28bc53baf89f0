"""Graph -> Graph: operands of products are rounded to bfloat16 once, where the precision is that of such operands.

A product of a device computes with rounded operands by that precision. Where a value is an operand of several, of a
step's forward product and of those of its gradient, each of them would read it as float32 and round it anew.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType

from ...ir.graph import Graph, Initializer, Node
from ...ir.kernel import Targets
from ...ir.op import AnyOp, Attribute
from ...ir.types import TensorType, bfloat16, float32
from ...ir.value import Value
from ...ops.attention import attention_grad, attention_grad_sums
from ...ops.cast import cast
from ...ops.fused import matmul_bias, matmul_bias_relu
from ...ops.linalg import matmul, matmul_rounded
from ...ops.reduce import reduce_sum
from ...ops.shape import concat
from ..dead_code import eliminate_dead_code
from .new_names import NewNames

_PRODUCTS: dict[AnyOp, bool] = {matmul: False, matmul_bias: False, matmul_bias_relu: True}  # with relu behind it
# Operands that may be rounded where products beside the node read them so: errors are those of the products.
_MAY_READ_ROUNDED: dict[AnyOp, int] = {
    reduce_sum: 0,
    **{op: op.inputs.index("y") for op in (attention_grad, attention_grad_sums)},
}
# A rounded operand is written and read once more, in 2 bytes of memory: it is worth that in this many sums, ...
_LEAST_SIDE = 128
# ... and a launch, in this many multiply-adds of a product: a node of a graph takes 1.1 us on an H200, and bfloat16
# spares those of 0.5 us at the rates of its data sheet, of some 2 at what small products reach; fewer slowed a step.
_LEAST_WORK = 1 << 28
_LINE = 8  # elements of 16 bits in the 16 bytes that tensor cores read at once


def round_products(graph: Graph, targets: Targets, mutable: Collection[str]) -> Graph:
    """The graph in which products whose device has a kernel for it read operands in bfloat16.

    A product stays where that wouldn't pay, and where rows are no multiple of 16 bytes. Initializers that nothing
    changes are stored rounded.

    Args:
        graph: bound.
        targets: the devices and their kernels.
        mutable: names of initializers that some program changes.
    """
    if not targets.offer(matmul_rounded.name):
        return graph
    return _Rounding(graph, targets, mutable).result()


def with_rounded_operands(node: Node, targets: Targets) -> Node | None:
    """A product with operands of bfloat16 in place of its own, or None where that doesn't pay or nothing computes it.

    A device has to have a kernel that names such operands: the reference takes any, and is exact.
    """
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if node.op not in _PRODUCTS or not _pays(node) or (bias is not None and bias.type.rank != 1):
        return None
    operands = [None if v is None else _as_bfloat16(v, v.name) for v in node.inputs[:2]]
    relu: Mapping[str, Attribute] = MappingProxyType(matmul_rounded.complete({"relu": _PRODUCTS[node.op]}))
    made = dataclasses.replace(node, op=matmul_rounded, inputs=(*operands, *node.inputs[2:]), attributes=relu)
    device = targets.taker(made, node)
    kernels = () if device is None else targets.kernels[device][made.op.name]
    named = any(kernel.input_spec(0).dtypes is not None and kernel.refuses(made) is None for kernel in kernels)
    return made if named else None


class _Rounding:
    """What is known of the graph, and what is new.

    Attributes:
        stops: see ``Graph.stage_stops``.
        position: index of each node.
        makers, readers: see ``Graph``.
        kept: values that aren't read by nodes alone.
        rounded: by value what it is in bfloat16.
        before, behind: new nodes by the index of the node that they stand before or behind.
        stored: new initializers.
    """

    def __init__(self, graph: Graph, targets: Targets, mutable: Collection[str]) -> None:
        self.graph, self.targets, self.mutable = graph, targets, mutable
        self.stops = graph.stage_stops()
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.makers, self.readers = graph.producers(), graph.readers()
        self.kept = {*graph.outputs.values(), *(state.after for state in graph.states)}
        self.names = NewNames(graph)
        self.rounded: dict[Value, Value] = {}
        self.before: dict[int, list[Node]] = {}
        self.behind: dict[int, list[Node]] = {}
        self.stored: dict[Value, Initializer] = {}

    def result(self) -> Graph:
        """The graph with all products that take operands in bfloat16."""
        found = {node: made for node in self.graph.nodes if (made := self.product(node)) is not None}
        if not found:
            return self.graph
        found |= self.beside(found)
        nodes: list[Node] = []
        for index, node in enumerate(self.graph.nodes):
            nodes += self.before.get(index, ())
            nodes.append(found.get(node, node))
            nodes += self.behind.get(index, ())
        initializers = {**self.graph.initializers, **self.stored}
        return eliminate_dead_code(dataclasses.replace(self.graph, nodes=tuple(nodes), initializers=initializers))

    def product(self, node: Node) -> Node | None:
        """The product with rounded operands, or None where it stays as it is."""
        made = with_rounded_operands(node, self.targets) if node.op in _PRODUCTS and self.is_even(node) else None
        if made is None:
            return None
        index = self.position[node]
        inputs = (*(None if v is None else self.operand(v, index) for v in node.inputs[:2]), *node.inputs[2:])
        return dataclasses.replace(made, inputs=inputs)

    def beside(self, products: Collection[Node]) -> dict[Node, Node]:
        """Other readers of what products read, where they may have the rounded values too: no float32 is stored then.

        Such are the gradient of a bias, beside the products that give the gradients of its neighbours, and that of
        attention, which reads its result.
        """

        def is_rounded(value: Value) -> bool:
            """Whether all that read a value, through views too, read it rounded."""
            return value not in self.kept and all(
                node in products
                or self.reads_rounded(node) is value
                or (node.op.view is not None and all(v is not None and is_rounded(v) for v in node.outputs))
                for node in self.readers.get(value, ())
            )

        made = {}
        for node in self.graph.nodes:
            value = self.reads_rounded(node)
            base = None if value is None else self.base(value)
            maker = None if base is None else self.makers.get(base)
            if value is None or base is None or maker is None or not is_rounded(base):
                continue
            nodes = self.behind.get(self.position[maker], ())
            if any(self.rounded.get(base) in one.outputs for one in nodes):
                made[node] = self.of_rounded(node, value, base)
        return made

    def of_rounded(self, node: Node, value: Value, base: Value) -> Node:
        """A reader of a view of ``base``, rounded where that is made, as float32 again; kernels read the 16 bits."""
        before = self.before.setdefault(self.position[node], [])

        def given(shown: Value) -> Value:
            if shown is base:
                return self.rounded[base]
            view = self.makers[shown]
            assert view.inputs[0] is not None
            half = self.value(shown)
            before.append(self.moving(view, (given(view.inputs[0]), *view.inputs[1:]), half))
            return half

        again = Value(self.names.unique(f"{value.name}/again"), value.type, None)
        before.append(self.cast_of(given(value), again, node))
        return dataclasses.replace(node, inputs=tuple([again if v is value else v for v in node.inputs]))

    def reads_rounded(self, node: Node) -> Value | None:
        """What a node may read rounded, where its device has a kernel that names bfloat16 there."""
        index = _MAY_READ_ROUNDED.get(node.op)
        value = None if index is None else node.inputs[index]
        if index is None or value is None or value.type.dtype != float32 or node.inputs.count(value) > 1:
            return None
        half = _as_bfloat16(value, value.name)
        made = dataclasses.replace(node, inputs=tuple([half if v is value else v for v in node.inputs]))
        device = self.targets.taker(made, node)
        kernels = () if device is None else self.targets.kernels[device][made.op.name]
        named = any(k.input_spec(index).dtypes is not None and k.refuses(made) is None for k in kernels)
        return value if named else None

    def is_even(self, node: Node) -> bool:
        """Whether rows of operands and result are multiples of 16 bytes."""
        result = node.outputs[0]
        assert result is not None
        operands = [self.base(v).type.sizes for v in node.inputs[:2] if v is not None]
        return result.type.sizes[-1] % 4 == 0 and all(sizes and sizes[-1] % _LINE == 0 for sizes in operands)

    def base(self, value: Value) -> Value:
        """What is rounded for a value: of a view that shows all elements of another value, that one."""
        source = self.source(value)
        return value if source is None else self.base(source)

    def source(self, value: Value) -> Value | None:
        maker = self.makers.get(value)
        source = maker.inputs[0] if maker is not None and maker.op.view is not None else None
        return source if source is not None and source.type.elements <= value.type.elements else None

    def operand(self, value: Value, reader: int) -> Value:
        """A value in bfloat16, for the node at the index ``reader``."""
        if value in self.rounded:
            return self.rounded[value]
        data = self.graph.initializers.get(value)
        if data is not None and value.name not in self.mutable and type(data) is Initializer and data.factor is None:
            made = self.value(value)
            self.stored[made] = Initializer(data.array.astype(bfloat16.numpy))
        else:
            made = self.computed(value, reader)
        self.rounded[value] = made
        return made

    def computed(self, value: Value, reader: int) -> Value:
        """A cast where the value is made, if that is of the reader's stage; a view is a view of what is rounded.

        What products alone read of a concat is one of rounded operands, which casts give where it has them; of views
        of what nodes compute it is rounded behind, since those nodes can then round what they write.
        """
        maker, source = self.makers.get(value), self.source(value)
        like = self.graph.nodes[reader] if maker is None else maker
        made, new = self.value(value), list[Node]()
        if maker is not None and maker.op is concat and self.is_for_products(value) and not self.joins_views(maker):
            new = [self.cast_of(v, self.value(v), like) for v in maker.inputs if v is not None]
            new.append(self.moving(maker, tuple([node.outputs[0] for node in new]), made))
        elif source is not None and maker is not None:
            new.append(self.moving(maker, (self.operand(source, reader), *maker.inputs[1:]), made))
        else:
            new.append(self.cast_of(value, made, like))
        if maker is not None and source is None and self.stage(self.position[maker]) == self.stage(reader):
            self.behind.setdefault(self.position[maker], []).extend(new)
        else:
            self.before.setdefault(reader, []).extend(new)
        return made

    def joins_views(self, node: Node) -> bool:
        """Whether an operand is a view of what a node computes."""
        bases = {v: self.base(v) for v in node.inputs if v is not None}
        return any(base is not value and base in self.makers for value, base in bases.items())

    def is_for_products(self, value: Value) -> bool:
        """Whether products alone read a value, through views too, all of them rounded."""
        return value not in self.kept and all(
            (node.op.view is not None and all(v is not None and self.is_for_products(v) for v in node.outputs))
            or (
                value in node.inputs[:2]
                and self.is_even(node)
                and with_rounded_operands(node, self.targets) is not None
            )
            for node in self.readers.get(value, ())
        )

    def cast_of(self, value: Value, result: Value, like: Node) -> Node:
        to: Mapping[str, Attribute] = MappingProxyType(cast.complete({"to": result.type.dtype}))
        name = self.names.unique(f"{like.name}/{result.type.dtype}")
        return Node(cast, name, (value,), (result,), to, (), like.origin, like.pin)

    def moving(self, maker: Node, inputs: tuple[Value | None, ...], result: Value) -> Node:
        """A node that moves bfloat16 in place of float32."""
        return dataclasses.replace(
            maker, name=self.names.unique(f"{maker.name}/{bfloat16}"), inputs=inputs, outputs=(result,)
        )

    def stage(self, index: int) -> int:
        return bisect.bisect_right(self.stops, index)

    def value(self, like: Value) -> Value:
        return _as_bfloat16(like, self.names.unique(f"{like.name}/{bfloat16}"))


def _as_bfloat16(value: Value, name: str) -> Value:
    return Value(name, TensorType(bfloat16, value.type.shape), None)


def _pays(node: Node) -> bool:
    """Whether a product of float32 has so many sums that rounding its operands takes less than it saves."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if a is None or b is None or y is None or any(v.type.dtype != float32 for v in (a, b, y)):
        return False
    rows, columns, inner = y.type.sizes[-2], y.type.sizes[-1], a.type.sizes[-1]
    many = rows * columns >= _LEAST_SIDE * (rows + columns)
    return many and y.type.elements * inner >= _LEAST_WORK
