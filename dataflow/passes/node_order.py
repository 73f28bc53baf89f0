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
    if tables.least() > GAIN * peak:  # no order gains enough
        return graph
    orders = [tables.cheapest_first(), tables.deepest_first()]
    peaks = [tables.peak(order) for order in orders]
    if min(peaks) > GAIN * peak:
        return graph
    best = orders[peaks.index(min(peaks))]
    return dataclasses.replace(graph, nodes=tuple(graph.nodes[index] for index in best))


@dataclass(frozen=True, slots=True)
class _Tables:
    """A graph in numbers: nodes and buffers by index. A view is of the buffer of what it shows.

    Attributes:
        sizes: bytes of each buffer; 0 where it isn't in scratch memory.
        reads: the buffers that each node reads, each once.
        writes: those that it makes.
        scratch: the buffers among ``reads`` that are in scratch memory.
        made: bytes of what each node writes.
        unread: those of what nobody reads.
        takes: bytes of a result that may have those of an operand that dies and is as large; 0 where there is none.
        readers: the nodes that read a buffer.
        before: the nodes whose results each node reads.
    """

    sizes: list[int]
    reads: list[tuple[int, ...]]
    writes: list[tuple[int, ...]]
    scratch: list[tuple[int, ...]]
    made: list[int]
    unread: list[int]
    takes: list[int]
    readers: list[list[int]]
    before: list[tuple[int, ...]]

    @staticmethod
    def of(graph: Graph) -> _Tables:
        """The tables of a bound graph."""
        kept = set(graph.outputs.values())
        buffer: dict[object, int] = {}
        maker: dict[object, int] = {}
        tables = _Tables([], [], [], [], [], [], [], [], [])
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
            tables.scratch.append(tuple([number for number in read if tables.sizes[number]]))
            tables.made.append(sum([tables.sizes[number] for number in made]))
            tables.takes.append(tables.made[-1] if node.op.elementwise and len(made) == 1 else 0)
            tables.before.append(tuple(dict.fromkeys(maker[value] for value in found if value in maker)))
        for results in tables.writes:
            tables.unread.append(sum([tables.sizes[number] for number in results if not tables.readers[number]]))
        return tables

    def least(self) -> int:
        """Bytes that every order needs: of the operands and results of one node."""
        most = 0
        for index, numbers in enumerate(self.scratch):
            sizes = [self.sizes[number] for number in numbers]
            most = max(most, sum(sizes) + (0 if self.takes[index] in sizes else self.made[index]))
        return most

    def peak(self, order: Iterable[int]) -> int:
        """The most bytes in use at once."""
        sizes, left = self.sizes, [len(readers) for readers in self.readers]
        used = most = 0
        for index in order:
            used += self.made[index]
            takes, freed = self.takes[index], self.unread[index]
            for number in self.scratch[index]:
                left[number] -= 1
                if left[number]:
                    continue
                if sizes[number] == takes:
                    used -= takes  # the result has its bytes
                    takes = 0
                else:
                    freed += sizes[number]
            if used > most:
                most = used
            used -= freed
        return most

    def _cost(self, index: int, left: Sequence[int]) -> int:
        """Bytes that a node adds, less those that it frees, where so many nodes are still to read each buffer."""
        # A result that takes the bytes of an operand adds none, and that operand frees none.
        return self.made[index] - sum([self.sizes[number] for number in self.scratch[index] if left[number] == 1])

    def cheapest_first(self) -> list[int]:
        """Always the ready node that adds the fewest bytes, less what it frees; of equals the first."""
        left = [len(readers) for readers in self.readers]
        waiting = [len(before) for before in self.before]
        after: list[list[int]] = [[] for _ in self.before]
        for index, before in enumerate(self.before):
            for other in before:
                after[other].append(index)

        ready = [(self._cost(index, left), index) for index, count in enumerate(waiting) if not count]
        heapq.heapify(ready)
        done = [False] * len(waiting)
        order = []
        while ready:
            _, index = heapq.heappop(ready)
            if done[index]:
                continue  # it came again when its cost fell
            done[index] = True
            order.append(index)
            for number in self.scratch[index]:
                left[number] -= 1
                if left[number] == 1:
                    last = next(reader for reader in self.readers[number] if not done[reader])
                    if not waiting[last]:
                        heapq.heappush(ready, (self._cost(last, left), last))
            for other in after[index]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (self._cost(other, left), other))
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
        leaves = self.made
        for index, before in enumerate(self.before):
            held = most = 0
            for other in sorted(before, key=lambda other: (leaves[other] - need[other], other)):
                most = max(most, held + need[other])
                held += leaves[other]
            need.append(max(most, held + leaves[index]))
        return need, leaves
