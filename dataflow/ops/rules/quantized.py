"""Rules of quantized integers: which types, scales and zero points fit each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ir.dims import Dim
from ...ir.graph import Node
from ...ir.types import DType, TensorType, float32, int8, int16, int32, uint8, uint16
from ..conv import conv
from ..infer import alike, need, normal_axis, operand, product
from ..linalg import matmul
from .channels_last import first_perm, last_perm, permuted

BYTES = (int8, uint8)
_STORED = (*BYTES, int16, uint16)


def _check_scale(name: str, x: TensorType, scale: TensorType, zero: TensorType, axis: int) -> None:
    """Raises InputError unless scale and zero point are one number each, or one per index of ``axis``."""
    need(
        scale.shape == zero.shape or not (scale.is_bound and zero.is_bound),
        f"{name}: the scale is {scale} and the zero point {zero}; expected equal shapes",
    )
    need(scale.rank <= 1, f"{name}: the scale is {scale}; expected one number, or one per index of an axis")
    if scale.rank == 1:
        size, count = x.shape[normal_axis(name, axis, x.rank)], scale.shape[0]
        fits = isinstance(size, Dim) or isinstance(count, Dim) or size == count
        need(fits, f"{name}: the scale is {scale} for axis {axis} of {x}; expected {size} numbers")


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the largest integer of a type."""
    if dtype.name.startswith("u"):
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def quantize_infer(x: TensorType, scale: TensorType, zero: TensorType, *, axis: int) -> TensorType:
    """The integers; raises InputError unless x and the scale are float32 and the zero point fits."""
    need(x.dtype == float32 and scale.dtype == float32, f"quantize: x is {x}, its scale {scale}; expected float32")
    need(zero.dtype in _STORED, f"quantize: the zero point is {zero}; expected int8, uint8, int16 or uint16")
    _check_scale("quantize", x, scale, zero, axis)
    return TensorType(zero.dtype, x.shape)


def dequantize_infer(x: TensorType, scale: TensorType, zero: TensorType, *, axis: int) -> TensorType:
    """The floats; raises InputError unless integers and zero point have one type and the scale fits."""
    need(
        x.dtype in (*_STORED, int32) and zero.dtype == x.dtype and scale.dtype == float32,
        f"dequantize: x is {x}, its zero point {zero}, its scale {scale}; expected integers of one type and float32",
    )
    _check_scale("dequantize", x, scale, zero, axis)
    return TensorType(float32, x.shape)


def dynamic_infer(x: TensorType) -> tuple[TensorType, TensorType, TensorType]:
    """Integers, scale and zero point of an array of float32."""
    need(x.dtype == float32, f"dynamic_quantize: x is {x}; expected float32")
    return TensorType(uint8, x.shape), TensorType(float32, ()), TensorType(uint8, ())


def _check_factors(name: str, *types: tuple[TensorType, TensorType | None]) -> None:
    """Raises InputError unless each is of 8-bit integers, as its zero point is."""
    for type_, zero in types:
        fits = type_.dtype in BYTES and (zero is None or zero.dtype == type_.dtype)
        need(fits, f"{name}: operand {type_} with the zero point {zero}; expected int8 or uint8 for both")


def _check_vector(name: str, vector: TensorType | None, size: Any, what: str) -> None:
    """Raises InputError unless it is one number, or one for each of ``size``."""
    if vector is None or vector.rank == 0:
        return
    fits = vector.rank == 1 and (vector.shape[0] in (1, size) or isinstance(size, Dim) or not vector.is_bound)
    need(fits, f"{name}: {what} is {vector}; expected one number, or {size}")


def _product_type(name: str, a: TensorType, b: TensorType, dtype: DType) -> TensorType:
    y = matmul.infer(TensorType(dtype, a.shape), TensorType(dtype, b.shape))
    assert isinstance(y, TensorType)
    return y


