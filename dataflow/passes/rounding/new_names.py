"""Names for the nodes and values that a pass adds to a graph."""

from __future__ import annotations

from ...ir.graph import Graph


class NewNames:
    """Names that neither the graph nor a new node or value has.

    Args:
        graph: whose nodes and values keep their names.
    """

    def __init__(self, graph: Graph) -> None:
        self._taken = {value.name for value in graph.values()} | {node.name for node in graph.nodes}

    def unique(self, name: str) -> str:
        """``name``, or where it is taken ``name.1``, ``name.2``, ...; it is taken from now on."""
        found, count = name, 0
        while found in self._taken:
            count += 1
            found = f"{name}.{count}"
        self._taken.add(found)
        return found
