"""Graph -> Graph: gradients that kernels of backward hand to each other are stored in bfloat16, where all of these can.

What they are gradients of is stored so too. Each is rounded once, where it is made; gradients of parameters, and all
sums, stay float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from ...ir.graph import Graph, Node
from ...ir.kernel import OperandSpec, Targets
from ...ir.op import Attribute
from ...ir.types import DType, TensorType, bfloat16, float32
from ...ir.value import Value
from ...ops.cast import cast
from .new_names import NewNames

_FEWEST = 64  # elements of what is worth rounding


def round_gradients(graph: Graph, targets: Targets, refused: Collection[str] = ()) -> Graph:
    """The graph with casts behind such gradients, which ``absorb_casts`` lets kernels do.

    Args:
        graph: bound; of several stages, of which the first is forward.
        targets: the devices and their kernels.
        refused: names of nodes that a device doesn't run after all: others would not take such operands.
    """
    return _Gradients(graph, targets, refused).result() if len(graph.stages) > 1 else graph


class _Gradients:
    """What is known of the graph, and what changes.

    Attributes:
        halves: by gradient that is to be rounded, and by what views show of one, what they are then.
        new: by value of the graph what stands for it behind the maker of a gradient.
    """

    def __init__(self, graph: Graph, targets: Targets, refused: Collection[str]) -> None:
        self.graph, self.targets, self.refused = graph, targets, refused
        self.makers, self.readers = graph.producers(), graph.readers()
        self.kept = {*graph.outputs.values(), *(state.after for state in graph.states)}
        self.names = NewNames(graph)
        self.halves: dict[Value, Value] = {}
        self.new: dict[Value, Value] = {}

    def result(self) -> Graph:
        chosen = self.chosen()
        nodes: list[Node] = []
        for node in self.graph.nodes:
            (source, *_), (value, *_) = (*node.inputs, None), (*node.outputs, None)
            if node.op is cast and source in chosen and value is not None and self.is_same(value):
                self.new[value] = self.halves[source]
                continue
            inputs = tuple([v if v is None else self.new.get(v, v) for v in node.inputs])
            nodes.append(node if inputs == node.inputs else dataclasses.replace(node, inputs=inputs))
            if value is not None and value in chosen:
                self.new[value] = self.like(value, float32)
                nodes += [self.cast_of(node, value, self.halves[value])]
                nodes += [self.cast_of(node, self.halves[value], self.new[value])]
        return dataclasses.replace(self.graph, nodes=tuple(nodes)) if chosen else self.graph

    def is_same(self, value: Value) -> bool:
        """Whether the result of a cast of a gradient is what that is rounded to."""
        return value.type.dtype == bfloat16 and value not in self.kept

    # ---- which ------------------------------------------------------------------------------------------------

    def chosen(self) -> set[Value]:
        """Gradients that are rounded: what makes or reads one takes it so, and all others of its own at once."""
        made = self.graph.nodes[self.graph.stage_stops()[0] :]
        left = {value for node in made for value in node.outputs[:1] if value is not None and self.is_large(value)}
        left = {
            value for value in left if all(self.is_named(node, {*self.shown(value)}) for node in self.touching(value))
        }
        found: set[Value] = set()
        while left != found:
            found = left
            self.halves = {v: self.like(v, bfloat16) for value in found for v in self.shown(value)}
            left = {value for value in found if all(map(self.is_taken, self.touching(value)))}
        return found

    def is_large(self, value: Value) -> bool:
        """Whether a value is of float32, read by nodes alone, and no small one."""
        alone = self.kept.isdisjoint(self.shown(value)) and value in self.readers
        return alone and value.type.dtype == float32 and value.type.elements >= _FEWEST

    def shown(self, value: Value) -> Iterator[Value]:
        """A value, and all that views show of it."""
        yield value
        for node in self.readers.get(value, ()):
            if node.op.view is not None and node.inputs[0] is value:
                for view in node.outputs:
                    if view is not None:
                        yield from self.shown(view)

    def touching(self, value: Value) -> Iterator[Node]:
        """The maker of a value, and what reads it, through views too."""
        yield self.makers[value]
        for one in self.shown(value):
            yield from (node for node in self.readers.get(one, ()) if node.op.view is None)

    def is_named(self, node: Node, values: Collection[Value | None]) -> bool:
        """Whether a kernel of a node's device names bfloat16 for those of some values that it has; or it is a cast."""
        if node.op is cast:
            return node.outputs[0] not in values
        device = self.targets.taker(node, node)
        kernels = () if device is None or node.name in self.refused else self.targets.kernels[device][node.op.name]
        return any(_names(k.inputs, node.inputs, values) and _names(k.outputs, node.outputs, values) for k in kernels)

    def is_taken(self, node: Node) -> bool:
        """Whether a node's device takes it with all of its gradients that are to be rounded."""
        inputs, outputs = (
            tuple([v if v is None else self.halves.get(v, v) for v in values]) for values in (node.inputs, node.outputs)
        )
        made = dataclasses.replace(node, inputs=inputs, outputs=outputs)
        return node.op is cast or self.targets.taker(made, node) is not None

    # ---- new values and nodes ---------------------------------------------------------------------------------

    def like(self, value: Value, dtype: DType) -> Value:
        return Value(self.names.unique(f"{value.name}/{dtype}"), TensorType(dtype, value.type.shape), None)

    def cast_of(self, maker: Node, value: Value, result: Value) -> Node:
        to: Mapping[str, Attribute] = MappingProxyType(cast.complete({"to": result.type.dtype}))
        name = self.names.unique(f"{maker.name}/{result.type.dtype}")
        return Node(cast, name, (value,), (result,), to, (), maker.origin, maker.pin)


def _names(specs: tuple[OperandSpec, ...], values: Collection[Value | None], halves: Collection[Value | None]) -> bool:
    """Whether a kernel's records name bfloat16 for those of its values that are to be rounded."""
    changed = [index for index, value in enumerate(values) if value is not None and value in halves]
    return all(index < len(specs) and bfloat16 in (specs[index].dtypes or ()) for index in changed)
