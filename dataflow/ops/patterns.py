"""Fused ops: chains of ops that a device may compute with one kernel.

They are found in finished graphs when a device offers a kernel for them (see lower/fuse.py); a device without one
runs the chain. Nobody writes them by hand, and autodiff never sees them.
"""

from __future__ import annotations

from typing import Any

from ..graph import Value
from ..op import Op
from ..types import TensorType
from .binary import add
from .convolution import conv
from .elementwise import relu
from .linalg import matmul
from .rules import need


def _matmul_bias_infer(a: TensorType, b: TensorType, bias: TensorType) -> TensorType:
    y = matmul.infer(a, b)
    assert isinstance(y, TensorType)
    fits = bias.dtype == y.dtype and bias.rank <= y.rank and bias.rank >= 1 and bias.shape[-1] == y.shape[-1]
    need(fits and all(d == 1 for d in bias.shape[:-1]), f"matmul_bias: bias is {bias}; expected one element per column")
    return y


def _conv_relu_infer(x: TensorType, w: TensorType, bias: TensorType | None = None, **window: Any) -> Any:
    return conv.infer(x, w, bias, **window)


def _conv_relu(x: Value, w: Value, bias: Value | None = None, **window: Any) -> Any:
    return relu(conv(x, w, bias, **window))


def _conv_add_relu_infer(x: TensorType, w: TensorType, bias: TensorType, z: TensorType, **window: Any) -> Any:
    y = conv.infer(x, w, bias, **window)
    need(z == y, f"conv_add_relu: z is {z}; expected what the convolution gives, {y}")
    return y


def _conv_add_relu(x: Value, w: Value, bias: Value, z: Value, **window: Any) -> Any:
    return relu(add(conv(x, w, bias, **window), z))


matmul_bias = Op(
    "matmul_bias",
    ("a", "b", "bias"),
    _matmul_bias_infer,
    decompose=lambda a, b, bias: add(matmul(a, b), bias),
    cost=matmul.cost,
    pattern=("matmul", "add"),
    doc="y = a b + bias; the bias has one element per column",
)
matmul_bias_relu = Op(
    "matmul_bias_relu",
    ("a", "b", "bias"),
    _matmul_bias_infer,
    decompose=lambda a, b, bias: relu(add(matmul(a, b), bias)),
    cost=matmul.cost,
    pattern=("matmul", "add", "relu"),
    doc="y = max(a b + bias, 0)",
)
conv_relu = Op(
    "conv_relu",
    conv.inputs,
    _conv_relu_infer,
    attributes=conv.attributes,
    decompose=_conv_relu,
    cost=lambda node: _conv_cost(node),
    pattern=("conv", "relu"),
    doc="y = max(conv(x, w, bias), 0)",
)
conv_add_relu = Op(
    "conv_add_relu",
    ("x", "w", "bias", "z"),
    _conv_add_relu_infer,
    attributes=conv.attributes,
    decompose=_conv_add_relu,
    cost=lambda node: _conv_cost(node),
    inplace=((0, 3),),
    pattern=("conv", "add", "relu"),
    doc="y = max(conv(x, w, bias) + z, 0)",
)
add_relu = Op(
    "add_relu",
    ("a", "b"),
    add.infer,
    decompose=lambda a, b: relu(add(a, b)),
    inplace=((0, 0), (0, 1)),
    pattern=("add", "relu"),
    doc="y = max(a + b, 0)",
)


def _conv_cost(node: Any) -> int:
    """As the convolution's: two operations per weight and element of the result."""
    result, weight = node.outputs[0], node.inputs[1]
    per = 1
    for size in weight.type.sizes[1:]:
        per *= size
    return 2 * int(result.type.elements) * per


OPS = (matmul_bias, matmul_bias_relu, conv_relu, conv_add_relu, add_relu)
