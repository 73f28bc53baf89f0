"""Runs a graph node by node by a table of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dataflow import DType, Graph, Value
from dataflow.plugin import call_kernel, poll
from dataflow.plugin import dtype as as_dtype

from .arrays import Array, Code


def interpret(
    kernels: Mapping[str, Code], graph: Graph, feeds: Mapping[str, Any], *, dtype: Any = None, states: bool = False
) -> dict[str, Array]:
    """The outputs by name; see ``evaluate``, which gives ``kernels``."""

    def given(array: Any) -> Array:
        array = np.asarray(array)
        return array.astype(dtype) if dtype is not None and array.dtype.kind == "f" else array

    known: dict[Value, Array] = {value: given(feeds[value.name]) for value in graph.inputs}
    known.update({value: given(data.array) for value, data in graph.initializers.items()})
    for node in graph.nodes:
        poll(node)
        inputs = [None if v is None else known[v] for v in node.inputs]
        attributes = None if dtype is None else {k: _of_dtype(a, dtype) for k, a in node.attributes.items()}
        results = call_kernel(kernels[node.op.name], node, inputs, attributes)
        known.update({v: np.asarray(r) for v, r in zip(node.outputs, results, strict=False) if v is not None})
    out = {name: known[value] for name, value in graph.outputs.items()}
    if states:
        out |= {f"state.{s.name}": known[s.after] for s in graph.states}
    return out


def _of_dtype(attribute: Any, dtype: Any) -> Any:
    """A float dtype among the attributes (of cast or full) becomes ``dtype``."""
    return as_dtype(dtype) if isinstance(attribute, DType) and attribute.is_float else attribute
