"""Graph -> Graph: what is added to the gradient of a norm's operand, or of a table's rows, is added where that is made.

What a norm of a residual network normalizes is read by the sum behind it, too, and the table of words by the last
product of many decoders. So their gradients have two parts: a sum of two tensors, each written before and read again.
"""

from __future__ import annotations

import dataclasses

from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.op import AnyOp
from ...ir.value import Value
from ...ops.arithmetic import add
from ...ops.gather import index_add
from ...ops.norm import layer_norm_grad
from ..grouping import Groups

_ADDENDS: dict[AnyOp, int] = {op: op.inputs.index("addend?") for op in (layer_norm_grad, index_add)}


def add_to_gradients(graph: Graph, targets: Targets) -> Graph:
    """The graph with what is added to such a gradient as its addend, where a device has a kernel for that.

    The addend must be there before the gradient: what else its node gives is read between it and the sum.
    """
    if not graph.has(*_ADDENDS):
        return graph
    search = _Search(graph, targets)
    for node in graph.nodes:
        if len(node.inputs) == _ADDENDS.get(node.op):
            search.join(node)
    return search.result()


class _Search(Groups):
    def join(self, node: Node) -> None:
        """Lets one node stand for the gradient and the sum that alone reads it."""
        value = node.outputs[0]
        readers = [] if value is None or value in self.kept else self.readers.get(value, [])
        total = readers[0] if len(readers) == 1 and readers[0].op is add else None
        if total is None or value is None or total in self.taken or not self.together((node, total)):
            return
        addend = self.other(total, value)
        if addend is None or not self.is_before(addend, node):
            return
        outputs = (total.outputs[0], *node.outputs[1:])
        made = dataclasses.replace(node, inputs=(*node.inputs, addend), outputs=outputs)
        if self.targets.taker(made, node) is not None:
            self.take((node, total), node, made, node)

    @staticmethod
    def other(total: Node, value: Value) -> Value | None:
        """The other operand of a sum, where it is like the result."""
        left = [v for v in total.inputs if v is not value]
        alike = len(left) == 1 and left[0] is not None and left[0].type == value.type
        return left[0] if alike else None

    def is_before(self, value: Value, node: Node) -> bool:
        """Whether a value is there when ``node`` runs."""
        maker = self.makers.get(value)
        return maker is None or self.position[maker] < self.position[node]
