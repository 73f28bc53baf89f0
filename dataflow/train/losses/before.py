"""The value before a softmax: what losses of logits read where a model ends in probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import Graph
from ...ir.value import Value

_PASSED = frozenset({"reshape", "copy", "cast"})


def before(graph: Graph, value: Value, skips: Sequence[str]) -> tuple[str, Value] | None:
    """The op among ``skips`` that makes ``value``, with its input, or None.

    Reshapes may stand around it, when in the end the input has the value's shape.
    """
    makers = graph.producers()
    found: str | None = None
    current = value
    while current in makers:
        node = makers[current]
        if found is not None and current.type.shape == value.type.shape:
            break
        if node.op.name in skips and found is None:
            found = node.op.name
        elif node.op.name not in _PASSED:
            break
        if node.inputs[0] is None:
            break
        current = node.inputs[0]
    if found is None or current.type.shape != value.type.shape:
        return None
    return found, current
