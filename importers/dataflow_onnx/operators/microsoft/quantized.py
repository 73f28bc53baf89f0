"""Converters of operators of quantized tensors: dequantized, computed in floats, and quantized again.

What ONNX has operators for (conversions, products and convolutions of integers) is converted as these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataflow import Value, int32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...importer import Importer
from ...shape_eval import axis_in, product
from ...tensor import Tensor
from ..pool import AveragePool
from ..quantized import (
    DequantizeLinear,
    QLinearConv,
    QuantizeLinear,
)
from .layout import to_channels_first, to_channels_last

T = Tensor
operator = Collector("com.microsoft")

_Function = Callable[..., Any]


@operator("QuantizeLinear")
def quantize_linear(c: Importer, x: T, scale: T, zero_point: T | None = None, *, axis: int = 1) -> Any:
    return QuantizeLinear(c, x, scale, zero_point, axis=axis)


@operator("DequantizeLinear")
def dequantize_linear(c: Importer, x: T, scale: T, zero_point: T | None = None, *, axis: int = 1) -> Any:
    return DequantizeLinear(c, x, scale, zero_point, axis=axis)


def requantized(c: Importer, y: Value, scale: T, zero: T | None, like: T) -> Any:
    """Floats as integers of the type of ``like``."""
    if zero is None:
        zero = Tensor("a zero point of 0", None, np.zeros((), like.type.dtype.numpy))
        zero.value = c.builder.constant(zero.array)
    return QuantizeLinear(c, Tensor("the result", y), scale, zero)


def _unary(name: str) -> Callable[[_Function], _Function]:
    """Adds the converter of an operator of one tensor: the function computes it in floats."""

    def add(function: _Function) -> _Function:
        @operator(name)
        def convert(c: Importer, x: T, x_scale: T, x_zero: T | None, y_scale: T, y_zero: T | None = None) -> Any:
            return requantized(c, function(DequantizeLinear(c, x, x_scale, x_zero)), y_scale, y_zero, x)

        return convert

    return add


def _binary(name: str, op: Any) -> None:
    @operator(name)
    def convert(
        c: Importer,
        a: T,
        a_scale: T,
        a_zero: T | None,
        b: T,
        b_scale: T,
        b_zero: T | None,
        y_scale: T,
        y_zero: T | None = None,
    ) -> Any:
        y = op(DequantizeLinear(c, a, a_scale, a_zero), DequantizeLinear(c, b, b_scale, b_zero))
        return requantized(c, y, y_scale, y_zero, a)


_binary("QLinearAdd", ops.add)
_binary("QLinearMul", ops.mul)
_unary("QLinearSigmoid")(ops.sigmoid)


@operator("QLinearLeakyRelu")
def QLinearLeakyRelu(
    c: Importer, x: T, x_scale: T, x_zero: T | None, y_scale: T, y_zero: T | None = None, *, alpha: float = 0.01
) -> Any:
    y = ops.leaky_relu(DequantizeLinear(c, x, x_scale, x_zero), alpha=alpha)
    return requantized(c, y, y_scale, y_zero, x)


@operator("QLinearSoftmax")
def QLinearSoftmax(
    c: Importer, x: T, x_scale: T, x_zero: T | None, y_scale: T, y_zero: T, *, opset: int, axis: int = -1
) -> Any:
    """Before opset 13 of ONNX over all axes from ``axis`` on."""
    value = DequantizeLinear(c, x, x_scale, x_zero)
    shape = value.type.shape
    if opset < 13:
        at = axis_in(axis, len(shape))
        value = ops.reshape(value, shape=(*shape[:at], product(shape[at:])))
    y = ops.softmax(value, axis=axis if opset >= 13 else -1)
    return requantized(c, ops.reshape(y, shape=shape) if opset < 13 else y, y_scale, y_zero, x)


@operator("QLinearConcat")
def QLinearConcat(c: Importer, y_scale: T, y_zero: T, *inputs: T, axis: int) -> Any:
    """Each input is a tensor, its scale and its zero point."""
    if len(inputs) % 3 or not inputs:
        raise ModelError(f"it has {len(inputs)} inputs to join; expected three for each tensor")
    values = [DequantizeLinear(c, *inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return requantized(c, ops.concat(*values, axis=axis), y_scale, y_zero, inputs[0])


@operator("QLinearWhere")
def QLinearWhere(
    c: Importer,
    condition: T,
    x: T,
    x_scale: T,
    x_zero: T,
    y: T,
    y_scale: T,
    y_zero: T,
    z_scale: T,
    z_zero: T,
) -> Any:
    chosen = DequantizeLinear(c, x, x_scale, x_zero), DequantizeLinear(c, y, y_scale, y_zero)
    return requantized(c, ops.where(c.value(condition), *chosen), z_scale, z_zero, x)


@operator("QLinearReduceMean")
def QLinearReduceMean(
    c: Importer,
    x: T,
    x_scale: T,
    x_zero: T | None,
    y_scale: T,
    y_zero: T | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Any:
    y = ops.reduce_mean(DequantizeLinear(c, x, x_scale, x_zero), axes=tuple(axes), keepdims=keepdims)
    return requantized(c, y, y_scale, y_zero, x)


@operator("ReduceSumInteger")
def ReduceSumInteger(c: Importer, x: T, *, axes: Sequence[int], keepdims: int) -> Any:
    return ops.reduce_sum(cast_to(c.value(x), int32), axes=tuple(axes), keepdims=keepdims)


@operator("QLinearGlobalAveragePool")
def QLinearGlobalAveragePool(
    c: Importer, x: T, x_scale: T, x_zero: T, y_scale: T, y_zero: T, *, channels_last: int = 0
) -> Any:
    value = DequantizeLinear(c, x, x_scale, x_zero)
    first = 1 if channels_last else 2
    y = ops.reduce_mean(value, axes=tuple(range(first, first + value.type.rank - 2)), keepdims=1)
    return requantized(c, y, y_scale, y_zero, x)


@operator("QLinearAveragePool")
def QLinearAveragePool(
    c: Importer,
    x: T,
    x_scale: T,
    x_zero: T | None,
    y_scale: T,
    y_zero: T | None = None,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    value = to_channels_first(DequantizeLinear(c, x, x_scale, x_zero), channels_last)
    y = AveragePool(
        c,
        Tensor(x.name, value),
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        pads=pads,
        strides=strides,
    )
    return requantized(c, to_channels_last(y, channels_last), y_scale, y_zero, x)


@operator("QLinearConv")
def qlinear_conv(
    c: Importer,
    x: T,
    x_scale: T,
    x_zero: T,
    w: T,
    w_scale: T,
    w_zero: T,
    y_scale: T,
    y_zero: T,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """ONNX's, of which the images may have channels last; weights are as in ONNX."""
    if channels_last:
        x = Tensor(x.name, to_channels_first(c.value(x)))
    window = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}
    operands = (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)
    return to_channels_last(QLinearConv(c, *operands, group=group, strides=strides, **window), channels_last)
