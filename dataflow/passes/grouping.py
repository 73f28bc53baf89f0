"""Groups of nodes of a graph that one node will stand for."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable

from ..ir.graph import Graph, Node
from ..ir.kernel import Targets


class Groups:
    """What is known of a graph while groups are sought in it, and the groups found.

    Attributes:
        makers, readers: of each value.
        kept: values that are read at the end of the graph.
        position: index of each node.
        taken: nodes that are in a group.
    """

    def __init__(self, graph: Graph, targets: Targets) -> None:
        self.graph, self.targets = graph, targets
        self.makers = graph.producers()
        self.readers = graph.readers()
        self.kept = {*graph.outputs.values(), *(s.after for s in graph.states), *(s.before for s in graph.states)}
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.taken: set[Node] = set()
        self._stops = graph.stage_stops()
        self._stands: dict[Node, Node] = {}  # the last node of a group -> what stands for it

    def together(self, nodes: Iterable[Node]) -> bool:
        """Whether nodes are wanted on the same devices, and of one stage."""
        listed = list(nodes)
        if len(self._stops) > 1 and len({bisect.bisect_right(self._stops, self.position[n]) for n in listed}) > 1:
            return False
        return len({self.targets.order(n) for n in listed}) == 1

    def take(self, nodes: Iterable[Node], last: Node, made: Node, first: Node) -> None:
        """Lets ``made`` stand for ``nodes``, in the position of ``last`` and where ``first`` is pinned."""
        self.taken.update(nodes)
        self._stands[last] = dataclasses.replace(made, pin=self.targets.pin(first))

    def result(self) -> Graph:
        """The graph with all groups replaced."""
        stands, taken = self._stands, self.taken
        if not stands:
            return self.graph
        nodes = [stands.get(node, node) for node in self.graph.nodes if node in stands or node not in taken]
        return dataclasses.replace(self.graph, nodes=tuple(nodes))
