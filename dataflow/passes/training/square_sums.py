"""Graph -> Graph: the squares of all gradients are summed in one place, where a device sums many tensors at once.

Each gradient of a network has a term of the norm that clips them, most of them of a few hundred elements: on a card
such a sum takes less time than its launch.
"""

from __future__ import annotations

from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.types import float32
from ...ir.value import Value
from ...ops.optimizer import square_sum, square_sums
from ..grouping import Groups


def join_square_sums(graph: Graph, targets: Targets) -> Graph:
    """The graph with ``square_sums`` for chains of ``square_sum``, in the place of the last.

    Only of tensors that are kept to the end of the graph: others would be held for it.
    """
    if not targets.offer(square_sums.name) or not graph.has(square_sum):
        return graph
    search = _Search(graph, targets)
    for node in reversed(graph.nodes):
        if node.op is square_sum and node not in search.taken:
            search.replace(search.chain(node))
    return search.result()


class _Search(Groups):
    def chain(self, last: Node) -> list[Node]:
        """The sums that ``last`` ends, in their order; none where they begin with something else."""
        found = [last]
        while (before := _before(found[-1])) is not None:
            maker = self.makers.get(before)
            alone = before not in self.kept and self.readers[before] == [found[-1]]
            if maker is None or maker.op is not square_sum or not alone:
                return []
            found.append(maker)
        return found[::-1]

    def replace(self, chain: list[Node]) -> None:
        """Lets one node stand for a chain."""
        if len(chain) < 2 or not self.together(chain):
            return
        last, inputs = chain[-1], tuple(node.inputs[0] for node in chain)
        if any(value not in self.kept or value.type.dtype != float32 for value in inputs):
            return
        made = Node(square_sums, last.name, inputs, last.outputs, square_sums.complete({}), (), last.origin)
        if self.targets.taker(made, last) is not None:
            self.take(chain, last, made, last)


def _before(node: Node) -> Value | None:
    return node.inputs[1] if len(node.inputs) > 1 else None
