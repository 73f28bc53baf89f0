"""Rules of products with a weight that is quantized in blocks along its rows."""

from __future__ import annotations

from ...ir.dims import Dim
from ...ir.graph import Node
from ...ir.types import TensorType, float32, uint8
from ...ir.value import Value
from ..arithmetic import mul, sub
from ..cast import cast
from ..infer import need, product
from ..linalg import matmul
from ..logic import bit_shift, bitwise_and
from ..shape import concat, reshape, slice_, transpose


def matmul_blocks_infer(
    a: TensorType,
    b: TensorType,
    scale: TensorType,
    zero: TensorType | None = None,
    *,
    size: int,
    bits: int,
    block: int,
    transposed: bool,
) -> TensorType:
    """Floats of ``matmul_blocks``; raises InputError unless the weight's tensors fit each other and a."""
    need(bits in (4, 8), f"matmul_blocks: bits is {bits}; expected 4 or 8")
    need(block >= 16 and block & (block - 1) == 0, f"matmul_blocks: block is {block}; expected a power of 2 from 16 on")
    need(a.dtype == float32 and a.rank >= 2, f"matmul_blocks: a is {a}; expected float32 of two axes or more")
    need(b.dtype == uint8 and b.rank == 3, f"matmul_blocks: b is {b}; expected uint8 of three axes")
    rows, count = b.sizes[:2]
    need(
        size >= 1 and count == -(-size // block) and b.sizes[2] == block * bits // 8,
        f"matmul_blocks: b is {b}; expected blocks of {block} elements of {bits} bits for rows of {size}",
    )
    need(
        scale.dtype == float32 and scale.shape == (rows, count),
        f"matmul_blocks: the scale is {scale}; expected float32[{rows}, {count}]",
    )
    if zero is not None:
        row = -(-count * bits // 8)
        need(
            zero.dtype == uint8 and zero.shape == (rows, row),
            f"matmul_blocks: the zero point is {zero}; expected uint8[{rows}, {row}]",
        )
    inner, outer = (rows, size) if transposed else (size, rows)
    given = a.shape[-1]
    need(isinstance(given, Dim) or given == inner, f"matmul_blocks: a is {a}; expected {inner} columns")
    return TensorType(float32, (*a.shape[:-1], outer))


def block_elements(b: Value, *, bits: int) -> Value:
    """Elements of 8 bits, or two of 4 bits in each byte, the lower half first: the last axis is that of a block."""
    if bits == 8:
        return b
    pair = [reshape(half, shape=(*b.type.shape, 1)) for half in (bitwise_and(b, 15), bit_shift(b, 4, left=False))]
    return reshape(concat(*pair, axis=-1), shape=(*b.type.shape[:-1], 2 * b.type.shape[-1]))


def matmul_blocks_decompose(
    a: Value, b: Value, scale: Value, zero: Value | None = None, *, size: int, bits: int, block: int, transposed: bool
) -> Value:
    """The product of a with the dequantized weight."""
    rows, count = scale.type.sizes
    elements = cast(block_elements(b, bits=bits), to=float32)
    if zero is None:
        shifted = sub(elements, float(1 << (bits - 1)))
    else:
        zeros = reshape(block_elements(zero, bits=bits), shape=(rows, zero.type.sizes[1] * 8 // bits))
        zeros = slice_(zeros, starts=(0, 0), stops=(rows, count), steps=(1, 1))
        shifted = sub(elements, reshape(cast(zeros, to=float32), shape=(rows, count, 1)))
    weight = reshape(mul(shifted, reshape(scale, shape=(rows, count, 1))), shape=(rows, count * block))
    weight = slice_(weight, starts=(0, 0), stops=(rows, size), steps=(1, 1))
    return matmul(a, weight if transposed else transpose(weight, perm=(1, 0)))


def matmul_blocks_cost(node: Node) -> int:
    """Two operations per element of the weight and row."""
    a, scale = node.inputs[0], node.inputs[2]
    assert a is not None and scale is not None
    return 2 * int(product(a.type.sizes[:-1])) * int(scale.type.sizes[0]) * int(node.attributes["size"])
