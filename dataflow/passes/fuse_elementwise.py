"""Graph -> Graph: elementwise ops that feed each other, and perhaps a reduction, become one op.

Where a device computes them in one pass. One op alone does where its operands or its result are floats of 16 bits that
are cast: the kernel of the program casts them (see ``rounding.casts``).
"""

from __future__ import annotations

import dataclasses
import heapq

from ..ir.graph import Graph, Node
from ..ir.kernel import Targets
from ..ir.types import bfloat16, float16, float32
from ..ir.value import Value
from ..ops.cast import cast
from ..ops.fused import PROGRAM_OPS, REDUCTIONS, fused_elementwise, program
from .grouping import Groups

MOST_STEPS, MOST_INPUTS = 12, 6  # of one pass
_HALVES = (bfloat16, float16)


def fuse_elementwise(graph: Graph, targets: Targets) -> Graph:
    """The graph with groups of elementwise ops as one op each, with equal results.

    A group has one result; all intermediate values have one shape and no reader elsewhere, so they need no
    memory. That shape is the result's, or what a reduction over trailing axes makes the result from. The nodes of a
    group are of one stage.
    """
    if not targets.offer(fused_elementwise.name):
        return graph
    search = _Search(graph, targets)
    for node in reversed(graph.nodes):
        if node not in search.taken and (search.fits(node) or search.reduced(node)):
            search.grow(node)
    return search.result()


class _Search(Groups):
    def fits(self, node: Node) -> bool:
        """Whether a node can be part of a program."""
        result = node.outputs[0]
        return (
            node.op.elementwise
            and node.op.name in PROGRAM_OPS
            and result is not None
            and result.type.dtype == float32
            and not node.attributes
            and all(v is not None and v.type.dtype == float32 for v in node.inputs)
        )

    def reduced(self, node: Node) -> int:
        """How many trailing axes of floats a node reduces; 0 where it is something else."""
        value, result = (*node.inputs, None)[0], node.outputs[0]
        if node.op.name not in REDUCTIONS or value is None or result is None or value.type.dtype != float32:
            return 0
        rank = value.type.rank
        axes = sorted({axis % rank for axis in node.attributes["axes"]}) if rank else []
        return len(axes) if axes == [*range(rank - len(axes), rank)] else 0

    def grow(self, last: Node) -> None:
        """Replaces ``last`` and what feeds it alone."""
        group = {last}
        waiting: list[int] = []  # positions of nodes that may join, the latest first: their readers are decided by then
        self.enqueue(last, waiting)
        outer = set(last.inputs)
        while waiting and len(group) < MOST_STEPS:
            node = self.graph.nodes[-heapq.heappop(waiting)]
            if node in group or not self.joins(node, group, last):
                continue
            inputs = (outer - {node.outputs[0]}) | set(node.inputs)
            if len(inputs) <= MOST_INPUTS:
                outer = inputs
                group.add(node)
                self.enqueue(node, waiting)
        if len(group) < 2 and not self.is_between_casts(last):
            return
        made = self.make(sorted(group, key=self.position.__getitem__))
        if self.targets.taker(made, last) is not None:
            self.take(group, last, made, last)

    def is_between_casts(self, node: Node) -> bool:
        """Whether an op beside casts from or to 16 bits is worth a program, whose kernel does the casts as well."""
        if not self.fits(node):
            return False
        made = self.make([node])
        (result,) = made.outputs
        inputs = tuple(self.cast_from(value) for value in made.inputs)
        readers = self.readers.get(result, ()) if result is not None and result not in self.kept else ()
        rounded = result
        if len(readers) == 1 and readers[0].op is cast and readers[0].outputs[0] is not None:
            rounded = readers[0].outputs[0] if readers[0].outputs[0].type.dtype in _HALVES else result
        if inputs == made.inputs and rounded == result:
            return False
        return self.targets.taker(dataclasses.replace(made, inputs=inputs, outputs=(rounded,)), node) is not None

    def cast_from(self, value: Value | None) -> Value | None:
        """The value of 16 bits that a float32 one was made of, or itself."""
        maker = self.makers.get(value) if value is not None else None
        if maker is None or maker.op is not cast or maker.inputs[0] is None:
            return value
        return maker.inputs[0] if maker.inputs[0].type.dtype in _HALVES else value

    def enqueue(self, node: Node, waiting: list[int]) -> None:
        for value in node.inputs:
            maker = self.makers.get(value) if value is not None else None
            if maker is not None:
                heapq.heappush(waiting, -self.position[maker])

    def joins(self, node: Node, group: set[Node], last: Node) -> bool:
        """Whether only the group reads the node's result, which is like the group's."""
        result, wanted = node.outputs[0], last.inputs[0] if last.op.reduction else last.outputs[0]
        assert wanted is not None
        return (
            node not in self.taken
            and self.fits(node)
            and result is not None
            and result.type == wanted.type
            and result not in self.kept
            and all(reader in group for reader in self.readers[result])
            and self.together((node, last))
        )

    def make(self, group: list[Node]) -> Node:
        """The node that stands for the group."""
        last = group[-1]
        inside = {node.outputs[0] for node in group}
        inputs = list(dict.fromkeys(v for node in group for v in node.inputs if v not in inside))
        number: dict[Value | None, int] = {v: i for i, v in enumerate(inputs)}
        steps = []
        for node in group:
            steps.append((node.op.name, *(number[v] for v in node.inputs)))
            number[node.outputs[0]] = len(number)
        trailing = self.reduced(last)
        keepdims = int(last.attributes["keepdims"]) if trailing else 0
        attributes = {"program": program(*steps), "trailing": trailing, "keepdims": keepdims}
        return Node(fused_elementwise, last.name, tuple(inputs), last.outputs, attributes, (), last.origin)