def _conv_type(x: TensorType, w: TensorType, dtype: DType, window: Mapping[str, Any]) -> TensorType:
    y = conv.infer(TensorType(dtype, x.shape), TensorType(dtype, w.shape), **window)
    assert isinstance(y, TensorType)
    return y


def matmul_integer_infer(
    a: TensorType, b: TensorType, a_zero: TensorType | None = None, b_zero: TensorType | None = None
) -> TensorType:
    """Sums of the product; raises InputError unless operands and zero points fit."""
    _check_factors("matmul_integer", (a, a_zero), (b, b_zero))
    y = _product_type("matmul_integer", a, b, int32)
    _check_vector("matmul_integer", a_zero, a.shape[-2], "the zero point of a")
    _check_vector("matmul_integer", b_zero, b.shape[-1], "the zero point of b")
    return y


def conv_integer_infer(
    x: TensorType, w: TensorType, x_zero: TensorType | None = None, w_zero: TensorType | None = None, **window: Any
) -> TensorType:
    """Sums of the convolution; raises InputError unless operands, zero points and window fit."""
    _check_factors("conv_integer", (x, x_zero), (w, w_zero))
    y = _conv_type(x, w, int32, window)
    need(x_zero is None or x_zero.rank == 0, f"conv_integer: the zero point of x is {x_zero}; expected one number")
    _check_vector("conv_integer", w_zero, w.shape[0], "the zero point of w")
    return y


def _check_operand(name: str, what: str, types: tuple[TensorType, TensorType, TensorType], size: Any) -> None:
    """Raises InputError unless scale and zero point fit the integers: one, or one for each of ``size``."""
    type_, scale, zero = types
    _check_factors(name, (type_, zero))
    need(scale.dtype == float32, f"{name}: the scale of {what} is {scale}; expected float32")
    for vector in (scale, zero):
        _check_vector(name, vector, size, f"the scale or zero point of {what}")


def _check_bias(name: str, bias: TensorType | None, y: TensorType, axis: int, dtypes: tuple[DType, ...]) -> None:
    """Raises InputError unless a bias has one element per index of ``axis`` of y, as a vector or as it broadcasts."""
    if bias is None:
        return
    need(bias.dtype in dtypes, f"{name}: bias is {bias}; expected {' or '.join(d.name for d in dtypes)}")
    own = 0 if bias.rank == 1 else bias.rank - y.rank + axis % y.rank
    fits = 0 <= own < bias.rank <= y.rank and bias.shape[own] == y.shape[axis]
    fits = fits and all(d == 1 for i, d in enumerate(bias.shape) if i != own)
    need(fits, f"{name}: bias is {bias}; expected {y.shape[axis]} numbers")


def _check_axis(name: str, vectors: Sequence[TensorType], axis: int, wanted: int) -> None:
    """Raises InputError unless vectors have one element, or one per index of the axis that is wanted."""
    one = all(t.rank == 0 or t.shape[0] == 1 for t in vectors)
    need(one or axis == wanted, f"{name}: scales are given along axis {axis}; expected {wanted}")


def _product_infer(name: str, dtype: DType, types: Sequence[TensorType], b_axis: int) -> TensorType:
    """The rule of a product of ``_PRODUCT``."""
    a, b = types[0], types[3]
    y = _product_type(name, a, b, dtype)
    _check_operand(name, "a", (a, types[1], types[2]), 1)
    _check_operand(name, "b", (b, types[4], types[5]), b.shape[-1])
    _check_axis(name, types[4:6], b_axis % b.rank, b.rank - 1)
    return y


def _conv_infer(
    name: str, dtype: DType, types: Sequence[TensorType], w_axis: int, window: Mapping[str, Any]
) -> TensorType:
    """The rule of a convolution of ``_CONV``."""
    x, w = types[0], types[3]
    y = _conv_type(x, w, dtype, window)
    _check_operand(name, "x", (x, types[1], types[2]), 1)
    _check_operand(name, "w", (w, types[4], types[5]), w.shape[0])
    _check_axis(name, types[4:6], w_axis, 0)
    return y


