"""A training step as one graph: forward, backward, and the optimizer, which reads gradients where they were made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.types import TensorType
from ..joint import ACCUMULATOR, FORWARD, OPTIMIZER, SQUARES
from .update_graph import add_updates
from .updates import Updates

WAITING = 0.01  # of all bytes that a step changes: those of small parameters that are updated at its end


def step_graph(
    joint: Graph,
    parameters: Mapping[str, TensorType],
    updates: Updates,
    frozen: frozenset[int],
    statistics: Mapping[str, TensorType],
    *,
    as_ready: bool,
) -> Graph:
    """The joint graph of a logical batch of one micro-batch, with the optimizer behind it.

    Args:
        joint: its accumulators are ``passing``.
        parameters: as for ``update_graph``.
        updates: likewise; without a norm to clip where ``as_ready``.
        frozen: likewise.
        statistics: likewise.
        as_ready: each parameter is updated once its gradient is complete and nothing reads its old value; there are
            two programs then, FORWARD and OPTIMIZER, and no accumulators. Otherwise three.
    """
    builder = GraphBuilder(joint.name)
    new = builder.adopt(joint)
    for name, value in joint.outputs.items():
        builder.output(name, new[value])
    known = {value.name: new[value] for value in joint.initializers}
    known |= {state.name: new[state.after] for state in joint.states}
    known[SQUARES] = new[joint.outputs[SQUARES]]
    start = len(builder.nodes())
    add_updates(builder, known, parameters, updates, frozen, statistics)
    graph = builder.build()
    if as_ready:
        states = tuple(state for state in graph.states if not state.name.startswith(ACCUMULATOR))
        graph = dataclasses.replace(graph, nodes=_sooner(graph, start, joint.stage_stops()[0] - 1), states=states)
    results = frozenset({*graph.outputs, *(state.name for state in graph.states)})
    stages = {FORWARD: joint.stages[FORWARD]} if as_ready else dict(joint.stages)
    stages[OPTIMIZER] = results.difference(*stages.values())
    return dataclasses.replace(graph, stages=stages)


def _sooner(graph: Graph, start: int, last: int) -> tuple[Node, ...]:
    """The nodes; those from ``start`` on stand right behind what they read, and behind the ``last`` of forward.

    What replaces a parameter also stands behind all that reads the parameter before. Small ones are replaced at the
    end: their gradients take little memory, and while biases have their old values nodes that read them can run again.
    """
    readers = {value: index for index, node in enumerate(graph.nodes[:start]) for value in node.inputs}
    replaced = {state.after: readers.get(state.before, -1) for state in graph.states}
    waiting = WAITING * sum(value.type.nbytes for value in replaced)
    for value in sorted(replaced, key=lambda value: value.type.nbytes):
        waiting -= value.type.nbytes
        if waiting >= 0:
            replaced[value] = start - 1
    producers = graph.producers()
    order: dict[Node, tuple[int, int]] = {}
    for index, node in enumerate(graph.nodes):
        behind = [order[producers[value]][0] for value in node.inputs if value in producers]
        behind += [replaced[value] for value in node.outputs if value in replaced]
        order[node] = (index, -1) if index < start else (max([last, *behind]), index)
    return tuple(sorted(graph.nodes, key=order.__getitem__))
