"""Runs a graph node by node: the oracle that devices and gradients are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dataflow import Graph, Value
from dataflow.errors import DataflowError
from dataflow.host.limits import poll

from .kernels import KERNELS

Array = np.ndarray[Any, Any]


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

    def given(array: Any) -> Array:
        array = np.asarray(array)
        return array.astype(dtype) if dtype is not None and array.dtype.kind == "f" else array

    known: dict[Value, Array] = {value: given(feeds[value.name]) for value in graph.inputs}
    known.update({value: given(data.array) for value, data in graph.initializers.items()})
    for node in graph.nodes:
        poll(node)
        inputs = [None if v is None else known[v] for v in node.inputs]
        attributes: Mapping[str, Any] = node.attributes
        if dtype is not None:
            attributes = {key: _wider(value, dtype) for key, value in attributes.items()}
        extra = {"bodies": node.bodies} if node.op.bodies else {}
        try:
            with np.errstate(all="ignore"):
                found = KERNELS[node.op.name](attributes, *inputs, **extra)
        except DataflowError as error:
            raise type(error)(f"{node.describe()}: {error}") from None
        results = found if isinstance(found, tuple) else (found,)
        known.update({v: np.asarray(r) for v, r in zip(node.outputs, results, strict=False) if v is not None})
    out = {name: known[value] for name, value in graph.outputs.items()}
    if states:
        out |= {f"state.{s.name}": known[s.after] for s in graph.states}
    return out


def _wider(attribute: Any, dtype: Any) -> Any:
    """A float dtype among the attributes (of cast or full) becomes ``dtype``."""
    from dataflow import DType
    from dataflow.ir.types import dtype as as_dtype

    return as_dtype(dtype) if isinstance(attribute, DType) and attribute.is_float else attribute
