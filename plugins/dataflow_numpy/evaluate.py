"""The oracle that devices and gradients are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dataflow import Graph
from dataflow.plugin import bind, default_registry, has_reads

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
    if has_reads(graph.nodes):  # what sizes they are is computed by nodes
        shapes = [(dim, n) for v in graph.inputs for dim, n in zip(v.type.shape, np.shape(feeds[v.name]), strict=True)]
        graph = bind(graph, {str(dim): n for dim, n in shapes}, default_registry().reference_kernels)
    return interpret(KERNELS, graph, feeds, dtype=dtype, states=states)
