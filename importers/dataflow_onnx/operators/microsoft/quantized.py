"""Converters of operators of quantized tensors: dequantized, computed in floats, and quantized again.

What ONNX has operators for (conversions, products and convolutions of integers) is converted as these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataflow import Dim, Value, float32, int32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...importer import Importer
from ...tensor import Tensor
from ..pool import AveragePool
from ..quantized import (
    DequantizeLinear,
    DynamicQuantizeLinear,
    MatMulInteger,
    QLinearConv,
    QuantizeLinear,
)
from ..shape import reshaped
from .attention import self_attention
from .layout import to_channels_first, to_channels_last
from .norm import EmbedLayerNormalization

T = Tensor
operator = Collector("com.microsoft")

_Function = Callable[..., Any]


@operator("QuantizeLinear")
def quantize_linear(c: Importer, x: T, scale: T, zero_point: T | None = None, *, axis: int = 1) -> Any:
    return QuantizeLinear(c, x, scale, zero_point, axis=axis)


@operator("DequantizeLinear")
def dequantize_linear(c: Importer, x: T, scale: T, zero_point: T | None = None, *, axis: int = 1) -> Any:
    return DequantizeLinear(c, x, scale, zero_point, axis=axis)


def _quantized(c: Importer, y: Value, scale: T, zero: T | None, like: T) -> Any:
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
            return _quantized(c, function(DequantizeLinear(c, x, x_scale, x_zero)), y_scale, y_zero, x)

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
        return _quantized(c, y, y_scale, y_zero, a)


_binary("QLinearAdd", ops.add)
_binary("QLinearMul", ops.mul)
_unary("QLinearSigmoid")(ops.sigmoid)


@operator("QLinearLeakyRelu")
def QLinearLeakyRelu(
    c: Importer, x: T, x_scale: T, x_zero: T | None, y_scale: T, y_zero: T | None = None, *, alpha: float = 0.01
) -> Any:
    y = ops.leaky_relu(DequantizeLinear(c, x, x_scale, x_zero), alpha=alpha)
    return _quantized(c, y, y_scale, y_zero, x)


@operator("QLinearSoftmax")
def QLinearSoftmax(
    c: Importer, x: T, x_scale: T, x_zero: T | None, y_scale: T, y_zero: T, *, opset: int, axis: int = -1
) -> Any:
    """Before opset 13 of ONNX over all axes from ``axis`` on."""
    value = DequantizeLinear(c, x, x_scale, x_zero)
    shape = value.type.shape
    if opset < 13:
        value = reshaped(value, [*shape[: axis % len(shape)], -1])
    y = ops.softmax(value, axis=axis if opset >= 13 else -1)
    return _quantized(c, ops.reshape(y, shape=shape) if opset < 13 else y, y_scale, y_zero, x)


@operator("QLinearConcat")
def QLinearConcat(c: Importer, y_scale: T, y_zero: T, *inputs: T, axis: int) -> Any:
    """Each input is a tensor, its scale and its zero point."""
    if len(inputs) % 3 or not inputs:
        raise ModelError(f"it has {len(inputs)} inputs to join; expected three for each tensor")
    values = [DequantizeLinear(c, *inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return _quantized(c, ops.concat(*values, axis=axis), y_scale, y_zero, inputs[0])


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
    return _quantized(c, ops.where(c.value(condition), *chosen), z_scale, z_zero, x)


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
    return _quantized(c, y, y_scale, y_zero, x)


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
    return _quantized(c, y, y_scale, y_zero, x)


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
    return _quantized(c, to_channels_last(y, channels_last), y_scale, y_zero, x)


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


# ---- products -----------------------------------------------------------------------------------------


def _product(c: Importer, a: T, b: T, a_zero: T | None, b_zero: T | None, scale: Value) -> Any:
    """The floats that a product of integers stands for: int32, exact, times both scales."""
    return ops.mul(ops.cast(MatMulInteger(c, a, b, a_zero, b_zero), to=scale.type.dtype), scale)


def _scales(c: Importer, a: T, b: T) -> Any:
    """The product of the scale of rows, a single number, and that of columns."""
    left = c.value(a)
    if any(n != 1 for n in left.type.shape):
        raise ModelError(f"the scale of the first factor is {left.type}; expected one number")
    right = c.value(b)
    if all(not isinstance(n, Dim) and n == 1 for n in right.type.shape):
        right = ops.reshape(right, shape=())
    return ops.mul(ops.reshape(left, shape=()), right)


def _plus(c: Importer, y: Value, bias: T | None) -> Any:
    return y if bias is None else ops.add(y, c.weight(bias))


@operator("MatMulIntegerToFloat")
def MatMulIntegerToFloat(
    c: Importer,
    a: T,
    b: T,
    a_scale: T,
    b_scale: T,
    a_zero: T | None = None,
    b_zero: T | None = None,
    bias: T | None = None,
) -> Any:
    return _plus(c, _product(c, a, b, a_zero, b_zero, _scales(c, a_scale, b_scale)), bias)


@operator("DynamicQuantizeMatMul")
def DynamicQuantizeMatMul(c: Importer, a: T, b: T, b_scale: T, b_zero: T | None = None, bias: T | None = None) -> Any:
    steps, scale, zero = (Tensor("the first factor", v) for v in DynamicQuantizeLinear(c, a))
    return _plus(c, _product(c, steps, b, zero, b_zero, _scales(c, scale, b_scale)), bias)


@operator("MatMulInteger16")
def MatMulInteger16(c: Importer, a: T, b: T) -> Any:
    return ops.matmul(cast_to(c.value(a), int32), cast_to(c.value(b), int32))


@operator("QGemm")
def QGemm(
    c: Importer,
    a: T,
    a_scale: T,
    a_zero: T,
    b: T,
    b_scale: T,
    b_zero: T,
    bias: T | None = None,
    y_scale: T | None = None,
    y_zero: T | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """The bias counts in units of the product of the scales; the result is of floats without a scale of its own."""
    left, right = (
        Tensor(t.name, ops.transpose(c.value(t), perm=(1, 0))) if wanted else t
        for t, wanted in ((a, transA), (b, transB))
    )
    total = MatMulInteger(c, left, right, a_zero, b_zero)
    if bias is not None:
        total = ops.add(total, c.value(bias))
    scale = _scales(c, a_scale, b_scale)
    y = ops.mul(ops.cast(total, to=float32), scale if alpha == 1.0 else ops.mul(scale, alpha))
    if y_scale is None:
        return y
    if y_zero is None:
        raise ModelError("y_scale needs y_zero_point beside it")
    return _quantized(c, y, y_scale, y_zero, a)


# ---- attention and embeddings -------------------------------------------------------------------------


@operator("QAttention")
def QAttention(
    c: Importer,
    x: T,
    weight: T,
    bias: T,
    x_scale: T,
    weight_scale: T,
    mask_index: T | None = None,
    x_zero: T | None = None,
    weight_zero: T | None = None,
    past: T | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
) -> Any:
    if do_rotary:
        raise ModelError("do_rotary is not supported; expected 0")
    projected = _product(c, x, weight, x_zero, weight_zero, _scales(c, x_scale, weight_scale))
    return self_attention(
        c,
        _plus(c, projected, bias),
        mask_index,
        past,
        None,
        None,
        num_heads=num_heads,
        mask_filter_value=mask_filter_value,
        shared=past_present_share_buffer,
        sizes=None,
        scale=scale,
        unidirectional=unidirectional,
    )


@operator("QEmbedLayerNormalization")
def QEmbedLayerNormalization(
    c: Importer,
    input_ids: T,
    segment_ids: T | None,
    word: T,
    position: T,
    segment: T | None,
    gamma: T,
    beta: T,
    mask: T | None,
    word_scale: T,
    position_scale: T,
    segment_scale: T | None,
    gamma_scale: T,
    beta_scale: T,
    word_zero: T,
    position_zero: T,
    segment_zero: T | None,
    gamma_zero: T,
    beta_zero: T,
    *,
    epsilon: float = 1e-12,
) -> Any:
    def floats(x: T, scale: T, zero: T) -> T:
        return Tensor(x.name, DequantizeLinear(c, x, scale, zero))

    segments = None
    if segment is not None and segment_scale is not None and segment_zero is not None:
        segments = floats(segment, segment_scale, segment_zero)
    return EmbedLayerNormalization(
        c,
        input_ids,
        segment_ids,
        floats(word, word_scale, word_zero),
        floats(position, position_scale, position_zero),
        segments,
        floats(gamma, gamma_scale, gamma_zero),
        floats(beta, beta_scale, beta_zero),
        mask,
        epsilon=epsilon,
    )
