"""Graph -> Graph: kernels round what they write, and read the 16 bits that float32 was made of, where they can.

A cast takes a launch, and reads and writes what a kernel before or behind it writes or reads anyway. Kernels compute in
float32 and round as the cast would, so the bits are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from ...ir.graph import Graph, Node
from ...ir.kernel import OperandSpec, Targets
from ...ir.types import DType, TensorType, bfloat16, float16, float32
from ...ir.value import Value
from ...ops.cast import cast
from ...ops.shape import concat
from ..dead_code import eliminate_dead_code
from .new_names import NewNames

_HALVES = (bfloat16, float16)


def absorb_casts(graph: Graph, targets: Targets, refused: Collection[str] = ()) -> Graph:
    """The graph without casts of results that nothing else reads, and of operands, where kernels do them.

    It comes last: the types of such operands and results are not those that ops infer.

    Args:
        graph: bound.
        targets: the devices and their kernels.
        refused: names of nodes that a device doesn't run after all: others would not take such operands.
    """
    return _Casts(graph, targets, refused).result() if graph.has(cast) else graph


class _Casts:
    """What is known of the graph, and what changes.

    Attributes:
        results: by value of float32 what its maker is to store instead, as only that is read.
        together: by node such results of which it has to store all or none.
        moved: nodes that move what is stored instead, as they do then.
        gone: casts whose results others store, and how many are to store each.
        halves: by value of float32 the value of 16 bits that it was made of.
    """

    def __init__(self, graph: Graph, targets: Targets, refused: Collection[str]) -> None:
        self.graph, self.targets, self.refused = graph, targets, refused
        self.makers, self.readers = graph.producers(), graph.readers()
        self.kept = {*graph.outputs.values(), *(state.after for state in graph.states)}
        self.names = NewNames(graph)
        self.results: dict[Value, Value] = {}
        self.together: dict[Node, dict[Value, Value]] = {}
        self.moved: dict[Node, Node] = {}
        self.gone: set[Node] = set()
        self.halves: dict[Value, Value] = {}

    def result(self) -> Graph:
        for node in self.graph.nodes:
            if node.op is cast:
                self.look_before(node)
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += self.replaced(node)
        stored = {value for node in nodes for value in node.outputs}
        nodes = [node for node in nodes if node not in self.gone and self.is_stored_once(node, stored)]
        if tuple(nodes) == self.graph.nodes:
            return self.graph
        made = eliminate_dead_code(dataclasses.replace(self.graph, nodes=tuple(nodes)))
        return self.graph if made.nodes == self.graph.nodes else made

    def is_stored_once(self, node: Node, stored: Collection[Value | None]) -> bool:
        """False for a cast whose result its operand's maker stores."""
        return node.op is not cast or node.inputs[0] in stored or node.inputs[0] not in self.results

    # ---- results that are only rounded --------------------------------------------------------------------

    def look_before(self, node: Node) -> None:
        """Notes what is to be stored in place of the operand of a cast."""
        value, result = node.inputs[0], node.outputs[0]
        maker = None if value is None else self.makers.get(value)
        if value is None or result is None or maker is None or not self.is_alone(value):
            return
        if value.type.dtype != float32 or result.type.dtype not in _HALVES or maker.op is cast:
            return
        if maker.op is concat:
            self.look_behind_concat(maker, node, result)
        else:
            self.results[value] = result

    def look_behind_concat(self, joined: Node, node: Node, result: Value) -> None:
        """The same for all operands of a concat, through views."""
        path: list[Node] = []
        sources: list[Value] = []
        half: dict[Value, Value] = {}
        for operand in joined.inputs:
            value = operand
            while value is not None and self.is_alone(value) and value in self.makers:
                maker = self.makers[value]
                if maker.op.view is None:
                    break
                path.append(maker)
                value = maker.inputs[0]
            if value is None or not self.is_alone(value) or value not in self.makers:
                return
            if self.makers[value].op is not cast:
                sources.append(value)
                continue
            (source,) = self.makers[value].inputs
            if source is None or source.type.dtype != result.type.dtype:
                return
            half[value] = source  # which were these 16 bits before
        half |= {value: self.like(value, result.type.dtype) for value in sources}
        by_maker: dict[Node, dict[Value, Value]] = {}
        for value in sources:
            by_maker.setdefault(self.makers[value], {})[value] = half[value]
        if not all(self.taken(maker, {}, stored) for maker, stored in by_maker.items()):
            return
        for maker, stored in by_maker.items():
            self.together.setdefault(maker, {}).update(stored)
        for view in reversed(path):
            (shown,) = view.outputs
            assert shown is not None and view.inputs[0] is not None
            half[shown] = self.like(shown, result.type.dtype)
            self.moved[view] = _with(view, half, half)
        (y,) = joined.outputs
        assert y is not None
        self.moved[joined] = _with(joined, half, {y: result})
        self.gone.add(node)

    def is_alone(self, value: Value) -> bool:
        return value not in self.kept and len(self.readers.get(value, ())) == 1

    # ---- nodes --------------------------------------------------------------------------------------------

    def replaced(self, node: Node) -> Iterable[Node]:
        """What stands for a node."""
        if node in self.moved:
            return (self.moved[node],)
        inputs = {v: self.halves[v] for v in node.inputs if v is not None and v in self.halves}
        if node.op is cast:
            self.look_behind(node)
        elif node.op.view is not None and inputs:
            (shown,) = node.outputs
            (half,) = inputs.values()
            assert shown is not None
            self.halves[shown] = self.like(shown, half.type.dtype)
            twin = _with(node, inputs, {shown: self.halves[shown]})
            return node, dataclasses.replace(twin, name=self.names.unique(node.name))
        else:
            return (self.absorbing(node, inputs),)
        return (node,)

    def look_behind(self, node: Node) -> None:
        """Notes what readers of a cast's result may read in its place."""
        value, result = node.inputs[0], node.outputs[0]
        if value is not None and result is not None and value.type.dtype in _HALVES and result.type.dtype == float32:
            self.halves[result] = value

    def absorbing(self, node: Node, inputs: Mapping[Value, Value]) -> Node:
        """The node with as many operands and results of 16 bits as its kernel takes."""
        must = self.together.get(node, {})
        outputs = {v: self.results[v] for v in node.outputs if v is not None and v in self.results}
        made = _with(node, {}, must)
        if not (inputs or outputs) or node.name in self.refused:
            return made
        complete = self.taken(node, inputs, {**must, **outputs})
        if complete is not None:
            return complete
        read: dict[Value, Value] = {}
        written = dict(must)
        for one in outputs.items():
            written |= [one] if self.taken(node, read, {**written, **dict([one])}) is not None else []
        for one in inputs.items():
            read |= [one] if self.taken(node, {**read, **dict([one])}, written) is not None else []
        return _with(node, read, written)

    def taken(self, node: Node, inputs: Mapping[Value, Value], outputs: Mapping[Value, Value]) -> Node | None:
        """The node with such operands and results, if its device has a kernel that names them."""
        if node.name in self.refused or node.bodies or node.op.view is not None:
            return None
        made = _with(node, inputs, outputs)
        device = self.targets.taker(made, node)
        for kernel in () if device is None else self.targets.kernels[device].get(node.op.name, ()):
            named = _names(kernel.inputs, node.inputs, inputs) and _names(kernel.outputs, node.outputs, outputs)
            if named and kernel.refuses(made) is None:
                return made
        return None

    def like(self, value: Value, dtype: DType) -> Value:
        return Value(self.names.unique(f"{value.name}/{dtype}"), TensorType(dtype, value.type.shape), None)


def _with(node: Node, inputs: Mapping[Value, Value], outputs: Mapping[Value, Value]) -> Node:
    """The node with other values in place of those that it has."""
    if not inputs and not outputs:
        return node
    read = tuple([v if v is None else inputs.get(v, v) for v in node.inputs])
    written = tuple([v if v is None else outputs.get(v, v) for v in node.outputs])
    return dataclasses.replace(node, inputs=read, outputs=written)


def _names(specs: tuple[OperandSpec, ...], values: Collection[Value | None], others: Mapping[Value, Value]) -> bool:
    """Whether a kernel names the dtypes of what it is to take in place of its values."""
    changed = [index for index, value in enumerate(values) if value is not None and value in others]
    reached = [index if index < len(specs) else -1 for index in changed]
    return all((index >= 0 or specs[-1].repeated) and specs[index].dtypes is not None for index in reached)
