"""The oracle that devices and gradients are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataflow import Graph

from .arrays import Array
from .interpreter import interpret
from .kernels import KERNELS


def evaluate(graph: Graph, feeds: Mapping[str, Any], *, dtype: Any = None, states: bool = False) -> dict[str, Array]:
    """The outputs by name.

    Args:
        graph: bound or with named dims; shapes come from the arrays.
        feeds: arrays by input name.
        dtype: when given, every float is computed in this dtype, whatever the graph declares.
        states: also gives the new value of each state, as ``state.<name>``.

    Raises:
        DataflowError: a kernel refuses its data; names the node.
    """
    return interpret(KERNELS, graph, feeds, dtype=dtype, states=states)
