"""Dropout in training: nodes without a key get one."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import TensorType
from ..ir.value import Value


def with_dropout(graph: Graph, name: str, key: TensorType) -> Graph:
    """The graph whose dropout nodes drop, by the random numbers of a key that is its last input.

    Args:
        graph: any.
        name: of the new input.
        key: its type.
    """
    made: list[Value] = []

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if not is_inactive(node):
            return None
        if not made:
            made.append(builder.input(name, key.dtype, key.shape))
        names = [None if v is None else v.name for v in node.outputs]
        return builder.add(node.op, (inputs[0], made[0]), node.attributes, name=node.name, output_names=names).outputs

    return rewrite(graph, replace)


def has_dropout(graph: Graph) -> bool:
    """Whether there is a node that drops in training."""
    return any(is_inactive(node) for node in graph.nodes)


def is_inactive(node: Node) -> bool:
    """Whether a dropout node has no key, so that its result is its operand."""
    index = node.op.identity_without
    return index is not None and (len(node.inputs) <= index or node.inputs[index] is None)
