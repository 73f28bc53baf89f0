"""Converters of activation functions."""

from __future__ import annotations

from typing import Any

from dataflow import float64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import cast_to
from ..importer import Importer
from ..tensor import Tensor
from .elementwise import unary

T = Tensor
operator = Collector()

unary(operator, "HardSwish", ops.hard_swish)
unary(operator, "Mish", ops.mish)
unary(operator, "Relu", ops.relu)
unary(operator, "Sigmoid", ops.sigmoid)
unary(operator, "Softplus", ops.softplus)
unary(operator, "Softsign", ops.softsign)


def _activation(onnx_name: str, op: Any, **defaults: float) -> None:
    @operator(onnx_name)
    def convert(c: Importer, x: T, **attributes: float) -> Any:
        unknown = set(attributes) - set(defaults)
        if unknown:
            raise ModelError(f"attribute {unknown.pop()!r} is not known")
        return op(c.value(x), **{**defaults, **attributes})


_activation("LeakyRelu", ops.leaky_relu, alpha=0.01)
_activation("Elu", ops.elu, alpha=1.0)
_activation("Selu", ops.selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
_activation("Celu", ops.celu, alpha=1.0)
_activation("ThresholdedRelu", ops.thresholded_relu, alpha=1.0)
_activation("HardSigmoid", ops.hard_sigmoid, alpha=0.2, beta=0.5)


@operator("Gelu", 20)
def Gelu(c: Importer, x: T, *, approximate: str = "none") -> Any:
    return ops.gelu(c.value(x), approximate=approximate)


@operator("Swish", 24)
def Swish(c: Importer, x: T, *, alpha: float = 1.0) -> Any:
    value = c.value(x)
    return ops.mul(value, ops.sigmoid(value if alpha == 1.0 else ops.mul(value, alpha)))


@operator("SwiGLU", 28)
def SwiGLU(c: Importer, a: T, b: T, *, alpha: float = 1.0) -> Any:
    gate = c.value(a)
    return ops.mul(ops.mul(gate, ops.sigmoid(ops.mul(gate, alpha))), c.value(b))


@operator("Shrink", 9)
def Shrink(c: Importer, x: T, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    value = c.value(x)
    dtype = value.type.dtype
    if not dtype.is_float:  # of results the fractions are dropped
        value = ops.cast(value, to=float64)
    zero = c.builder.scalar(0.0, value.type.dtype)
    inner = ops.where(ops.greater(value, lambd), ops.sub(value, bias), zero)
    return cast_to(ops.where(ops.less(value, -lambd), ops.add(value, bias), inner), dtype)


@operator("PRelu")
def PRelu(c: Importer, x: T, slope: T) -> Any:
    return ops.prelu(c.value(x), c.weight(slope))