def _check_result(name: str, y_scale: TensorType, y_zero: TensorType) -> DType:
    """The type of the result; raises InputError unless its scale and zero point are one number each."""
    _check_operand(name, "the result", (y_zero, y_scale, y_zero), 1)
    return y_zero.dtype


def matmul_dequantized_infer(*types: TensorType, b_axis: int) -> TensorType:
    """Floats of ``matmul_dequantized``; raises InputError unless scales and bias fit."""
    y = _product_infer("matmul_dequantized", float32, types, b_axis)
    _check_bias("matmul_dequantized", types[6] if len(types) > 6 else None, y, -1, (float32,))
    return y


def matmul_requantized_infer(*types: TensorType, b_axis: int, relu: bool) -> TensorType:
    """Integers of ``matmul_requantized``; raises InputError unless scales and bias fit."""
    y = _product_infer("matmul_requantized", _check_result("matmul_requantized", *types[6:8]), types, b_axis)
    _check_bias("matmul_requantized", types[8] if len(types) > 8 else None, y, -1, (float32, int32))
    return y


def conv_dequantized_infer(*types: TensorType, w_axis: int, **window: Any) -> TensorType:
    """Floats of ``conv_dequantized``; raises InputError unless scales, bias and window fit."""
    y = _conv_infer("conv_dequantized", float32, types, w_axis, window)
    _check_bias("conv_dequantized", types[6] if len(types) > 6 else None, y, 1, (float32,))
    return y


def conv_requantized_infer(
    x: TensorType, *types: TensorType, w_axis: int, relu: bool, channels_last: bool, **window: Any
) -> TensorType:
    """Integers of ``conv_requantized``; raises InputError unless scales, bias and window fit."""
    if channels_last:
        x = permuted(x, first_perm(x.rank))
    dtype = _check_result("conv_requantized", *types[5:7])
    y = _conv_infer("conv_requantized", dtype, (x, *types), w_axis, window)
    _check_bias("conv_requantized", types[7] if len(types) > 7 else None, y, 1, (float32, int32))
    return permuted(y, last_perm(y.rank)) if channels_last else y


def add_requantized_infer(*types: TensorType, relu: bool) -> TensorType:
    """Integers of ``add_requantized``; raises InputError unless shapes are equal and each scale is one number."""
    a, b, dtype = types[0], types[3], _check_result("add_requantized", *types[6:8])
    for what, operands in (("a", types[:3]), ("b", types[3:6])):
        _check_operand("add_requantized", what, operands, 1)  # type: ignore[arg-type]
    need(all(types[i].rank == 0 for i in (1, 2, 4, 5, 6, 7)), "add_requantized: scales and zero points are one number")
    alike("add_requantized", TensorType(dtype, a.shape), TensorType(dtype, b.shape))
    return TensorType(dtype, a.shape)


def lookup_infer(x: TensorType, table: TensorType) -> TensorType:
    """Integers of ``lookup``; raises InputError unless both are of 8 bits, the table a vector of 256."""
    for what, type_ in (("x", x), ("table", table)):
        need(type_.dtype in (int8, uint8), f"lookup: {what} is {type_}; expected int8 or uint8")
    need(table.shape == (256,), f"lookup: the table is {table}; expected 256 elements, one for each of x's")
    return TensorType(table.dtype, x.shape)


def conv_cost(node: Node) -> int:
    """Two operations per weight and element of the result."""
    y = node.outputs[0]
    assert y is not None
    weight = next(v for v in node.inputs[1:] if v is not None and v.type.rank == y.type.rank)
    return 2 * y.type.elements * int(product(weight.type.shape[1:]))


def product_cost(node: Node) -> int:
    """Two operations per column of the first operand and element of the result."""
    y = node.outputs[0]
    assert y is not None
    return 2 * y.type.elements * int(operand(node).type.sizes[-1])
