"""Graph -> Graph: a batch norm in training and the relu behind it as one op.

The gradient of a relu reads its result, that of a batch norm what it normalizes: two tensors for one. Of both together
it reads the latter, since whether a result was above 0 follows from it; and there is one pass less over each of them.
"""

from __future__ import annotations

from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ops.activation import relu
from ...ops.norm import batch_norm_train, batch_norm_train_relu, batch_norm_train_relu_grad
from ..grouping import Groups


def fuse_norm_relu(graph: Graph, targets: Targets) -> Graph:
    """The graph with both as one wherever nothing else reads what is between, and a device has the kernels.

    Args:
        graph: bound, yet to be differentiated.
        targets: the devices and their kernels.
    """
    if not targets.offer(batch_norm_train_relu.name) or not targets.offer(batch_norm_train_relu_grad.name):
        return graph
    groups = Groups(graph, targets)
    for node in graph.nodes:
        if node.op is batch_norm_train:
            _fuse(groups, node)
    return groups.result()


def _fuse(groups: Groups, norm: Node) -> None:
    y = norm.outputs[0]
    readers = [] if y is None or y in groups.kept else groups.readers.get(y, [])
    if len(readers) != 1 or readers[0].op is not relu or not groups.together((norm, readers[0])):
        return
    results = (readers[0].outputs[0], *norm.outputs[1:])
    made = Node(batch_norm_train_relu, norm.name, norm.inputs, results, norm.attributes, (), norm.origin)
    device = groups.targets.taker(made, norm)
    if device is not None and batch_norm_train_relu_grad.name in groups.targets.kernels[device]:
        groups.take((norm, readers[0]), norm, made, norm)
