"""Sizes that grow in equal steps: what of a graph depends on them, and whether its shapes grow in equal steps too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ir.dims import Dim, bind_size
from ..ir.graph import Graph, Node
from ..ir.value import Value
from ..ops.control_flow import if_
from ..ops.dynamic_shape import deferred, read_shape, require
from ..ops.dynamic_shape import sizes as sizes_op
from ..ops.infer import operand
from .bind_shapes import dims_of, has_names
from .size_values import Kernels, SizeValues


@dataclass(frozen=True, slots=True)
class EvenSizes:
    """Sizes by name, number 0 to ``count``.

    Attributes:
        first: number 0.
        step: by how much each grows.
        count: at least two.
    """

    first: Mapping[str, int]
    step: Mapping[str, int]
    count: int

    def at(self, t: int) -> dict[str, int]:
        """Number ``t``."""
        return {name: size + t * self.step[name] for name, size in self.first.items()}

    @property
    def grown(self) -> frozenset[str]:
        """The names of those that grow."""
        return frozenset(name for name, by in self.step.items() if by)

    def fed(self, graph: Graph) -> dict[str, Node]:
        """The nodes whose results are sizes that grow as data, by the names of the inputs that they become."""
        grown = self.grown
        nodes = [node for node in graph.nodes if node.op is sizes_op and has_names(node, grown)]
        return {value.name: node for node in nodes for value in node.outputs if value is not None}

    def varying(self, graph: Graph) -> frozenset[str]:
        """Names of the values whose sizes or elements are others for each number, though no input tells them."""
        grown, found = self.grown, set[str]()
        for node in graph.nodes:
            results = [value for value in node.outputs if value is not None]
            sizes = [dim for value in results for dim in value.type.shape if isinstance(dim, Dim)]
            if has_names(node, grown) or any(not dim.names.isdisjoint(grown) for dim in sizes):
                found.update(value.name for value in results)
        return frozenset(found)

    def feeding(self, graph: Graph) -> tuple[Graph, tuple[Value, ...]]:
        """The graph in which what is computed from sizes that grow alone has become inputs, and the values they were.

        It is the graph itself where there is none of it.
        Views stay, as they do where constants are folded: what they are of is fed.
        """
        values = SizeValues.of(graph)
        derived = {*self.fed(graph), *self.varying(graph)}
        computed: set[Value] = set()
        kept: list[Node] = []
        for node in graph.nodes:
            results = [value for value in node.outputs if value is not None]
            read = [value for value in node.inputs if value is not None]
            static = all(values.is_static(value) for value in results)
            if not static or derived.isdisjoint(value.name for value in (*read, *results)):
                kept.append(node)
                continue
            derived.update(value.name for value in results)
            if node.op.view is None:
                computed.update(results)
            else:
                kept.append(node)
        asked = dict.fromkeys(value for node in kept for value in node.inputs if value in computed)
        asked.update(dict.fromkeys(value for value in graph.outputs.values() if value in computed))
        fed = tuple(value for value in asked if value is not None)
        if len(kept) == len(graph.nodes):
            return graph, fed
        return replace(graph, inputs=(*graph.inputs, *fed), nodes=tuple(kept)), fed

    def why_uneven(self, graph: Graph, kernels: Kernels) -> str | None:
        """Where sizes decide about more than shapes, or shapes don't grow in equal steps; None: nowhere.

        Args:
            graph: of named sizes.
            kernels: the reference's, by op.
        """
        grown = self.grown
        for node in graph.nodes:
            if node.op in (deferred, read_shape) or any(not dims_of(body).isdisjoint(grown) for body in node.bodies):
                return f"{node.describe()} depends on sizes"
        uneven = {dim for dim in _dims(graph) if not dim.is_linear and not dim.names.isdisjoint(grown)}
        required = [node for node in graph.nodes if node.op is require and has_names(node, grown)]
        values = SizeValues.of(graph)
        branches = [operand(node) for node in graph.nodes if node.op is if_ and values.is_static(operand(node))]
        if not uneven and not required and not branches:
            return None
        seen: list[list[Any]] = []
        for t in range(self.count + 1):
            sizes = self.at(t)
            for node in required:
                left, right = (bind_size(node.attributes[side], sizes) for side in ("left", "right"))
                if (left == right) != bool(node.attributes["equal"]):
                    return f"with {sizes}, {node.attributes['text']}"
            taken = [None if c is None else bool(c) for c in (values.compute(v, sizes, kernels) for v in branches)]
            seen.append([*(bind_size(dim, sizes) for dim in uneven), taken])
        for t, now in enumerate(seen):
            even = all(c - a == t * (b - a) for a, b, c in zip(seen[0][:-1], seen[1][:-1], now[:-1], strict=True))
            if not even or now[-1] != seen[0][-1]:
                return f"a size does not grow in equal steps up to {self.at(t)}"
        return None


def _dims(graph: Graph) -> Iterator[Dim]:
    """The sizes with names that the types and attributes of a graph have, but for sizes that are data."""
    nodes = [node for node in graph.nodes if node.op is not sizes_op]
    shapes: list[Sequence[Any]] = [value.type.shape for value in graph.values()]
    shapes += [a if isinstance(a, tuple) else (a,) for node in nodes for a in node.attributes.values()]
    for shape in shapes:
        yield from (item for item in shape if isinstance(item, Dim))
