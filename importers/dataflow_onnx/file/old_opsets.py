"""Nodes of opset 1 to 6 -> nodes of opset 7.

What differs by attributes alone is rewritten here. What depends on the ranks of operands gets the domain ``BEFORE_7``,
which has converters of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dataflow.errors import ModelError

from .records import Array, GraphRecord, NodeRecord

BEFORE_7 = "before_opset_7"
"""The domain of what is converted as it was before opset 7; not ONNX's."""

_BROADCAST = {"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"}
_Attributes = dict[str, Any]


def as_opset_7(graph: GraphRecord, opset: int, tensors: Mapping[str, Array] | None = None) -> GraphRecord:
    """A graph and its bodies with nodes of opset 7.

    Args:
        graph: what is rewritten.
        opset: its version, 1 to 6.
        tensors: stored ones of the graphs around it.

    Raises:
        ModelError: a node has no counterpart in opset 7.
    """
    stored = {**(tensors or {}), **graph.initializers}
    taken = {*stored, *graph.inputs, *(name for node in graph.nodes for name in (*node.outputs, *node.reads()))}
    added: dict[str, Array] = {}
    nodes = tuple(_rewritten(node, opset, stored, taken, added) for node in graph.nodes)
    return dataclasses.replace(graph, nodes=nodes, initializers={**graph.initializers, **added})


def _rewritten(
    node: NodeRecord, opset: int, stored: Mapping[str, Array], taken: set[str], added: dict[str, Array]
) -> NodeRecord:
    """A node of opset 7; tensors that it needs are added under names that aren't taken."""
    bodies = {k: as_opset_7(v, opset, stored) for k, v in node.attributes.items() if isinstance(v, GraphRecord)}
    attributes = {**node.attributes, **bodies}
    if node.domain:
        return dataclasses.replace(node, attributes=attributes)
    attributes.pop("consumed_inputs", None)  # a hint for memory
    if node.op in _BROADCAST and attributes.pop("broadcast", 0):
        return dataclasses.replace(node, domain=BEFORE_7, attributes=attributes)
    if node.op in _BROADCAST:
        attributes.pop("axis", None)
    if node.op == "PRelu" or (node.op == "Tile" and opset < 6):
        return dataclasses.replace(node, domain=BEFORE_7, attributes=attributes)
    inputs = node.inputs
    if node.op == "Reshape" and opset < 5:
        name = f"{node.outputs[0]}.shape"
        while name in taken or name in added:
            name += "_"
        added[name] = np.array(_required(node, attributes, "shape"), np.int64)
        inputs = (*inputs, name)
    elif node.op == "Split" and len(inputs) > 1:
        attributes["split"] = _stored_sizes(node, stored)
        inputs = inputs[:1]
    elif node.op in _ATTRIBUTES:
        _ATTRIBUTES[node.op](node, attributes, opset)
    return dataclasses.replace(node, inputs=inputs, attributes=attributes)


def _required(node: NodeRecord, attributes: _Attributes, name: str) -> Any:
    if name not in attributes:
        raise ModelError(f"{node.describe()}: attribute {name!r} is missing")
    return attributes.pop(name)


def _stored_sizes(node: NodeRecord, stored: Mapping[str, Array]) -> tuple[int, ...]:
    sizes = stored.get(node.inputs[1])
    if sizes is None:
        raise ModelError(f"{node.describe()}: the sizes {node.inputs[1]!r} are computed; expected a stored tensor")
    return tuple(int(size) for size in sizes.reshape(-1))


def _inference(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    if not attributes.pop("is_test", 0):
        raise ModelError(
            f"{node.describe()}: is_test is 0: the node trains; give mode='inference' (--mode inference) to "
            "run it as in inference"
        )


_TYPES = (
    "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16", "DOUBLE", "UINT32",
    "UINT64",
)  # fmt: skip
"""Names of element types, the first of which has number 1."""


def _cast(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    name = attributes.get("to")
    if isinstance(name, str):  # before opset 6
        if name.upper() not in _TYPES:
            raise ModelError(f"{node.describe()}: there is no element type {name!r}")
        attributes["to"] = _TYPES.index(name.upper()) + 1


def _concat(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    if opset < 4:
        attributes.setdefault("axis", 1)


def _gemm(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    attributes.pop("broadcast", None)  # operands of one shape broadcast too


def _recurrent(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    attributes.pop("output_sequence", None)  # whether the first output is used


def _power(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    power = attributes.get("p")
    if isinstance(power, float):  # before opset 2
        if power != int(power):
            raise ModelError(f"{node.describe()}: p is {power}; expected an integer")
        attributes["p"] = int(power)


def _pad(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    if opset < 2:
        attributes["pads"] = _required(node, attributes, "paddings")


def _selu(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    if opset < 6:
        attributes.setdefault("alpha", 1.6732)
        attributes.setdefault("gamma", 1.0507)


def _upsample(node: NodeRecord, attributes: _Attributes, opset: int) -> None:
    height, width = (_required(node, attributes, name) for name in ("height_scale", "width_scale"))
    attributes["scales"] = (1.0, 1.0, height, width)


_ATTRIBUTES: Mapping[str, Callable[[NodeRecord, _Attributes, int], None]] = {
    "BatchNormalization": _inference, "Cast": _cast, "Concat": _concat, "Dropout": _inference, "GRU": _recurrent,
    "Gemm": _gemm, "GlobalLpPool": _power, "LSTM": _recurrent, "LpPool": _power, "Pad": _pad, "RNN": _recurrent,
    "Selu": _selu, "Upsample": _upsample,
}  # fmt: skip
