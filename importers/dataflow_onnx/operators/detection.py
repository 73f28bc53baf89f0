"""Converters of operators of detectors: pooled regions, and boxes that don't overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import Dim, DType, ops
from dataflow import int64 as int64_
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import cast_to, number, slice_axis
from ..importer import Importer
from ..tensor import Tensor

T = Tensor
operator = Collector()


def _align(c: Importer, x: T, rois: T, batch: T, half_pixel: bool, height: int, width: int, **how: Any) -> Any:
    value = c.value(x)
    regions = cast_to(c.value(rois), value.type.dtype)
    samples = cast_to(c.value(batch), int64_)
    return ops.roi_align(value, regions, samples, size=(height, width), half_pixel=half_pixel, **how)


@operator("RoiAlign", 10)
def RoiAlign_10(
    c: Importer,
    x: T,
    rois: T,
    batch_indices: T,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    """The centre of an element lies at its number."""
    how = {"mode": mode, "sampling_ratio": sampling_ratio, "spatial_scale": spatial_scale}
    return _align(c, x, rois, batch_indices, False, output_height, output_width, **how)


@operator("RoiAlign", 16)
def RoiAlign(
    c: Importer,
    x: T,
    rois: T,
    batch_indices: T,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Any:
    half = coordinate_transformation_mode == "half_pixel"
    how = {"mode": mode, "sampling_ratio": sampling_ratio, "spatial_scale": spatial_scale}
    return _align(c, x, rois, batch_indices, half, output_height, output_width, **how)


@operator("MaxRoiPool")
def MaxRoiPool(c: Importer, x: T, rois: T, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Any:
    value, regions = c.value(x), c.value(rois)
    batch = ops.reshape(slice_axis(regions, 1, 0, 1), shape=regions.type.shape[:1])
    corners = slice_axis(regions, 1, 1, 5)
    samples = ops.cast(batch, to=int64_)
    return ops.max_roi_pool(value, corners, samples, size=tuple(pooled_shape), spatial_scale=spatial_scale)


@operator("NonMaxSuppression", 10)
def NonMaxSuppression(
    c: Importer,
    boxes: T,
    scores: T,
    max_output_boxes_per_class: T | None = None,
    iou_threshold: T | None = None,
    score_threshold: T | None = None,
    *,
    center_point_box: int = 0,
) -> Any:
    """Rows for all boxes that may stay; how many do is a size that depends on data."""
    value, of = c.value(boxes), c.value(scores)
    dtype = of.type.dtype
    most = _one(c, max_output_boxes_per_class, 0, int64_)
    overlap = _one(c, iou_threshold, 0.0, dtype)
    least = None if score_threshold is None else _one(c, score_threshold, 0.0, dtype)
    samples, classes, count = of.type.shape
    limit = max_output_boxes_per_class
    if limit is not None and limit.known is not None and not isinstance(count, Dim):
        count = max(0, min(count, c.ints(limit, "max_output_boxes_per_class")[0]))
    rows = samples * classes * count
    selected, found = ops.non_max_suppression(value, of, most, overlap, least, rows=rows, center=center_point_box)
    return slice_axis(selected, 0, 0, c.count(found, "number of boxes"))


def _one(c: Importer, tensor: T | None, default: float, dtype: DType) -> Any:
    """An operand of one element as a scalar."""
    if tensor is None:
        return number(c.builder, default, dtype)
    value = c.value(tensor)
    if any(n != 1 for n in value.type.shape):
        raise ModelError(f"{tensor.name!r} is {value.type}; expected one number")
    return cast_to(ops.reshape(value, shape=()), dtype)
