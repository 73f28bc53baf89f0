"""A training step as one graph: forward, backward, and the optimizer, which reads gradients where they were made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.types import DType, TensorType
from ...ir.value import Value
from ..joint import ACCUMULATOR, FORWARD, GATE, OPTIMIZER, SCALE, SQUARES, WEIGHT
from .terms import as_dtype
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
    gated: bool = False,
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
        gated: the update needs no look of the host's at loss and gradients before: it divides by the sum of weights
            that the graph has, and where loss or SQUARES aren't finite, or that sum is 0, it changes nothing. The
            output GATE then isn't finite. The update ``is_gated``.
    """
    builder = GraphBuilder(joint.name)
    new = builder.adopt(joint)
    for name, value in joint.outputs.items():
        builder.output(name, new[value])
    known = {value.name: new[value] for value in joint.initializers}
    known |= {state.name: new[state.after] for state in joint.states}
    known[SQUARES] = as_dtype(new[joint.outputs[SQUARES]], updates.dtype)
    start = len(builder.nodes())
    terms = {name: new[value] for name, value in joint.outputs.items()}
    factor = _gated_factor(builder, terms, updates.dtype) if gated else None
    add_updates(builder, known, parameters, updates, frozen, statistics, factor)
    graph = builder.build()
    if as_ready:
        states = tuple(state for state in graph.states if not state.name.startswith(ACCUMULATOR))
        graph = dataclasses.replace(graph, nodes=_sooner(graph, start, joint.stage_stops()[0] - 1), states=states)
    results = frozenset({*graph.outputs, *(state.name for state in graph.states)})
    stages = {FORWARD: joint.stages[FORWARD]} if as_ready else dict(joint.stages)
    stages[OPTIMIZER] = results.difference(*stages.values(), {GATE})  # which joins them
    return dataclasses.replace(graph, stages=stages)


def _gated_factor(builder: GraphBuilder, terms: Mapping[str, Value], dtype: DType) -> Value:
    """What gradients are multiplied by, rank 0 in ``dtype``: not finite where the step must change nothing."""
    scale = next((value for value in builder.inputs() if value.name == SCALE), None)
    loss, weight, squares = (as_dtype(terms[name], dtype) for name in ("loss", "weight", SQUARES))
    weight = weight if scale is None else ops.mul(weight, as_dtype(scale, dtype))
    # A zero, or NaN where a term isn't finite.
    zero = ops.mul(ops.add(loss, squares), 0.0)
    factor: Value = ops.add(ops.reciprocal(weight), zero)
    builder.output(GATE, factor)
    return factor


def is_gated(update: Graph) -> bool:
    """Whether a graph of updates alone changes nothing where what gradients are multiplied by isn't finite."""
    producers = update.producers()
    weight = next(value for value in update.inputs if value.name == WEIGHT)

    def is_factor(value: Value | None) -> bool:
        """Whether it isn't finite where the average over the weight isn't."""
        node = None if value is None else producers.get(value)
        if node is not None and node.op is ops.cast:
            return is_factor(node.inputs[0])
        if node is None or node.op is not ops.mul:
            return node is not None and node.op is ops.reciprocal and node.inputs[0] is weight
        return any(is_factor(factor) for factor in node.inputs)

    def is_held(value: Value | None) -> bool:
        node = None if value is None else producers.get(value)
        if node is not None and node.op is ops.cast:  # of a master
            return is_held(node.inputs[0])
        return node is not None and node.op.gate is not None and is_factor(node.inputs[node.op.gate])

    return all(is_held(state.after) for state in update.states)


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
