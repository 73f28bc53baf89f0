"""Converters of operators that change shapes, and of those from before ONNX had its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import slice_axis
from ...importer import Importer
from ...shape_eval import axis_in
from ...tensor import Tensor
from ..constant import Range, Trilu
from ..shape import Pad, Unsqueeze

T = Tensor
operator = Collector("com.microsoft")
unversioned = Collector()
"""Operators that onnxruntime knows in ONNX's own domain, at any opset."""


@unversioned("MemcpyFromHost")
def MemcpyFromHost(c: Importer, x: T) -> Any:
    """A copy for a card, in files that were saved on a machine with one."""
    return x


@unversioned("MemcpyToHost")
def MemcpyToHost(c: Importer, x: T) -> Any:
    return x


@operator("SampleOp")
def SampleOp(c: Importer, x: T) -> Any:
    return x


@operator("ExpandDims")
def ExpandDims(c: Importer, x: T, axis: T) -> Any:
    return Unsqueeze(c, x, axis)


@operator("Pad")
def pad(c: Importer, x: T, pads: T, value: T | None = None, *, mode: str = "constant") -> Any:
    return Pad(c, x, pads, value, mode=mode)


@operator("Trilu")
def trilu(c: Importer, x: T, k: T | None = None, *, upper: int = 1) -> Any:
    return Trilu(c, x, k, upper=upper)


@operator("Range")
def range_(c: Importer, start: T, limit: T, delta: T | None = None) -> Any:
    if delta is None:
        delta = c.stored("a step of 1", np.ones((), start.type.dtype.numpy))
    return Range(c, start, limit, delta)


@operator("UnfoldTensor")
def UnfoldTensor(c: Importer, x: T, *, size: int, dim: int = -1, step: int = 1) -> Any:
    """Windows along an axis, their elements along a new last one."""
    value = c.value(x)
    axis = axis_in(dim, value.type.rank)
    length = value.type.shape[axis]
    if isinstance(length, Dim) or size < 1 or step < 1 or size > length:
        raise ModelError(f"size is {size} and step {step} for {value.type}; expected windows within axis {axis}")
    starts = np.arange(0, length - size + 1, step)
    index = c.builder.constant(starts[:, None] + np.arange(size))
    rank = value.type.rank
    perm = (*range(axis + 1), *range(axis + 2, rank + 1), axis + 1)
    return ops.transpose(ops.gather(value, index, axis=axis), perm=perm)


@unversioned("ImageScaler")
def ImageScaler(c: Importer, x: T, *, bias: Sequence[float] = (), scale: float = 1.0) -> Any:
    value = ops.mul(c.value(x), scale)
    if not bias:
        return value
    shift = np.array(bias, value.type.dtype.numpy).reshape(-1, *(1,) * (value.type.rank - 2))
    return ops.add(value, c.builder.constant(shift))


@unversioned("Crop")
def Crop(c: Importer, x: T, *, border: Sequence[int], scale: Sequence[int] | None = None) -> Any:
    """Images without a border of left, top, right and bottom, or of so much height and width from left and top on."""
    value = c.value(x)
    if value.type.rank != 4 or len(border) != 4 or (scale is not None and len(scale) != 2):
        raise ModelError(f"its input is {value.type}, border {tuple(border)}, scale {scale}; expected images, 4 and 2")
    starts = (border[1], border[0])
    for axis, (start, end) in enumerate(zip(starts, (border[3], border[2]), strict=True), 2):
        size = value.type.shape[axis]
        stop: Any = size - end if scale is None else start + scale[axis - 2]
        if not isinstance(size, Dim) and not 0 <= start <= stop <= size:
            raise ModelError(f"the border {tuple(border)} and scale {scale} don't fit {value.type}")
        value = slice_axis(value, axis, start, stop)
    return value
