"""What rules of nodes with bodies share: copying a body's nodes, zeros of a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.graph import Graph
from ...ir.types import TensorType
from ...ir.value import Builder, Value
from ..gather import full


def dtype_and_shape(type_: TensorType) -> tuple[Any, Any]:
    """Dtype and shape, as ``GraphBuilder.input`` takes them."""
    return type_.dtype, type_.shape


def zeros(builder: Builder, type_: TensorType) -> Value:
    """A tensor of zeros."""
    made = builder.add(full, (), {"shape": type_.shape, "value": 0.0, "dtype": type_.dtype}).outputs[0]
    assert made is not None
    return made


def inline(builder: Builder, body: Graph, inputs: Sequence[Value]) -> dict[Value, Value]:
    """Copies a body's nodes behind ``inputs``; the new value of each old one."""
    new: dict[Value, Value] = dict(zip(body.inputs, inputs, strict=True))
    for value, data in body.initializers.items():
        new[value] = builder.constant(data.array, None if data.literal else value.name)
    for node in body.nodes:
        operands = [None if v is None else new[v] for v in node.inputs]
        made = builder.add(node.op, operands, node.attributes, bodies=node.bodies, name=node.name)
        new.update({a: b for a, b in zip(node.outputs, made.outputs, strict=True) if a is not None and b is not None})
    return new
