"""Converters of operators that sample between elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import Dim, float32, float64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import cast_to
from ..importer import Importer
from ..tensor import Tensor

T = Tensor
operator = Collector()


@operator("GridSample", 16)
def GridSample_16(
    c: Importer, x: T, grid: T, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Any:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    return _sampled(c, x, grid, mode=names.get(mode, mode), padding=padding_mode, align_corners=align_corners)


@operator("GridSample", 20)
def GridSample(
    c: Importer, x: T, grid: T, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Any:
    return _sampled(c, x, grid, mode=mode, padding=padding_mode, align_corners=align_corners)


def _sampled(c: Importer, x: T, grid: T, **how: Any) -> Any:
    """Computed in the larger dtype; x of integers is read at its nearest elements."""
    value, at = c.value(x), c.value(grid)
    own = value.type.dtype
    if not own.is_float and how["mode"] != "nearest":
        raise ModelError(f"its input is {value.type}; only floats are interpolated")
    dtype = own
    if own != at.type.dtype:
        dtype = float64 if float64 in (own, at.type.dtype) or not own.is_float else float32
    return cast_to(ops.grid_sample(cast_to(value, dtype), cast_to(at, dtype), **how), own)


@operator("AffineGrid", 20)
def AffineGrid(c: Importer, theta: T, size: T, *, align_corners: int = 0) -> Any:
    matrices, sizes = c.value(theta), c.sizes(size, "the size")
    if c.freed is not None:
        sizes = c.freed.resized(matrices.type.shape[:1], sizes)
    return ops.affine_grid(matrices, size=tuple(sizes), align_corners=align_corners)


@operator("DeformConv", 19)
def DeformConv(
    c: Importer,
    x: T,
    w: T,
    offset: T,
    bias: T | None = None,
    mask: T | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    weight = c.weight(w)
    if any(isinstance(n, Dim) for n in weight.type.shape):
        raise ModelError(f"its weight is {weight.type}; expected fixed sizes")
    kernel = weight.type.sizes[2:]
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ModelError(f"kernel_shape is {tuple(kernel_shape)}, the weight is {weight.type}")
    spatial = len(kernel)
    return ops.deform_conv(
        c.value(x), weight, c.value(offset), None if bias is None else c.weight(bias),
        None if mask is None else c.value(mask), strides=tuple(strides or (1,) * spatial),
        pads=tuple(pads or (0,) * 2 * spatial), dilations=tuple(dilations or (1,) * spatial), groups=group,
        offset_groups=offset_group,
    )  # fmt: skip
