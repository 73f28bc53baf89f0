"""Integers with a scale and a zero point: they stand for ``scale (q - zero)``.

A scale and its zero point are one number each, or vectors with one per index of an axis. Products and convolutions of
8-bit integers are exact: they add int32, which wraps around. What follows them is declared with them, so that a kernel
does it where sums are stored:

- ``..._dequantized``: ``float32(sum) * (x_scale * w_scale) + bias``, the form that dynamic quantization has;
- ``..._requantized``: ``q = round(float32(sum + bias) * (x_scale * w_scale / y_scale)) + zero``, half to even and kept
  in the range of the result, as QLinearConv and QLinearMatMul are. A bias of int32 counts in units of x_scale *
  w_scale; one of float32 is rounded to them (see passes/quantized/large_biases.py). With ``relu`` no result is below
  the zero point.

Both are also found where dequantized operands meet in a float product or convolution ("QDQ"). There the integers give
the exact sum where floats would round it, and a requantized result can differ by one step from what the floats gave.
Graphs with states, as programs of training are, keep the floats (see passes/pipeline.py).
"""

from __future__ import annotations

from typing import Any

from ..ir.dims import Dim
from ..ir.graph import Node
from ..ir.op import REQUIRED, MultiOp, Op, Pattern
from ..ir.types import DType, float32, float64, int32, int64, uint8
from ..ir.value import Value
from .activation import relu as rectified
from .arithmetic import add, clip, div, maximum, minimum, mul, neg, round_, sub
from .cast import cast
from .conv import conv
from .gather import gather
from .infer import product, scalar_like
from .linalg import matmul
from .logic import equal, where
from .reduce import reduce_max, reduce_min
from .rules.channels_last import first_perm, last_perm
from .rules.quantized import (
    add_requantized_infer,
    conv_cost,
    conv_dequantized_infer,
    conv_integer_infer,
    conv_requantized_infer,
    dequantize_infer,
    dynamic_infer,
    limits,
    lookup_infer,
    matmul_dequantized_infer,
    matmul_integer_infer,
    matmul_requantized_infer,
    product_cost,
    quantize_infer,
)
from .rules.quantized_blocks import matmul_blocks_cost, matmul_blocks_decompose, matmul_blocks_infer
from .shape import reshape, transpose

_EXACT = 1 << 24  # float32 holds every integer up to here


def _broadcast(vector: Value, rank: int, axis: int) -> Value:
    if vector.type.rank == 0:
        return vector
    at = axis % rank
    return reshape(vector, shape=tuple(vector.type.shape[0] if i == at else 1 for i in range(rank)))


# ---- conversions --------------------------------------------------------------------------------------


def _quantize(x: Value, scale: Value, zero: Value, *, axis: int) -> Value:
    rank = x.type.rank
    steps = round_(div(x, _broadcast(scale, rank, axis)))
    shifted = add(steps, cast(_broadcast(zero, rank, axis), to=float32))
    low, high = (scalar_like(shifted, n) for n in limits(zero.type.dtype))
    return cast(clip(shifted, low, high), to=zero.type.dtype)


quantize = Op(
    "quantize",
    ("x", "scale", "zero"),
    quantize_infer,
    attributes={"axis": 0},
    decompose=_quantize,
    doc="y = round(x / scale) + zero, half to even, kept in the range of zero's type",
)


def _dequantize(x: Value, scale: Value, zero: Value, *, axis: int) -> Value:
    rank, exact = x.type.rank, int64 if x.type.dtype == int32 else int32
    shifted = sub(cast(x, to=exact), cast(_broadcast(zero, rank, axis), to=exact))
    return mul(cast(shifted, to=float32), _broadcast(scale, rank, axis))


dequantize = Op(
    "dequantize",
    ("x", "scale", "zero"),
    dequantize_infer,
    attributes={"axis": 0},
    decompose=_dequantize,
    cheap=True,
    doc="y = float32(x - zero) * scale",
)


def _dynamic(x: Value) -> tuple[Value, Value, Value]:
    axes = tuple(range(x.type.rank))
    none = scalar_like(x, 0)
    high = maximum(reduce_max(x, axes=axes, keepdims=False), none)
    low = minimum(reduce_min(x, axes=axes, keepdims=False), none)
    span = sub(high, low)
    scale = where(equal(span, none), scalar_like(x, 1), div(span, scalar_like(x, 255)))
    origin = cast(clip(round_(neg(div(low, scale))), none, scalar_like(x, 255)), to=uint8)
    return quantize(x, scale, origin), scale, origin


dynamic_quantize = MultiOp(
    "dynamic_quantize",
    ("x",),
    dynamic_infer,
    outputs=("y", "scale", "zero"),
    decompose=_dynamic,
    doc="x as uint8, with the scale and zero point that map the range of x and 0 to 0..255",
)


# ---- exact products -----------------------------------------------------------------------------------


