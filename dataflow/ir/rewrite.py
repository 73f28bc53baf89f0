"""Rebuilds a graph node by node; the one function by which passes copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..host.limits import poll
from .builder import GraphBuilder
from .graph import Graph, Initializer, Node, State
from .types import TensorType
from .value import Value

Replace = Callable[[GraphBuilder, Node, "list[Value | None]"], "Sequence[Value | None] | None"]
"""``replace(builder, node, inputs)``: values that stand for the node's outputs, or None to copy the node."""


def rewrite(
    graph: Graph,
    replace: Replace,
    *,
    input_type: Callable[[TensorType], TensorType] = lambda type_: type_,
    initializers: Mapping[Value, Initializer] | None = None,
) -> Graph:
    """The graph with some nodes replaced; names, states and stages stay.

    Args:
        graph: any.
        replace: see ``Replace``.
        input_type: the new type of each input.
        initializers: data that replaces the graph's own for these values, of any shape.
    """
    builder = GraphBuilder(graph.name)
    builder.reserve(value.name for value in graph.values())
    new: dict[Value, Value] = {}
    for value in graph.inputs:
        type_ = input_type(value.type)
        new[value] = builder.input(value.name, type_.dtype, type_.shape)
    for value, data in graph.initializers.items():
        given = (initializers or {}).get(value)
        if given is None:
            new[value] = builder.keep_as(value, data)
        else:
            new[value] = builder.initializer(
                value.name, given.array, role=given.role, trainable=given.trainable, origin=given.origin
            )
    for node in graph.nodes:
        poll(node)
        inputs = [None if v is None else new[v] for v in node.inputs]
        builder.origin = node.origin or node.name
        results = replace(builder, node, inputs)
        if results is None and _alike(inputs, node.inputs):
            results = builder.again(node, inputs).outputs
        elif results is None:
            names = [None if v is None else v.name for v in node.outputs]
            made = builder.add(node.op, inputs, node.attributes, bodies=node.bodies, name=node.name, output_names=names)
            results = made.outputs
        new |= {old: v for old, v in zip(node.outputs, results, strict=False) if old is not None and v is not None}
    for name, value in graph.outputs.items():
        builder.output(name, new[value])
    for state in graph.states:
        builder.state(state.name, new[state.before], new[state.after])
    return builder.finish(graph.stages)


class _Shown(dict[Value, Value]):
    """By a value of a graph, what stands for it in a builder: what replaced it, or a value that is made when asked."""

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__()
        self.builder = builder
        self.of: dict[Value, Value] = {}  # the value that one stands for

    def __missing__(self, value: Value) -> Value:
        made = self[value] = Value(value.name, value.type, self.builder)
        self.of[made] = value
        return made


def replace_nodes(
    graph: Graph,
    at: Collection[Node],
    replace: Callable[[GraphBuilder, Node, Mapping[Value, Value]], Sequence[Value]],
) -> Graph:
    """The graph with other nodes where a few stand; all others, and the values, stay themselves.

    Args:
        graph: any.
        at: what is replaced.
        replace: ``replace(builder, node, new)`` gives values for the outputs of a node; ``new`` has the values of the
            builder for those of the graph that are known before the node. The builder doesn't know their nodes.
    """
    builder = GraphBuilder(graph.name)
    going = {value for node in at for value in node.outputs}
    builder.reserve([value.name for value in going if value is not None])
    builder.take_names(
        [value.name for value in graph.values() if value not in going],
        [node.name for node in graph.nodes if node not in at],
    )
    shown = _Shown(builder)
    other: dict[Value | None, Value] = {}  # by what is replaced, what it is now
    nodes: list[Node] = []
    for node in graph.nodes:
        if node in at:
            poll(node)
            builder.origin = node.origin or node.name
            results = replace(builder, node, shown)
            nodes += [_reading(made, shown.of) for made in builder.take_nodes()]
            for old, new in zip(node.outputs, results, strict=False):
                if old is not None:
                    shown[old], other[old] = new, shown.of.get(new, new)
        else:
            nodes.append(node if not other or other.keys().isdisjoint(node.inputs) else _reading(node, other))
    outputs = {name: other.get(value, value) for name, value in graph.outputs.items()}
    states = tuple([State(s.name, other.get(s.before, s.before), other.get(s.after, s.after)) for s in graph.states])
    stored = {**graph.initializers, **builder.take_initializers()}
    return Graph(graph.inputs, outputs, tuple(nodes), stored, states, graph.name, graph.stages)


def _reading(node: Node, others: Mapping[Any, Value]) -> Node:
    """The node with other operands."""
    inputs = tuple([None if v is None else others.get(v, v) for v in node.inputs])
    return Node(node.op, node.name, inputs, node.outputs, node.attributes, node.bodies, node.origin, node.pin)


def with_values(graph: Graph, others: Mapping[Value, Value]) -> Graph:
    """The graph where these values are read as others of it that are known before, without the nodes that gave them.

    Nodes that read none of them stay themselves.

    Args:
        graph: any.
        others: by the values of which each is the only result of a node.
    """

    def now(value: Value) -> Value:
        return others.get(value, value)

    nodes = []
    for node in graph.nodes:
        if not others.keys().isdisjoint(node.outputs):
            continue
        if not others.keys().isdisjoint(node.inputs):
            node = dataclasses.replace(node, inputs=tuple([None if v is None else now(v) for v in node.inputs]))
        nodes.append(node)
    outputs = {name: now(value) for name, value in graph.outputs.items()}
    states = tuple([State(state.name, now(state.before), now(state.after)) for state in graph.states])
    return dataclasses.replace(graph, nodes=tuple(nodes), outputs=outputs, states=states)


def _alike(inputs: Sequence[Value | None], others: Sequence[Value | None]) -> bool:
    """Whether operands have the types of others."""
    for one, other in zip(inputs, others, strict=True):
        if one is None or other is None:
            if one is not other:
                return False
        elif one.type is not other.type and one.type != other.type:
            return False
    return True
