"""Graph -> Graph: a cross entropy and its gradient as one op, where what multiplies the gradient is known before.

In a training step that is a constant or a weight of each label: it doesn't depend on the loss. Apart, a device reads
the logits twice: of a language model they are the largest tensor of a step, some hundred megabytes.

They still are a tensor. Counted for a language model of 124 million parameters (4096 rows: logits of 823 MB, a weight
of 154) on a card that moves 3.0 TB/s with a cache of 50 MB, and does 400 and 790 TFLOP/s in TF32 and bfloat16:

- Here the product writes the logits, this op reads them and writes their gradient over them, and two products read
  that: 4.1 GB. What the products move takes less time than their 948 GFLOP, so the op alone counts: 1.6 GB, 0.55 ms.
- Chunks of rows, each with its product, its loss and both products of the gradient, read the weight twice, and read
  and write the weight's gradient: 617 MB each. 32 chunks of 128 rows, whose logits stay in the cache, move 19.8 GB; 4
  chunks of 1024 rows need 618 MB less memory, but move 1.9 GB more.
- Chunks of classes (Cut Cross-Entropy, arXiv 2411.09009) move weight and gradient once, but need the sum over all
  classes first. So the logits are computed twice: 316 GFLOP, 0.79 ms in TF32 and 0.40 in bfloat16, for at most 0.55
  ms of moves and some hundred launches more.

So chunks would save memory alone, and none are made. On a CPU moves are a smaller share: at 15 GB/s and 200 GFLOP/s,
which are assumed, 0.3 s of 5.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.value import Value
from ...ops.loss import softmax_cross_entropy, softmax_cross_entropy_grad, softmax_cross_entropy_with_grad


def join_loss_gradients(graph: Graph, targets: Targets) -> Graph:
    """The graph with ``softmax_cross_entropy_with_grad`` for both, in the position of the loss.

    What multiplies the gradient then stands before it, and so does what else reads the logits, over which the gradient
    is written. In a graph of stages the gradient is computed in that of the loss.

    Args:
        graph: bound.
        targets: the devices and their kernels.
    """
    if targets.offer(softmax_cross_entropy_with_grad.name):
        for node in graph.nodes:  # of the graph before
            if node.op is softmax_cross_entropy:
                graph = _joined(graph, node, targets)
    return graph


def _joined(graph: Graph, loss: Node, targets: Targets) -> Graph:
    """The graph with one node for a loss and its gradient, or as it is."""
    readers = graph.readers()
    kept = {*graph.outputs.values(), *(state.after for state in graph.states)}
    logits, labels = loss.inputs
    sums = loss.outputs[1:]
    found = {node for value in sums if value is not None for node in readers.get(value, [])}
    gradient = found.pop() if len(found) == 1 and kept.isdisjoint(sums) else None
    if gradient is None or gradient.op is not softmax_cross_entropy_grad or logits is None:
        return graph
    if gradient.inputs[1:] != (logits, labels, *sums):
        return graph
    if gradient.attributes != loss.attributes or targets.order(gradient) != targets.order(loss):
        return graph
    dloss = gradient.inputs[0]
    outputs = (loss.outputs[0], gradient.outputs[0])
    made = Node(
        softmax_cross_entropy_with_grad,
        loss.name,
        (dloss, logits, labels),
        outputs,
        loss.attributes,
        (),
        loss.origin,
        pin=targets.pin(loss),
    )
    position = graph.nodes.index(loss)
    stop = min(stop for stop in graph.stage_stops() if stop > position)
    others = [node for node in _readers(readers, logits) if node is not loss and node is not gradient]
    beside, factors = _with_ancestors(graph, others), _with_ancestors(graph, [made]).difference([made])
    before = beside | factors
    if loss in before or gradient in before or not beside.isdisjoint(graph.nodes[stop:]):
        return graph
    if targets.taker(made, loss) is None:
        return graph
    sooner = [node for node in graph.nodes[position:] if node in before]
    later = [node for node in graph.nodes[position + 1 :] if node not in before and node is not gradient]
    return dataclasses.replace(graph, nodes=(*graph.nodes[:position], *sooner, made, *later))


def _readers(readers: dict[Value, list[Node]], value: Value) -> Iterable[Node]:
    """What reads a value, or a view of it."""
    for node in readers.get(value, ()):
        yield node
        if node.op.view is not None:
            for view in node.outputs:
                if view is not None:
                    yield from _readers(readers, view)


def _with_ancestors(graph: Graph, nodes: Iterable[Node]) -> set[Node]:
    """Nodes, and all whose results they need."""
    makers, found = graph.producers(), set[Node]()
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [makers[value] for value in node.inputs if value in makers]
    return found
