"""Converters of products of quantized matrices, and of attention and embeddings that are made of them."""

from __future__ import annotations

from typing import Any

from dataflow import Dim, Value, float32, int32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...importer import Importer
from ...tensor import Tensor
from ..quantized import DequantizeLinear, DynamicQuantizeLinear, MatMulInteger
from .attention import self_attention
from .norm import EmbedLayerNormalization
from .quantized import requantized

T = Tensor
operator = Collector("com.microsoft")


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
    return requantized(c, y, y_scale, y_zero, a)


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
