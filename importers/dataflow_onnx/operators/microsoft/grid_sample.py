"""Converters of operators that sample between elements of images."""

from __future__ import annotations

from typing import Any

from dataflow import Value, float32, ops
from dataflow import int64 as int64_
from dataflow.errors import ModelError
from dataflow.plugin import Size

from ...converters import Collector
from ...dynamic_sizes import size_value
from ...emit import along, cast_to, iota, number, slice_axis
from ...importer import Importer
from ...tensor import Tensor
from ..grid_sample import GridSample_16

T = Tensor
operator = Collector("com.microsoft")


@operator("GridSample")
def GridSample(
    c: Importer, x: T, grid: T, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Any:
    return GridSample_16(c, x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


@operator("CropAndResize")
def CropAndResize(
    c: Importer,
    x: T,
    rois: T,
    batch_indices: T,
    crop_size: T,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Any:
    """Boxes (top, left, bottom, right) of images, where 0 and 1 are the centres of the first and last elements."""
    if mode not in ("bilinear", "nearest"):
        raise ModelError(f"mode is {mode!r}; expected 'bilinear' or 'nearest'")
    value, boxes = c.value(x), cast_to(c.value(rois), float32)
    if value.type.rank != 4 or boxes.type.rank != 2 or boxes.type.shape[1] != 4:
        raise ModelError(f"its input is {value.type}, rois {boxes.type}; expected (N, C, H, W) and (boxes, 4)")
    count = boxes.type.shape[0]
    images = ops.gather(value, cast_to(c.value(batch_indices), int64_), axis=0)
    grid, inside = [], []
    for axis, size in enumerate(c.sizes(crop_size, "crop_size")):
        begin, end = (slice_axis(boxes, 1, i, i + 1) for i in (axis, axis + 2))
        at, kept = _positions(c, begin, end, size, value.type.shape[2 + axis], mode == "nearest")
        shape = (count, size, 1) if axis == 0 else (count, 1, size)
        grid.append(ops.reshape(at, shape=shape))
        inside.append(ops.reshape(kept, shape=(count, 1, *shape[1:])))
    full = (count, grid[0].type.shape[1], grid[1].type.shape[2], 1)
    pairs = ops.concat(
        *(ops.reshape(ops.broadcast_to(at, shape=full[:3]), shape=full) for at in reversed(grid)), axis=3
    )
    found = ops.grid_sample(cast_to(images, float32), pairs, mode="linear", padding="border", align_corners=0)
    beyond = number(c.builder, extrapolation_value, float32)
    return cast_to(ops.where(ops.logical_and(*inside), found, beyond), value.type.dtype)


def _positions(c: Importer, begin: Value, end: Value, size: Size, length: Size, nearest: bool) -> tuple[Any, Any]:
    """Where the elements of boxes lie on an axis, from -1 to 1 between its ends, and whether they lie on it."""
    last = cast_to(size_value(c, length - 1), float32)
    steps = cast_to(size_value(c, size - 1), float32)
    index = along(iota(c.builder, size, float32), 1, 2)
    first, width = ops.mul(begin, last), ops.mul(ops.sub(end, begin), last)
    single = ops.equal(steps, 0.0)
    share = ops.where(single, number(c.builder, 0.5, float32), ops.div(index, ops.maximum(steps, 1.0)))
    at = ops.add(first, ops.mul(share, width))
    kept = ops.logical_and(ops.greater_equal(at, 0.0), ops.less_equal(at, last))
    if nearest:
        at = ops.floor(ops.add(at, 0.5))
    return ops.sub(ops.div(ops.add(ops.mul(at, 2.0), 1.0), ops.add(last, 1.0)), 1.0), kept
