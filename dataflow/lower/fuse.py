"""Graph -> Graph: chains of ops become one op where a device has a kernel for the whole."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError
from ..graph import Graph, Node, Value
from ..op import Op
from ..registry import Registry
from .groups import Groups
from .pins import Pins

_COMMUTE = frozenset({"add", "mul", "maximum", "minimum"})


def fuse(graph: Graph, pins: Pins, registry: Registry) -> Graph:
    """The graph with every pattern replaced that the device of its first op computes as one; longest first.

    Inner values must have no other reader, and a pattern must not span the boundary of a joint graph.
    """
    patterns = sorted((op for op in registry.ops.values() if op.pattern), key=lambda op: -len(op.pattern))
    offered = {op.name for d in pins.devices for op in patterns if op.name in registry.kernels[d]}
    patterns = [op for op in patterns if op.name in offered]
    if not patterns:
        return graph
    search = _Search(graph, pins, registry)
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if node in search.taken:
            continue
        for op in patterns:
            if op.pattern[-1] == node.op.name and search.match(op, node):
                break
    return search.result()


class _Search(Groups):
    def match(self, op: Op, last: Node) -> bool:
        """Whether ``last`` ended a chain of ``op`` that was replaced."""
        chain = [last]
        others: list[Value] = []
        for name in reversed(op.pattern[:-1]):
            current = chain[-1]
            found = self.inner(current, name)
            if found is None:
                return False
            others = [v for v in current.inputs if v is not None and v is not found.outputs[0]] + others
            chain.append(found)
        first = chain[-1]
        made = self.make(op, first, [*first.inputs, *others], last) if self.together(chain) else None
        if made is None:
            return False
        self.take(chain, last, made, first)
        return True

    def inner(self, node: Node, name: str) -> Node | None:
        """The node ``name`` whose only reader is ``node``."""
        operands = node.inputs if node.op.name in _COMMUTE else node.inputs[:1]
        for value in operands:
            maker = self.makers.get(value) if value is not None else None
            if maker is None or maker.op.name != name or maker in self.taken or value in self.kept:
                continue
            if self.readers[value] == [node] and sum(v is value for v in node.inputs) == 1:  # type: ignore[index]
                return maker
        return None

    def make(self, op: Op, first: Node, inputs: list[Value | None], last: Node) -> Node | None:
        """The fused node, when the types fit and the device of the first op has a kernel that takes it."""
        try:
            op.check_arity(len(inputs), [v is None for v in inputs])
            inferred = op.infer(*[None if v is None else v.type for v in inputs], **first.attributes)
        except InputError:
            return None
        result = last.outputs[0]
        if result is None or inferred != result.type:
            return None
        attributes: Mapping[str, object] = {key: first.attributes[key] for key in op.attributes}
        node = Node(op, last.name, tuple(inputs), (result,), attributes, (), last.origin)
        return node if self.runs(node, first) else None
