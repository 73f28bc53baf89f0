"""Graph -> Graph: a sum over all axes but one is computed with what it is of: elementwise ops, gradients of norms.

The gradient of a bias is such a sum: it would read again what has just been written.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.op import AnyOp, Attribute
from ...ir.types import float32
from ...ir.value import Value
from ...ops.activation import gelu_grad, gelu_grad_sums
from ...ops.fused import PROGRAM_OPS, fused_elementwise, fused_elementwise_sums, program
from ...ops.norm import layer_norm_grad, layer_norm_grad_sums
from ...ops.reduce import reduce_sum
from ..grouping import Groups

_OPS = (fused_elementwise_sums.name, gelu_grad_sums.name, layer_norm_grad_sums.name)


def sum_with_elementwise(graph: Graph, targets: Targets) -> Graph:
    """The graph with one op for elementwise ops of float32, or GELU's or layer norm's gradient, and one sum of it.

    Only where a device has a kernel for both. Runs behind ``fuse_elementwise``, whose groups it takes as they are.
    """
    if not any(map(targets.offer, _OPS)) or not graph.has(reduce_sum):
        return graph
    search = _Search(graph, targets)
    for node in graph.nodes:
        value = node.inputs[0] if node.op is reduce_sum else None
        maker = search.makers.get(value) if value is not None else None
        if maker is not None and maker not in search.taken:
            search.join(maker, node)
    return search.result()


class _Search(Groups):
    def join(self, maker: Node, total: Node) -> None:
        """Lets one node stand for both, in the place of the first."""
        kept = _kept(total)
        found = None if kept is None else _with_sum(maker, kept)
        if found is None or not self.together((maker, total)):
            return
        op, attributes = found
        complete = op.complete({**attributes, "keepdims": total.attributes["keepdims"]})
        outputs = (maker.outputs[0], total.outputs[0], *maker.outputs[1:])
        made = Node(op, maker.name, maker.inputs, outputs, complete, (), maker.origin)
        if self.targets.taker(made, maker) is not None:
            self.take((maker, total), maker, made, maker)


def _with_sum(node: Node, kept: int) -> tuple[AnyOp, Mapping[str, Attribute]] | None:
    """The op that also sums what a node gives over all axes but ``kept``, and its attributes; None: there is none."""
    result = node.outputs[0]
    if node.op is gelu_grad and result is not None and kept == result.type.rank - 1:
        return gelu_grad_sums, node.attributes
    if node.op is layer_norm_grad and result is not None and kept == result.type.rank - 1:
        columns = node.attributes["axis"] % result.type.rank == kept
        return (layer_norm_grad_sums, node.attributes) if columns else None
    steps = _steps(node)
    return None if steps is None else (fused_elementwise_sums, {"program": steps, "kept": kept})


def _steps(node: Node) -> Attribute:
    """The program of a node that gives as many elements as it computes; None where it is another."""
    if node.op is fused_elementwise:
        return None if node.attributes["trailing"] else node.attributes["program"]
    alone = PROGRAM_OPS.get(node.op.name) is node.op and not node.attributes
    values: list[Value | None] = [*node.inputs, node.outputs[0]]
    if not alone or any(v is None or v.type.dtype != float32 for v in values):
        return None
    distinct = list(dict.fromkeys(node.inputs))
    return program((node.op.name, *map(distinct.index, node.inputs))) if len(distinct) == len(node.inputs) else None


def _kept(node: Node) -> int | None:
    """The one axis that a sum leaves; None where it leaves several, or none, or the first.

    A sum over trailing axes is one that ``fuse_elementwise`` has looked at: its bits are those of the ops one by one.
    """
    value = node.inputs[0]
    assert value is not None
    rank = value.type.rank
    left = {*range(rank)} - {axis % rank for axis in node.attributes["axes"]}
    return left.pop() if len(left) == 1 and 0 not in left else None
