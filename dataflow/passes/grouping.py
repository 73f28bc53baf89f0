"""Groups of nodes of a graph that one node will stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ..ir.graph import Graph, Node
from ..lower.placement import Pins
from ..plugin.registry import Registry


class Groups:
    """What is known of a graph while groups are sought in it, and the groups found.

    Attributes:
        makers, readers: of each value.
        kept: values that are read at the end of the graph.
        place: index of each node.
        taken: nodes that are in a group.
    """

    def __init__(self, graph: Graph, pins: Pins, registry: Registry) -> None:
        self.graph, self.pins, self.registry = graph, pins, registry
        self.makers = graph.producers()
        self.readers = graph.readers()
        self.kept = {*graph.outputs.values(), *(s.after for s in graph.states), *(s.before for s in graph.states)}
        self.place = {node: index for index, node in enumerate(graph.nodes)}
        self.taken: set[Node] = set()
        self._stands: dict[Node, Node] = {}  # the last node of a group -> what stands for it

    def together(self, nodes: Iterable[Node]) -> bool:
        """Whether nodes are wanted on the same devices, and on one side of the boundary of a joint graph."""
        boundary = self.graph.boundary
        if boundary is None and not self.pins.patterns:
            return True
        listed = list(nodes)
        if boundary is not None and len({self.place[n] < boundary for n in listed}) > 1:
            return False
        return len({self.pins.order(n) for n in listed}) == 1

    def taker(self, made: Node, member: Node) -> str | None:
        """The device that would run ``member``, if it has a kernel that takes ``made``."""
        for device in self.pins.order(member):
            kernels = self.registry.kernels[device]
            if any(k.refuses(made) is None for k in kernels.get(made.op.name, ())):
                return device
            if any(k.refuses(member) is None for k in kernels.get(member.op.name, ())):
                return None
        return None

    def take(self, nodes: Iterable[Node], last: Node, made: Node, first: Node) -> None:
        """Lets ``made`` stand for ``nodes``, in the place of ``last`` and where ``first`` is pinned."""
        self.taken.update(nodes)
        self._stands[last] = dataclasses.replace(made, pin=self.pins.pin_of(first))

    def result(self) -> Graph:
        """The graph with all groups replaced."""
        nodes = []
        boundary = self.graph.boundary
        for index, node in enumerate(self.graph.nodes):
            if node in self._stands:
                nodes.append(self._stands[node])
            elif node not in self.taken:
                nodes.append(node)
            elif boundary is not None and self.graph.boundary is not None and index < self.graph.boundary:
                boundary -= 1
        return dataclasses.replace(self.graph, nodes=tuple(nodes), boundary=boundary)
