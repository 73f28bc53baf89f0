"""Converters of elementwise sums and products."""

from __future__ import annotations

from typing import Any

from dataflow import int32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...importer import Importer
from ...tensor import Tensor
from .activation import biased

T = Tensor
operator = Collector("com.microsoft")
unversioned = Collector()
"""Operators of ONNX's own domain that it had on trial before opset 10, which onnxruntime knows at any opset."""


@operator("BiasAdd")
def BiasAdd(c: Importer, x: T, bias: T, skip: T) -> Any:
    return ops.add(biased(c, x, bias), c.value(skip))


@operator("GatedAdd")
def GatedAdd(c: Importer, x: T, y: T, gate: T, gate_weight: T | None = None) -> Any:
    if gate_weight is not None:
        raise ModelError("gate_weight, by which a gate is projected, is not supported")
    return ops.add(c.value(x), ops.mul(c.value(y), c.value(gate)))


@operator("MulInteger")
def MulInteger(c: Importer, a: T, a_zero: T | None, b: T, b_zero: T | None = None) -> Any:
    factors = []
    for operand, zero in ((a, a_zero), (b, b_zero)):
        value = cast_to(c.value(operand), int32)
        if zero is not None:
            value = ops.sub(value, ops.reshape(cast_to(c.value(zero), int32), shape=()))
        factors.append(value)
    return ops.mul(*factors)


@unversioned("Affine")
def Affine(c: Importer, x: T, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    return ops.add(ops.mul(c.value(x), alpha), beta)


@unversioned("Scale")
def Scale(c: Importer, x: T, *, scale: float = 1.0) -> Any:
    return ops.mul(c.value(x), scale)
