"""Removes nodes that nothing depends on, extra outputs that nobody reads, and initializers without a reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..ir.graph import Graph
from ..ir.value import Value


def eliminate_dead_code(graph: Graph, *, extras: bool = True) -> Graph:
    """The graph without dead nodes, dead extra outputs and unread initializers.

    Nodes with host effects stay. An extra output (``+name`` in the declaration) or a repeated one (``ys*``) that nobody
    reads becomes None: it is not computed and takes no memory.

    Args:
        graph: any.
        extras: remove extra outputs too; not from a model's graph, since gradients read them once it is trained.
    """
    needed: set[Value | None] = {
        *graph.outputs.values(),
        *(s.after for s in graph.states),
        *(s.before for s in graph.states),
    }
    needed.discard(None)
    kept = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs) and node.op.effects != "host":
            continue
        needed.update(node.inputs)
        if None in needed:
            needed.remove(None)
        if not extras or len(node.outputs) == 1:  # it is read, or the node would have gone
            kept.append(node)
            continue
        declared = node.op.output_names(node)
        outputs = tuple(
            None if value is not None and value not in needed and (name[0] == "+" or name[-1] == "*") else value
            for value, name in zip(node.outputs, declared, strict=True)
        )
        kept.append(node if outputs == node.outputs else dataclasses.replace(node, outputs=outputs))
    kept.reverse()
    stored = {value: data for value, data in graph.initializers.items() if value in needed}
    if len(stored) == len(graph.initializers) and tuple(kept) == graph.nodes:
        return graph
    return Graph(graph.inputs, graph.outputs, tuple(kept), stored, graph.states, graph.name, graph.stages)


def with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with these results: its own outputs or any value by name."""
    chosen: dict[str, Any] = {n: graph.outputs[n] if n in graph.outputs else graph.find(n) for n in names}
    return dataclasses.replace(graph, outputs=chosen)


def computing(graph: Graph, names: tuple[str, ...]) -> Graph:
    """The graph that computes these results alone; all where none is named."""
    return graph if not names else eliminate_dead_code(with_outputs(graph, names))
