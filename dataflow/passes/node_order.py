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
    before = _before(graph)
    orders = [tables.cheapest_first(before), tables.deepest_first(before)]
    peaks = [tables.peak(order) for order in orders]
    if min(peaks) > GAIN * peak:
        return graph
    best = orders[peaks.index(min(peaks))]
    return dataclasses.replace(graph, nodes=tuple(graph.nodes[index] for index in best))


_Before = Sequence[tuple[int, ...]]  # the nodes whose results each node reads


def _before(graph: Graph) -> _Before:
    makers = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs if value is not None}
    read = [[value for value in node.inputs if value is not None and value in makers] for node in graph.nodes]
    return [tuple(dict.fromkeys(makers[value] for value in values)) for values in read]


@dataclass(frozen=True, slots=True)
class _Tables:
    """A graph in numbers: nodes and buffers by index. A view is of the buffer of what it shows.

    Attributes:
        sizes: bytes of each buffer; 0 of the first, which is all that isn't in scratch memory.
        count: how many nodes read each.
        scratch: the buffers in scratch memory that each node reads.
        made: bytes of what each node writes.
        unread: those of what nobody reads.
        takes: bytes of a result that may have those of an operand that dies and is as large; 0 where there is none.
    """

    sizes: list[int]
    count: list[int]
    scratch: list[tuple[int, ...]]
    made: list[int]
    unread: list[int]
    takes: list[int]

    @staticmethod
    def of(graph: Graph) -> _Tables:
        """The tables of a bound graph."""
        kept = set(graph.outputs.values())
        buffer: dict[object, int] = dict.fromkeys((*graph.inputs, *graph.initializers), 0)
        sizes, count, written = [0], [0], list[tuple[int, int]]()
        tables = _Tables(sizes, count, [], [], [], [])
        for index, node in enumerate(graph.nodes):
            poll(node)
            found = [buffer[value] for value in node.inputs if value is not None]
            read = [number for number in dict.fromkeys(found) if number]
            for number in read:
                count[number] += 1
            shown = found[0] if found and node.op.view is not None else None
            made = results = 0
            for value in node.outputs:
                if value is None:
                    continue
                if shown is not None:
                    buffer[value] = shown
                    continue
                results += 1
                size = 0 if value in kept else value.type.nbytes
                if not size:
                    buffer[value] = 0
                    continue
                buffer[value] = len(sizes)
                written.append((index, len(sizes)))
                sizes.append(size)
                count.append(0)
                made += size
            tables.scratch.append(tuple(read))
            tables.made.append(made)
            tables.takes.append(made if node.op.elementwise and results == 1 else 0)
        tables.unread.extend([0] * len(graph.nodes))
        for index, number in written:
            if not count[number]:
                tables.unread[index] += sizes[number]
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
        sizes, left = self.sizes, self.count.copy()
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

    def cheapest_first(self, before: _Before) -> list[int]:
        """Always the ready node that adds the fewest bytes, less what it frees; of equals the first."""
        left = self.count.copy()
        waiting = [len(others) for others in before]
        after: list[list[int]] = [[] for _ in before]
        for index, others in enumerate(before):
            for other in others:
                after[other].append(index)
        readers: list[list[int]] = [[] for _ in left]
        for index, numbers in enumerate(self.scratch):
            for number in numbers:
                readers[number].append(index)

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
                    last = next(reader for reader in readers[number] if not done[reader])
                    if not waiting[last]:
                        heapq.heappush(ready, (self._cost(last, left), last))
            for other in after[index]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (self._cost(other, left), other))
        return order

    def deepest_first(self, before: _Before) -> list[int]:
        """Operands right before the node that reads them, those first that need the most beside what they leave."""
        need, leaves = self._needs(before)
        ranked = [sorted(others, key=lambda other: (leaves[other] - need[other], other)) for others in before]
        read = {other for others in before for other in others}
        order: list[int] = []
        done = [False] * len(before)
        stack = [index for index in reversed(range(len(before))) if index not in read]
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

    def _needs(self, before: _Before) -> tuple[list[int], list[int]]:
        """For each node about how many bytes it and what it reads need, and how many its results are."""
        need: list[int] = []
        leaves = self.made
        for index, others in enumerate(before):
            held = most = 0
            for other in sorted(others, key=lambda other: (leaves[other] - need[other], other)):
                most = max(most, held + need[other])
                held += leaves[other]
            need.append(max(most, held + leaves[index]))
        return need, leaves
