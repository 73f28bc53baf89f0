"""Graph -> Graph: logits of an odd number of classes get more columns, so that their products have even rows.

Tensor cores read rows of 16 bytes: with some fifty thousand classes, seven fewer than a multiple of 8, a product takes
seven times as long in bfloat16 as with that multiple (3.2 and 0.43 ms for 4096 rows of 768 on an H100), and in TF32 its
operands are copied to even rows first. The weight gets rows of zeros, and the loss has the number of columns that are
classes as an attribute: the others are none of it, and their gradient is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.op import Attribute
from ...ir.rewrite import rewrite
from ...ir.types import float32
from ...ir.value import Value
from ...ops.linalg import matmul, matmul_rounded, swapped
from ...ops.loss import softmax_cross_entropy, softmax_cross_entropy_grad
from ...ops.shape import concat, reshape, slice_, transpose
from ..dead_code import eliminate_dead_code
from .products import with_rounded_operands

_EVEN = 8  # elements of 16 bits in the 16 bytes that tensor cores read at once


def pad_classes(graph: Graph, targets: Targets) -> Graph:
    """The graph with padded classes where a product gives the logits of a loss.

    Args:
        graph: bound.
        targets: the devices and their kernels.
    """
    if not targets.offer(matmul_rounded.name):
        return graph
    heads = _heads(graph, targets)
    if not heads:
        return graph
    return eliminate_dead_code(rewrite(graph, _Padding(graph, heads).replace))


def _heads(graph: Graph, targets: Targets) -> set[Node]:
    """Products of which the result is the logits of a loss over an odd number of classes, the last axis."""
    makers = graph.producers()
    found = set()
    for node in graph.nodes:
        logits = node.inputs[0] if node.op is softmax_cross_entropy else None
        maker = None if logits is None else makers.get(logits)
        if logits is None or maker is None or maker.op is not matmul or logits.type.dtype != float32:
            continue
        classes, weight = logits.type.sizes[-1], maker.inputs[1]
        assert weight is not None
        last = node.attributes["axis"] in (-1, logits.type.rank - 1) and weight.type.rank == 2
        if (
            last
            and classes % _EVEN
            and not node.attributes["classes"]
            and with_rounded_operands(maker, targets) is not None
        ):
            found.add(maker)
    return found


class _Padding:
    """Values of the new graph while it is built.

    Attributes:
        padded: by value of the old graph the one with more columns, and the axis of the classes.
    """

    def __init__(self, graph: Graph, heads: set[Node]) -> None:
        self.makers, self.heads = graph.producers(), heads
        self.padded: dict[Value, tuple[Value, int]] = {}

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        """What stands for the outputs of a node; None: the node as it is. See ``rewrite``."""
        if node in self.heads:
            return (self.logits(builder, node, inputs),)
        found = None if not node.inputs or node.inputs[0] is None else self.padded.get(node.inputs[0])
        if node.op is softmax_cross_entropy and found is not None:
            return builder.add(node.op, (found[0], inputs[1]), self.counted(node), name=node.name).outputs
        if node.op is softmax_cross_entropy_grad and node.inputs[1] in self.padded:
            return (self.gradient(node, inputs),)
        if node.op is transpose and found is not None:
            perm = node.attributes["perm"]
            self.padded[_result(node)] = transpose(found[0], perm=perm), perm.index(found[1])
        elif node.op is reshape and found is not None:
            self.reshaped(node, *found)
        elif node.op is matmul and any(v in self.padded for v in node.inputs if v is not None):
            return self.product(builder, node, inputs)
        return None

    def logits(self, builder: GraphBuilder, node: Node, inputs: Sequence[Value | None]) -> Value:
        """The product with a weight that has more columns."""
        old, (a, b) = _result(node), inputs
        assert a is not None and b is not None and node.inputs[1] is not None
        made: Value = matmul(a, self.weight(builder, node.inputs[1], b), name=node.name)
        self.padded[old] = made, old.type.rank - 1
        return _without(made, old)

    def weight(self, builder: GraphBuilder, old: Value, new: Value) -> Value:
        """The product's second operand with columns of zeros; what is transposed gets rows, which lie behind it."""
        maker = self.makers.get(old)
        source = maker.inputs[0] if maker is not None and maker.op is transpose else None
        if old in self.padded:
            return self.padded[old][0]
        more, length = -old.type.sizes[-1] % _EVEN, old.type.sizes[-2]
        if source is None:
            made: Value = concat(new, builder.constant(np.zeros((length, more), np.float32)), axis=1)
        else:
            stored = swapped(new)  # two transposes are one view
            zeros = builder.constant(np.zeros((more, length), np.float32))
            stored = concat(stored, zeros, axis=0)
            self.padded[source] = stored, 0
            made = swapped(stored)
        self.padded[old] = made, 1
        return made

    @staticmethod
    def counted(node: Node) -> dict[str, Attribute]:
        """The attributes of a loss, or of its gradient, with how many of the columns are classes."""
        logits = node.inputs[node.op.inputs.index("logits")]
        assert logits is not None
        return {**node.attributes, "classes": int(logits.type.sizes[-1])}

    def gradient(self, node: Node, inputs: Sequence[Value | None]) -> Value:
        dloss, _, labels, *kept = inputs
        logits, axis = self.padded[node.inputs[1]]  # type: ignore[index]
        made: Value = softmax_cross_entropy_grad(dloss, logits, labels, *kept, **self.counted(node), name=node.name)
        self.padded[_result(node)] = made, axis
        return _without(made, _result(node))

    def reshaped(self, node: Node, made: Value, axis: int) -> None:
        """Keeps the padded value where only axes before the classes change."""
        shape, old = tuple(node.attributes["shape"]), node.inputs[0]
        assert old is not None
        if axis == old.type.rank - 1 and shape and shape[-1] == old.type.sizes[-1]:
            self.padded[_result(node)] = reshape(made, shape=(*shape[:-1], made.type.sizes[-1])), len(shape) - 1

    def product(
        self, builder: GraphBuilder, node: Node, inputs: Sequence[Value | None]
    ) -> Sequence[Value | None] | None:
        """The product of padded values: over the classes, or for each of them."""
        operands = []
        for old, new in zip(node.inputs, inputs, strict=True):
            assert old is not None and new is not None
            value, axis = self.padded.get(old, (new, None))
            operands.append((value, None if axis is None else axis - old.type.rank))
        (a, row), (b, column) = operands
        if row == -1 and column == -2:
            return (matmul(a, b, name=node.name),)
        if (row, column) in ((-2, None), (None, -1)):
            return (_without(matmul(a, b, name=node.name), _result(node)),)
        return None


def _result(node: Node) -> Value:
    (value, *_) = node.outputs
    assert value is not None
    return value


def _without(made: Value, old: Value) -> Value:
    """The elements that the graph had before, a view."""
    sizes = old.type.sizes
    found: Value = slice_(made, starts=(0,) * len(sizes), stops=sizes, steps=(1,) * len(sizes))
    return found
