"""Graph -> Graph: float32 values that the first of several programs leaves for later ones are stored in 16 bits.

What backward will read is rounded where forward makes it, and every node, forward and backward, computes in float32
from the rounded value: a gradient belongs to what was computed (backward of softmax and norms would not fit
statistics of other values). It follows the fusion of ops, so kernels stay the same.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType

from ..ir.graph import Graph, Node
from ..ir.op import Attribute
from ..ir.types import DType, TensorType, float32
from ..ir.value import Value
from ..ops.cast import cast
from .rounding.new_names import NewNames

LOSS = "loss"  # origin of what the loss computes
_FEWEST = 64  # elements of what is worth a kernel
_NEAR = 8  # nodes between readers that share a value as float32; it takes 32 bits from the first to the last of them


def narrow_storage(graph: Graph, dtype: DType, mutable: Collection[str]) -> Graph:
    """The graph in which what later stages read of the first is stored as ``dtype``.

    These stay as they are: what the loss reads and computes, which are logits and small differences of large numbers;
    what depends on no parameter, as masks, which hold numbers that 16 bits don't; and further results of a node that
    are smaller than its first, which are statistics.

    Args:
        graph: bound.
        dtype: float16 or bfloat16.
        mutable: names of initializers that some program changes.
    """
    return _Narrow(graph, dtype, mutable).result() if len(graph.stages) > 1 else graph


class _Narrow:
    """What is known of the graph, and the new nodes.

    Attributes:
        stops: see ``Graph.stage_stops``.
        position: index of each node.
        makers: see ``Graph.producers``.
        wanted: values that may be stored.
        stored: those that are, as float32 and in 16 bits.
        rounded: by value the cast to these 16 bits that the graph has already, before any other reader: for products.
        behind: new nodes by the index of the node that they stand behind.
        read: by value the index of its last reader of a later stage, and what that read.
    """

    def __init__(self, graph: Graph, dtype: DType, mutable: Collection[str]) -> None:
        self.graph, self.dtype = graph, dtype
        self.stops = graph.stage_stops()
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.makers = graph.producers()
        self.names = NewNames(graph)
        self.attributes: dict[DType, Mapping[str, Attribute]] = {
            to: MappingProxyType(cast.complete({"to": to})) for to in (dtype, float32)
        }
        exact = {value for node in graph.nodes if node.origin == LOSS for value in node.inputs}
        self.wanted = {value for value in self.depending(mutable) if value not in exact and self.is_large(value)}
        self.stored: dict[Value, tuple[Value, Value]] = {}
        first = {value: nodes[0] for value, nodes in graph.readers().items()}
        self.rounded = {value: node for value, node in first.items() if node.op is cast and self.is_kept(node)}
        self.behind: dict[int, list[Node]] = {}
        self.read: dict[Value, tuple[int, Value]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                if value is not None and self.waits(value, self.position[node]):
                    self.round_off(value)

    def depending(self, mutable: Collection[str]) -> set[Value]:
        """The values that depend on a parameter."""
        found = {v for v, data in self.graph.initializers.items() if data.role == "parameter" or v.name in mutable}
        for node in self.graph.nodes:
            if any(v in found for v in node.inputs if v is not None):
                found.update(v for v in node.outputs if v is not None)
        return found

    def is_large(self, value: Value) -> bool:
        """Whether a value of float32 is no statistic, nor too small to pay."""
        maker = self.makers.get(value)
        if maker is None or value.type.dtype != float32 or maker.origin == LOSS:
            return False
        first = maker.outputs[0]
        statistic = first is not None and value.type.elements < first.type.elements
        return value.type.elements >= _FEWEST and not statistic

    def stage(self, index: int) -> int:
        return bisect.bisect_right(self.stops, index)

    def waits(self, value: Value, index: int) -> bool:
        """Whether the node at ``index`` is of a later stage than the first, which makes a value that may be stored."""
        return value in self.wanted and self.stage(self.position[self.makers[value]]) == 0 < self.stage(index)

    def round_off(self, value: Value) -> None:
        """Rounds a value where it is made; of a view what it is a view of, and nothing where that has 16 bits."""
        maker = self.makers[value]
        source = maker.inputs[0] if maker.inputs else None
        if self.is_made_again(maker):
            if source in self.wanted:
                self.round_off(source)
            return
        if value in self.stored:
            return
        known = self.rounded.get(value)
        found = None if known is None else known.outputs[0]
        kept = self.value(f"{value.name}/{self.dtype}", value, self.dtype) if found is None else found
        rounded = self.value(f"{value.name}/rounded", value, float32)
        self.stored[value] = rounded, kept
        nodes = [self.cast_of(maker, kept, rounded)]
        if known is None:
            nodes.insert(0, self.cast_of(maker, value, kept))
        self.behind.setdefault(self.position[known or maker], []).extend(nodes)

    def is_kept(self, node: Node) -> bool:
        """Whether a cast gives what later stages may read, where the first stage makes it."""
        (result,) = node.outputs
        return result is not None and result.type.dtype == self.dtype and self.stage(self.position[node]) == 0

    @staticmethod
    def is_made_again(maker: Node) -> bool:
        """Whether its result is a view, or float32 of a value of 16 bits."""
        source = maker.inputs[0] if maker.inputs else None
        if source is None:
            return False
        narrow = source.type.dtype.is_float and source.type.dtype.bits < 32
        return maker.op.view is not None or (maker.op is cast and narrow)

    def result(self) -> Graph:
        """The graph with all that waits stored."""
        nodes: list[Node] = []
        kept = {*self.rounded.values()}  # which round what is stored
        for index, node in enumerate(self.graph.nodes):
            inputs = tuple(None if v is None else self.operand(v, index, nodes) for v in node.inputs)
            inputs = node.inputs if node in kept else inputs
            nodes.append(node if inputs == node.inputs else dataclasses.replace(node, inputs=inputs))
            nodes += self.behind.get(index, ())
        return dataclasses.replace(self.graph, nodes=tuple(nodes))

    def operand(self, value: Value, index: int, nodes: list[Node]) -> Value:
        """What the node at ``index`` reads in place of a value; new nodes that make it join ``nodes``."""
        if not self.waits(value, index):
            return self.stored[value][0] if value in self.stored else value
        before = self.read.get(value)
        near = before is not None and index - before[0] <= _NEAR
        found = before[1] if before is not None and near else self.restored(value, index, nodes)
        self.read[value] = index, found
        return found

    def restored(self, value: Value, index: int, nodes: list[Node]) -> Value:
        """The value as float32 again."""
        maker = self.makers[value]
        result = self.value(f"{value.name}/again", value, float32)
        if self.is_made_again(maker):
            inputs = tuple(None if v is None else self.operand(v, index, nodes) for v in maker.inputs)
            name = self.names.unique(f"{maker.name}/again")
            nodes.append(dataclasses.replace(maker, name=name, inputs=inputs, outputs=(result,)))
        else:
            nodes.append(self.cast_of(maker, self.stored[value][1], result))
        return result

    def cast_of(self, maker: Node, value: Value, result: Value) -> Node:
        to = result.type.dtype
        name = self.names.unique(f"{maker.name}/{to}")
        return Node(cast, name, (value,), (result,), self.attributes[to], (), maker.origin, maker.pin)

    def value(self, name: str, like: Value, dtype: DType) -> Value:
        return Value(self.names.unique(name), TensorType(dtype, like.type.shape), None)
