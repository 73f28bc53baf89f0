"""Stored weights that a file dequantizes before a product: this reads them as they are stored, block by block."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from dataflow import DType, Value, float32, int4, int8, ops, uint4, uint8
from dataflow.plugin import Array, Builder

TYPES = {int4: 4, uint4: 4, int8: 8, uint8: 8}  # bits by the dtype of stored elements
_LONGEST = 128  # elements of a block where the file has one scale for a row


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """A matrix (rows, size) as ``ops.matmul_blocks`` takes it, or its transpose.

    Attributes:
        elements: (rows, blocks, block), without sign.
        scale: (rows, blocks).
        zero: (rows, blocks); None for half of the range.
        size: of a row without padding.
        bits: of an element.
        transposed: the value that stands for it is the transpose.
    """

    elements: Array
    scale: Array
    zero: Array | None
    size: int
    bits: int
    transposed: bool

    def other(self) -> BlockWeight:
        """The same of the transposed value."""
        return dataclasses.replace(self, transposed=not self.transposed)

    def product(self, builder: Builder, x: Value, name: str) -> tuple[Value, Value]:
        """The product of x with the value, and the tensor of its elements, which is called ``name``."""
        stored = [self.scale, *([] if self.zero is None else [_bytes(self.zero, self.bits)])]
        elements = builder.constant(_bytes(self.elements, self.bits), name)
        how = {
            "size": self.size,
            "bits": self.bits,
            "block": self.elements.shape[-1],
            "transposed": not self.transposed,
        }
        return ops.matmul_blocks(x, elements, *(builder.constant(array) for array in stored), **how), elements


def block_weight(
    stored: Array, dtype: DType, scale: Array, zero: Array | None, axis: int, block: int
) -> BlockWeight | None:
    """The weight that a stored matrix is with a scale for all, per index of ``axis``, or per block along it.

    None where the blocks are none that the op takes.
    """
    if dtype not in TYPES or stored.ndim != 2 or 0 in stored.shape or scale.dtype != np.float32:
        return None
    if zero is not None and zero.shape != scale.shape:
        return None
    bits = TYPES[dtype]
    middle = 1 << (bits - 1)
    signed = 0 if dtype.name.startswith("u") else middle
    along = axis if block else 1 - axis if scale.size > 1 else 0  # of the blocks: of a row of the op's matrix
    by_columns = along == 0
    elements, scales, zeros = (
        None if a is None else a.astype(np.float32 if a is scale else np.int16) for a in (stored, scale, zero)
    )
    assert elements is not None and scales is not None
    matrix = elements.T if by_columns else elements
    rows, size = matrix.shape
    if block:
        count = -(-size // block)
        if block < 16 or block & (block - 1) or scale.shape != ((count, rows) if by_columns else (rows, count)):
            return None
        scales, zeros = (None if a is None else (a.T if by_columns else a) for a in (scales, zeros))
    else:
        if scale.size not in (1, rows) or scale.ndim > 1:
            return None
        block = min(_LONGEST, max(16, 1 << (size - 1).bit_length()))
        count = -(-size // block)
        scales, zeros = (
            None if a is None else np.broadcast_to(a.reshape(-1, 1), (rows, count)) for a in (scales, zeros)
        )
    assert scales is not None
    padded = np.pad(matrix + signed, ((0, 0), (0, count * block - size))).reshape(rows, count, block)
    origin = np.full((rows, count), signed) if zeros is None else zeros + signed
    kept = None if (origin == middle).all() else np.ascontiguousarray(origin.astype(np.uint8))
    return BlockWeight(padded.astype(np.uint8), np.ascontiguousarray(scales), kept, size, bits, by_columns)


def takes(x: Value, weight: Value) -> bool:
    """Whether a product of x with a dequantized weight can be one with blocks."""
    return x.type.dtype == weight.type.dtype == float32 and x.type.rank >= 2


def _bytes(elements: Array, bits: int) -> Array:
    """Elements as bytes: of 4 bits two in each, the lower half first."""
    if bits == 8:
        return elements
    even = np.pad(elements, [(0, 0)] * (elements.ndim - 1) + [(0, elements.shape[-1] % 2)])
    return np.ascontiguousarray(even[..., ::2] | even[..., 1::2] << 4)
