"""Converters of operators whose weights are quantized in blocks, with elements of fewer than 8 bits side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow import Dim, Value, float32, int8, int64, ops, uint8
from dataflow.errors import ModelError
from dataflow.plugin import Array

from ...converters import Collector
from ...emit import cast_to, number, slice_axis
from ...importer import Importer
from ...shape_eval import axis_in
from ...tensor import Tensor
from ..linalg import MatMul

T = Tensor
operator = Collector("com.microsoft")


def _elements(c: Importer, x: T, bits: int, what: str) -> Array:
    """The elements of bytes that hold several, the lowest bits first, side by side along the last axis.

    Raises:
        ModelError: they are not stored, or the number of bits is none of 2, 4, 8.
    """
    if bits not in (2, 4, 8):
        raise ModelError(f"bits is {bits}; expected 2, 4 or 8")
    array = c.constant(x)
    if array is not None and x.type.dtype.is_int and x.type.dtype.bits == bits < 8:
        return array.astype(np.int8)
    if array is None or array.dtype != np.uint8 or array.ndim < 1:
        raise ModelError(f"{what} is {x.type}; expected a stored tensor of uint8")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    split = (array[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return split.reshape(*array.shape[:-1], -1)


def _rows(c: Importer, x: T, bits: int, what: str, rows: int, count: int) -> Any:
    """As ``_elements``, in rows whose first ``count`` elements are kept; they may be computed.

    Raises:
        ModelError: there are more or fewer.
    """
    padded = -(-count * bits // 8) * (8 // bits) if bits in (2, 4, 8) else 0
    if c.constant(x) is not None or not padded:
        elements = _elements(c, x, bits, what)
        if elements.size != rows * padded:
            raise ModelError(f"{what} is {x.type}; expected {rows} rows of {count} elements of {bits} bits")
        return c.builder.constant(np.ascontiguousarray(elements.reshape(rows, padded)[:, :count]))
    value = c.value(x)
    if value.type.dtype != uint8 or value.type.elements * 8 != rows * padded * bits:
        raise ModelError(f"{what} is {value.type}; expected {rows} rows of {count} elements of {bits} bits, in uint8")
    joined = ops.reshape(value, shape=(rows, padded * bits // 8, 1))
    mask = number(c.builder, (1 << bits) - 1, uint8)
    found = [ops.bitwise_and(_shifted(c, joined, n), mask) for n in range(0, 8, bits)]
    split = ops.reshape(ops.concat(*found, axis=-1), shape=(rows, padded))
    return slice_axis(split, 1, 0, count) if count != padded else split


def _shifted(c: Importer, x: Value, bits: int) -> Any:
    return ops.div(x, number(c.builder, 1 << bits, uint8)) if bits else x


def _dequantized(elements: Value, scales: Value, zeros: Value) -> Any:
    """``(element - zero) * scale`` in float32, with a scale and zero for each block of the last axis.

    Args:
        elements: (..., blocks * block).
        scales: (..., blocks).
        zeros: (..., blocks), or one number.
    """
    *lead, size = elements.type.shape
    count = scales.type.shape[-1]
    blocks = ops.reshape(elements, shape=(*lead, count, size // count))
    if zeros.type.rank:
        zeros = ops.reshape(zeros, shape=(*lead, count, 1))
    shifted = ops.sub(ops.cast(blocks, to=float32), cast_to(zeros, float32))
    scaled = ops.mul(shifted, cast_to(ops.reshape(scales, shape=(*lead, count, 1)), float32))
    return ops.reshape(scaled, shape=elements.type.shape)


@operator("MatMulNBits")
def MatMulNBits(
    c: Importer,
    a: T,
    b: T,
    scales: T,
    zero_points: T | None = None,
    g_idx: T | None = None,
    bias: T | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    accuracy_level: int = 0,
    bits: int = 4,
    weight_prepacked: int = 0,
) -> Any:
    """The product with the transpose of a matrix (N, K) that is quantized in blocks along K.

    ``g_idx`` says which block's scale and zero point each column has (GPTQ's act-order). Where that isn't in order the
    weight is a matrix of floats: columns that were moved would be others to adapters.
    """
    if weight_prepacked:
        raise ModelError("a layout of one device is not supported; expected blocks as they are")
    if block_size < 16 or block_size & (block_size - 1) or K < 1 or N < 1:
        raise ModelError(
            f"block_size is {block_size}, K {K}, N {N}; expected a power of 2 from 16 on, and sizes from 1 on"
        )
    count = -(-K // block_size)
    groups: Any = None if g_idx is None else _groups(c, g_idx, K, block_size)
    y = None if groups is not None else _in_blocks(c, a, b, scales, zero_points, K, N, block_size, bits)
    if y is not None:
        return y if bias is None else ops.add(y, c.weight(bias))
    elements = _rows(c, b, bits, "B", N, count * block_size)
    if c.value(scales).type.elements != N * count:
        raise ModelError(f"B is {b.type} and its scales {c.value(scales).type}; expected {N} rows of {count} blocks")
    factors = ops.reshape(c.value(scales), shape=(N, count))
    origins = _zero_points(c, zero_points, bits, N, count)
    if count * block_size != K and groups is not None:
        elements = slice_axis(elements, 1, 0, K)
    if groups is not None:  # a block for each column
        factors = ops.gather(factors, groups, axis=1)
        origins = ops.gather(origins, groups, axis=1) if origins.type.rank else origins
    weight = _dequantized(elements, factors, origins)
    if count * block_size != K and groups is None:
        weight = slice_axis(weight, 1, 0, K)
    weight = cast_to(ops.transpose(weight, perm=(1, 0)), c.value(a).type.dtype)
    y = MatMul(c, a, Tensor(b.name, weight))
    return y if bias is None else ops.add(y, c.weight(bias))


def _groups(c: Importer, g_idx: T, size: int, block: int) -> Any:
    """The block of each column; None where they are known to be in order.

    Raises:
        ModelError: they are too few, or name no block.
    """
    array, shape = c.constant(g_idx), g_idx.type.shape
    count = -(-size // block)
    if len(shape) != 1 or not (isinstance(shape[0], Dim) or shape[0] in (size, count * block)):
        raise ModelError(f"g_idx is {g_idx.type}; expected a vector with a block for each of {size} columns")
    if array is None:
        return cast_to(slice_axis(c.value(g_idx), 0, 0, size), int64)
    groups = array[:size].astype(np.int64)
    if groups.min() < 0 or groups.max() >= count:
        raise ModelError(f"g_idx names the blocks {groups.min()} to {groups.max()}; there are {count}")
    return None if np.array_equal(groups, np.arange(size) // block) else c.builder.constant(groups)


def _in_blocks(c: Importer, a: T, b: T, scales: T, zeros: T | None, size: int, rows: int, block: int, bits: int) -> Any:
    """The product as one node, in which the weight stays as it is stored; None where the op takes no such operands."""
    count = -(-size // block)
    row, zero_row = count * block * bits // 8, -(-count * bits // 8)
    x, weight, scale = c.value(a), c.value(b), c.value(scales)
    fits = x.type.dtype == scale.type.dtype == float32 and x.type.rank >= 2 and bits in (4, 8)
    fits = fits and scales.array is not None  # the op has no gradient by what is quantized
    fits = fits and weight.type.dtype == uint8 and weight.type.elements == rows * row
    fits = fits and scale.type.elements == rows * count
    zero = None if zeros is None else c.value(zeros)
    if not fits or (zero is not None and (zero.type.dtype != uint8 or zero.type.elements != rows * zero_row)):
        return None
    weight = _shaped(weight, (rows, count, row // count))
    zero = None if zero is None else _shaped(zero, (rows, zero_row))
    return ops.matmul_blocks(x, weight, _shaped(scale, (rows, count)), zero, size=size, bits=bits, block=block)


def _shaped(value: Value, shape: tuple[int, ...]) -> Any:
    return value if value.type.shape == shape else ops.reshape(value, shape=shape)


def _zero_points(c: Importer, given: T | None, bits: int, rows: int, count: int) -> Any:
    """One for each block, (rows, count); half of the range where none is given."""
    if given is None:
        return number(c.builder, 1 << (bits - 1), uint8)
    if given.type.dtype != uint8:
        plain = given.type.dtype.bits >= 8
        stored = c.value(given) if plain else c.builder.constant(_elements(c, given, bits, "zero_points"))
        return ops.reshape(stored, shape=(rows, count))
    return _rows(c, given, bits, "zero_points", rows, count)


def dequantized_rows(c: Importer, x: T, scales: T, zeros: T | None, bits: int, block: int) -> Any:
    """A stored tensor (experts, rows, size) in float32, with a scale for each row, or for each block of one.

    Zero points of rows lie side by side in bytes of their own, those of blocks in such of each row.
    """
    elements = _elements(c, x, bits, repr(x.name))
    experts, rows, size = elements.shape
    count = size // block if block else 1
    factors = c.value(scales)
    if factors.type.elements != experts * rows * count or (block and size % block):
        raise ModelError(f"{x.name!r} is {x.type}, its scales are {factors.type}; expected {count} for each row")
    if block or zeros is None:
        zero = _zero_points(c, zeros, bits, experts * rows, count)
    else:
        zero = ops.reshape(_zero_points(c, zeros, bits, experts, rows), shape=(experts * rows, 1))
    flat = c.builder.constant(np.ascontiguousarray(elements).reshape(experts * rows, size))
    made = _dequantized(flat, ops.reshape(factors, shape=(experts * rows, count)), zero)
    return ops.reshape(made, shape=(experts, rows, size))


# Values of the codes, of the file bitsandbytes writes: FP4 and NF4 (arXiv:2305.14314, appendix E).
_POSITIVE = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_FP4 = (*_POSITIVE, *(-v for v in _POSITIVE))
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@operator("MatMulBnb4")
def MatMulBnb4(
    c: Importer,
    a: T,
    b: T,
    absmax: T,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Any:
    """The product with a matrix (N, K), or its transpose, whose elements are codes of a table, scaled by blocks."""
    if quant_type not in (0, 1) or block_size < 16 or K < 1 or N < 1:
        raise ModelError(f"quant_type is {quant_type}, block_size {block_size}; expected 0 or 1, and 16 or more")
    if b.array is None or b.array.dtype != np.uint8 or b.array.size != (N * K + 1) // 2:
        raise ModelError(f"B is {b.type}; expected {(N * K + 1) // 2} stored bytes")
    codes = np.stack([b.array.reshape(-1) >> 4, b.array.reshape(-1) & 15], -1).reshape(-1)[: N * K]
    table = np.array(_NF4 if quant_type else _FP4, np.float32)
    blocks = -(-N * K // block_size)
    if c.value(absmax).type.elements != blocks:
        raise ModelError(f"absmax is {c.value(absmax).type}; expected {blocks} elements")
    rows = np.minimum(np.arange(N * K) // block_size, blocks - 1)
    values = c.builder.constant(np.ascontiguousarray(table[codes]))
    scale = ops.gather(ops.reshape(c.value(absmax), shape=(blocks,)), c.builder.constant(rows), axis=0)
    weight = ops.reshape(ops.mul(values, cast_to(scale, float32)), shape=(N, K))
    weight = cast_to(ops.transpose(weight, perm=(1, 0)) if transB else weight, c.value(a).type.dtype)
    return MatMul(c, a, Tensor(b.name, weight))


@operator("GatherBlockQuantized")
def GatherBlockQuantized(
    c: Importer,
    data: T,
    indices: T,
    scales: T,
    zero_points: T | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Any:
    """Rows of a table (rows, size) that is quantized in blocks along the last axis."""
    elements = _elements(c, data, bits, "data")
    rank = elements.ndim
    if rank != 2 or axis_in(gather_axis, 2) != 0 or axis_in(quantize_axis, 2) != 1 or block_size < 16:
        axes = f"gather_axis {gather_axis}, quantize_axis {quantize_axis}, block_size {block_size}"
        raise ModelError(f"data is {data.type}, {axes}; expected rows of a matrix, in blocks along the last axis")
    rows, size = elements.shape
    count, index, factors = -(-size // block_size), c.value(indices), c.value(scales)
    block = min(block_size, size)
    if factors.type.shape != (rows, count):
        raise ModelError(f"scales is {factors.type}; expected ({rows}, {count})")
    padded = c.builder.constant(np.pad(elements, ((0, 0), (0, count * block - size))))
    if zero_points is None and data.type.dtype != uint8:
        zeros = number(c.builder, 0, int8)
    else:
        zeros = _zero_points(c, zero_points, bits, rows, count)
    zeros = ops.gather(zeros, index, axis=0) if zeros.type.rank else zeros
    # Of three axes: of two they would be an embedding to adapters, which would train scales.
    lifted = ops.gather(ops.reshape(factors, shape=(rows, 1, count)), index, axis=0)
    factor = ops.reshape(lifted, shape=(*index.type.shape, count))
    chosen = _dequantized(ops.gather(padded, index, axis=0), factor, zeros)
    return cast_to(slice_axis(chosen, -1, 0, size), factors.type.dtype)
