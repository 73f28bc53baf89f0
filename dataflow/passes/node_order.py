"""Graph -> Graph: the nodes in an order in which fewer bytes of values are in use at once."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..host.limits import poll
from ..ir.graph import Graph

MOST_NODES = 2_000  # of a graph whose order is searched: less than a tenth of a second
GAIN = 0.95  # of the bytes, from which on another order is taken: neighbours in the old one share the cache


def ordered_for_memory(graph: Graph) -> Graph:
    """The graph with its nodes in the best of three orders: its own, and two that are searched.

    The first search takes of the nodes whose operands are there the one that adds the fewest bytes and frees the most;
    the second follows the outputs back, the operand first that needs the most memory beside what it leaves (after
    Sethi and Ullman 1970). Bytes are counted as the planner will find them, but for workspaces and concats in place.
    Graphs with states or stages, with nodes that have effects, and those of more than ``MOST_NODES``, stay as they are.

    Args:
        graph: bound.
    """
    if not 2 < len(graph.nodes) <= MOST_NODES:
        return graph
    fixed = any(node.op.effects != "none" or node.bodies for node in graph.nodes)
    if fixed or graph.states or len(graph.stages) > 1:
        return graph
    tables = _Tables.of(graph)
    own = range(len(graph.nodes))
    peak = tables.peak(own)
    if peak <= tables.least():
        return graph
    orders = [tables.cheapest_first(), tables.deepest_first()]
    best = min(orders, key=tables.peak)
    if tables.peak(best) > GAIN * peak:
        return graph
    return dataclasses.replace(graph, nodes=tuple(graph.nodes[index] for index in best))


@dataclass(frozen=True, slots=True)
class _Tables:
    """A graph in numbers: nodes and buffers by index. A view is of the buffer of what it shows.

    Attributes:
        sizes: bytes of each buffer; 0 where it isn't in scratch memory.
        reads: the buffers that each node reads, each once.
        writes: those that it makes.
        overwrites: whether its result may take the bytes of an operand that dies.
        readers: the nodes that read a buffer.
        before: the nodes whose results each node reads.
    """

    sizes: list[int]
    reads: list[tuple[int, ...]]
    writes: list[tuple[int, ...]]
    overwrites: list[bool]
    readers: list[list[int]]
    before: list[tuple[int, ...]]

    @staticmethod
    def of(graph: Graph) -> _Tables:
        """The tables of a bound graph."""
        kept = set(graph.outputs.values())
        buffer: dict[object, int] = {}
        maker: dict[object, int] = {}
        tables = _Tables([], [], [], [], [], [])
        for given in (*graph.inputs, *graph.initializers):
            buffer[given] = len(tables.sizes)
            tables.sizes.append(0)
            tables.readers.append([])
        for index, node in enumerate(graph.nodes):
            poll(node)
            found = [value for value in node.inputs if value is not None]
            read = tuple(dict.fromkeys(buffer[value] for value in found))
            made = []
            for value in node.outputs:
                if value is None:
                    continue
                maker[value] = index
                if node.op.view is not None and found:
                    buffer[value] = buffer[found[0]]
                    continue
                buffer[value] = len(tables.sizes)
                made.append(len(tables.sizes))
                tables.sizes.append(0 if value in kept else value.type.nbytes)
                tables.readers.append([])
            for number in read:
                tables.readers[number].append(index)
            tables.reads.append(read)
            tables.writes.append(tuple(made))
            tables.overwrites.append(node.op.elementwise)
            tables.before.append(tuple(dict.fromkeys(maker[value] for value in found if value in maker)))
        return tables

    def least(self) -> int:
        """Bytes that every order needs: of the operands and results of one node."""
        return max(
            sum(self.sizes[b] for b in reads) + self._added(index, set(reads)) for index, reads in enumerate(self.reads)
        )

    def peak(self, order: Iterable[int]) -> int:
        """The most bytes in use at once."""
        left = [len(readers) for readers in self.readers]
        used = most = 0
        for index in order:
            dying = [number for number in self.reads[index] if left[number] == 1]
            used += self._added(index, set(dying))
            most = max(most, used)
            for number in self.reads[index]:
                left[number] -= 1
            used -= self._freed(index, dying)
            used -= sum(self.sizes[number] for number in self.writes[index] if not self.readers[number])
        return most

    def _added(self, index: int, dying: set[int]) -> int:
        """Bytes of the results, without those that take the bytes of an operand."""
        made = self.writes[index]
        if self.overwrites[index] and len(made) == 1 and self._taken(index, dying) is not None:
            return 0
        return sum(self.sizes[number] for number in made)

    def _freed(self, index: int, dying: Sequence[int]) -> int:
        taken = self._taken(index, set(dying)) if self.overwrites[index] and len(self.writes[index]) == 1 else None
        return sum(self.sizes[number] for number in dying if number != taken)

    def _taken(self, index: int, dying: set[int]) -> int | None:
        """The operand whose bytes the result takes."""
        size = self.sizes[self.writes[index][0]]
        return next((number for number in self.reads[index] if number in dying and self.sizes[number] == size), None)

    def cheapest_first(self) -> list[int]:
        """Always the ready node that adds the fewest bytes, less what it frees; of equals the first."""
        left = [len(readers) for readers in self.readers]
        waiting = [len(before) for before in self.before]
        after: list[list[int]] = [[] for _ in self.before]
        for index, before in enumerate(self.before):
            for other in before:
                after[other].append(index)

        def cost(index: int) -> int:
            dying = [number for number in self.reads[index] if left[number] == 1]
            return self._added(index, set(dying)) - self._freed(index, dying)

        ready = [(cost(index), index) for index, count in enumerate(waiting) if not count]
        heapq.heapify(ready)
        done = [False] * len(waiting)
        order = []
        while ready:
            _, index = heapq.heappop(ready)
            if done[index]:
                continue  # it came again when its cost fell
            done[index] = True
            order.append(index)
            for number in self.reads[index]:
                left[number] -= 1
                if left[number] == 1:
                    last = next(reader for reader in self.readers[number] if not done[reader])
                    if not waiting[last]:
                        heapq.heappush(ready, (cost(last), last))
            for other in after[index]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (cost(other), other))
        return order

    def deepest_first(self) -> list[int]:
        """Operands right before the node that reads them, those first that need the most beside what they leave."""
        need, leaves = self._needs()
        ranked = [sorted(before, key=lambda other: (leaves[other] - need[other], other)) for before in self.before]
        read = {other for before in self.before for other in before}
        order: list[int] = []
        done = [False] * len(self.before)
        stack = [index for index in reversed(range(len(self.before))) if index not in read]
        while stack:
            index = stack[-1]
            if done[index]:
                stack.pop()
                continue
            missing = [other for other in ranked[index] if not done[other]]
            if missing:
                stack += reversed(missing)
            else:
                done[index] = True
                order.append(index)
                stack.pop()
        return order

    def _needs(self) -> tuple[list[int], list[int]]:
        """For each node about how many bytes it and what it reads need, and how many its results are."""
        need: list[int] = []
        leaves = [sum(self.sizes[number] for number in made) for made in self.writes]
        for index, before in enumerate(self.before):
            held = most = 0
            for other in sorted(before, key=lambda other: (leaves[other] - need[other], other)):
                most = max(most, held + need[other])
                held += leaves[other]
            need.append(max(most, held + leaves[index]))
        return need, leaves