def _exact(count: Any) -> DType:
    """Floats that hold a sum of ``count`` products of bytes."""
    return float32 if not isinstance(count, Dim) and count * 255 * 255 < _EXACT else float64


def _less_zero(x: Value, zero: Value | None, dtype: DType, axis: int) -> Value:
    """Integers less their zero point, in a type of floats."""
    y = cast(x, to=dtype)
    return y if zero is None else sub(y, _broadcast(cast(zero, to=dtype), x.type.rank, axis))


def _matmul_integer(a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None) -> Value:
    dtype = _exact(a.type.shape[-1])
    return cast(matmul(_less_zero(a, a_zero, dtype, -2), _less_zero(b, b_zero, dtype, -1)), to=int32)


matmul_integer = Op(
    "matmul_integer",
    ("a", "b", "a_zero?", "b_zero?"),
    matmul_integer_infer,
    decompose=_matmul_integer,
    cost=matmul.cost,
    doc="y (int32) = (a - a_zero) (b - b_zero) of 8-bit integers; zero points: one, or one per row of a, column of b",
)


def _conv_integer(x: Value, w: Value, x_zero: Value | None = None, w_zero: Value | None = None, **window: Any) -> Value:
    dtype = _exact(product(w.type.shape[1:]))
    return cast(conv(_less_zero(x, x_zero, dtype, 0), _less_zero(w, w_zero, dtype, 0), **window), to=int32)


conv_integer = Op(
    "conv_integer",
    ("x", "w", "x_zero?", "w_zero?"),
    conv_integer_infer,
    attributes=conv.attributes,
    decompose=_conv_integer,
    cost=conv_cost,
    doc="y (int32) = conv(x - x_zero, w - w_zero) of 8-bit integers; padding is x_zero",
)


# ---- products with what follows them ------------------------------------------------------------------


_PRODUCT = ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero")
_CONV = ("x", "x_scale", "x_zero", "w", "w_scale", "w_zero")
_RESULT = ("y_scale", "y_zero")
_SHARED = ("dequantize",)

# The graphs in which the ops are found. Of the two forms the first has quantized operands of a float op, the second
# (``..._of_sums``) is what dynamic quantization writes.


def _matmul(*operands: Any, b_axis: int) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, bias = (*operands, None)[:7]
    y = matmul(dequantize(a, a_scale, a_zero, axis=0), dequantize(b, b_scale, b_zero, axis=b_axis))
    return y if bias is None else add(y, bias)


def _matmul_of_sums(*operands: Any) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, bias = (*operands, None)[:7]
    y = mul(cast(matmul_integer(a, b, a_zero, b_zero), to=float32), mul(a_scale, b_scale))
    return y if bias is None else add(y, bias)


def _conv(*operands: Any, w_axis: int, **window: Any) -> Any:
    x, x_scale, x_zero, w, w_scale, w_zero, bias = (*operands, None)[:7]
    return conv(dequantize(x, x_scale, x_zero, axis=0), dequantize(w, w_scale, w_zero, axis=w_axis), bias, **window)


def _conv_of_sums(*operands: Any, **window: Any) -> Any:
    x, x_scale, x_zero, w, w_scale, w_zero, bias = (*operands, None)[:7]
    y = mul(cast(conv_integer(x, w, x_zero, w_zero, **window), to=float32), mul(x_scale, w_scale))
    return y if bias is None else add(y, bias)


def _requantized(build: Any, relu: bool) -> Any:
    """``build`` with a quantization behind it, whose scale and zero point are operands 6 and 7."""

    def requantized(*operands: Any, **attributes: Any) -> Any:
        y = build(*operands[:6], *operands[8:], **attributes)
        return quantize(rectified(y) if relu else y, operands[6], operands[7], axis=0)

    return requantized


def _decomposed(build: Any) -> Any:
    """The decomposition of a requantized op, where a bias of int32 is in units of the operands' scales."""

    def decompose(*operands: Any, relu: bool, **attributes: Any) -> Any:
        bias = operands[8] if len(operands) > 8 else None
        if bias is not None and bias.type.dtype == int32:
            bias = mul(cast(bias, to=float32), mul(operands[1], operands[4]))
        return _requantized(build, relu)(*operands[:8], bias, **attributes)

    return decompose


def _conv_requantized(x: Value, *operands: Any, channels_last: bool, **attributes: Any) -> Value:
    planar = transpose(x, perm=first_perm(x.type.rank)) if channels_last else x
    y: Value = _decomposed(_conv)(planar, *operands, **attributes)
    return transpose(y, perm=last_perm(x.type.rank)) if channels_last else y


def _conv_attributes(strides: Any, pads: Any, dilations: Any, groups: Any, w_axis: int) -> dict[str, Any]:
    return {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "w_axis": w_axis}


def _rectified_conv(strides: Any, pads: Any, dilations: Any, groups: Any, w_axis: int) -> dict[str, Any]:
    return {**_conv_attributes(strides, pads, dilations, groups, w_axis), "relu": True}


def _conv_of_sums_attributes(strides: Any, pads: Any, dilations: Any, groups: Any) -> dict[str, Any]:
    return _conv_attributes(strides, pads, dilations, groups, -1)


matmul_dequantized = Op(
    "matmul_dequantized",
    (*_PRODUCT, "bias?"),
    matmul_dequantized_infer,
    attributes={"b_axis": -1},
    decompose=_matmul,
    cost=product_cost,
    pattern=(Pattern(_matmul, shared=_SHARED), Pattern(_matmul_of_sums, lambda: {"b_axis": -1})),
    doc="y = float32(matmul_integer(a, b)) * a_scale * b_scale + bias; b's scales are one, or one per column",
)
matmul_requantized = Op(
    "matmul_requantized",
    (*_PRODUCT, *_RESULT, "bias?"),
    matmul_requantized_infer,
    attributes={"b_axis": -1, "relu": False},
    decompose=_decomposed(_matmul),
    cost=product_cost,
    pattern=(
        Pattern(_requantized(_matmul, False), lambda b_axis: {"b_axis": b_axis}, _SHARED),
        Pattern(_requantized(_matmul, True), lambda b_axis: {"b_axis": b_axis, "relu": True}, _SHARED),
    ),
    doc="matmul_dequantized, rounded to steps of y_scale from y_zero",
)
conv_dequantized = Op(
    "conv_dequantized",
    (*_CONV, "bias?"),
    conv_dequantized_infer,
    attributes={**conv.attributes, "w_axis": 0},
    decompose=_conv,
    cost=conv_cost,
    pattern=(Pattern(_conv, shared=_SHARED), Pattern(_conv_of_sums, _conv_of_sums_attributes)),
    doc="y = float32(conv_integer(x, w)) * x_scale * w_scale + bias; w's scales are one, or one per filter",
)
conv_requantized = Op(
    "conv_requantized",
    (*_CONV, *_RESULT, "bias?"),
    conv_requantized_infer,
    attributes={**conv.attributes, "w_axis": 0, "relu": False, "channels_last": False},
    decompose=_conv_requantized,
    cost=conv_cost,
    pattern=(
        Pattern(_requantized(_conv, False), _conv_attributes, _SHARED),
        Pattern(_requantized(_conv, True), _rectified_conv, _SHARED),
    ),
    doc="conv_dequantized, rounded to steps of y_scale from y_zero; channels_last: x and y are (N, spatial..., C)",
)


def _sum(*operands: Any) -> Any:
    return add(dequantize(*operands[:3], axis=0), dequantize(*operands[3:], axis=0))


add_requantized = Op(
    "add_requantized",
    (*_PRODUCT, *_RESULT),
    add_requantized_infer,
    attributes={"relu": False},
    decompose=lambda *operands, relu: _requantized(_sum, relu)(*operands),
    pattern=(
        Pattern(_requantized(_sum, False), lambda: {"relu": False}, _SHARED),
        Pattern(_requantized(_sum, True), lambda: {"relu": True}, _SHARED),
    ),
    doc="quantize(relu(dequantize(a) + dequantize(b))) of 8-bit integers of equal shapes; relu by the attribute",
)


def _lookup(x: Value, table: Value) -> Value:
    least, _ = limits(x.type.dtype)
    return gather(table, sub(cast(x, to=int32), least), axis=0)


lookup = Op(
    "lookup",
    ("x", "table"),
    lookup_infer,
    decompose=_lookup,
    doc="y = table[x - least] of 8-bit integers, by the least of x's type: a function of one byte by its 256 results",
)


# ---- products with weights in blocks ------------------------------------------------------------------


def _matmul_blocks_gradient(node: Node, dy: Value) -> tuple[Value]:
    """By a alone: what is quantized stays as it is."""
    attributes = {**node.attributes, "transposed": not node.attributes["transposed"]}
    return (matmul_blocks(dy, *node.inputs[1:], **attributes),)


matmul_blocks: Op = Op(
    "matmul_blocks",
    ("a", "b", "scale", "zero?"),
    matmul_blocks_infer,
    attributes={"size": REQUIRED, "bits": 4, "block": 32, "transposed": False},
    gradient=_matmul_blocks_gradient,
    decompose=matmul_blocks_decompose,
    cost=matmul_blocks_cost,
    doc="y = a w^T (transposed: a w) of a matrix w (rows, size) in blocks along rows: w = scale (b - zero); b is "
    "(rows, blocks, bytes), scale (rows, blocks), zero (rows, bytes), or half of the range without",
)


OPS = (
    quantize, dequantize, dynamic_quantize, matmul_integer, conv_integer, matmul_dequantized, matmul_requantized,
    conv_dequantized, conv_requantized, add_requantized, lookup, matmul_blocks,
)  # fmt: skip
