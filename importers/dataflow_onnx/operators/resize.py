"""Converters of Resize and of Upsample, which it replaced."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dataflow import Dim, DType, Value, float32, float64, ops
from dataflow.errors import ModelError
from dataflow.plugin import coordinates_of

from ..converters import Collector
from ..emit import cast_to, number
from ..importer import Importer
from ..shape_eval import axes_in
from ..tensor import Tensor

T = Tensor
operator = Collector()

# Where a scale doesn't give a whole size, "align_corners" is ambiguous: ONNX's tests put the last corner at the size
# before it is rounded down, PyTorch, whose exporter writes such scales, and onnxruntime at the last element.
# Both also leave an axis as it is that keeps its size (4 elements by 1.1), where ONNX's tests move it.
_AT_ELEMENTS = "pytorch"


def _scaled(size: Any, scale: float) -> Any:
    """The size of an axis, rounded down; of a named one by the fraction that the scale stands for.

    The product is of float32, as onnxruntime's: 10 elements by 0.7 are 7, and less in float64.
    """
    if not np.isfinite(scale) or scale <= 0:
        raise ModelError(f"a scale is {scale}; expected a number above 0")
    if not isinstance(size, Dim):
        return int(np.floor(np.float32(size) * np.float32(scale)))
    ratio = Fraction(scale).limit_denominator(4096)
    if abs(float(ratio) - scale) > 1e-6 * scale:
        raise ModelError(f"the size {size} is scaled by {scale}; fix it when exporting")
    return size * ratio.numerator // ratio.denominator


def _where_sizes_change(
    c: Importer, shape: Sequence[Any], sizes: Sequence[Any], scales: list[float], mode: str
) -> list[float]:
    """The scales; 1 for axes that keep their size in a file of PyTorch's exporter, except of cubic interpolation."""
    if c.record.producer != _AT_ELEMENTS or mode == "cubic":
        return scales
    return [1.0 if n == size else s for n, size, s in zip(shape, sizes, scales, strict=True)]


def _numbers(c: Importer, tensor: T | None, what: str) -> list[float] | None:
    """Stored floats; None where the operand is left out or empty."""
    if tensor is None or 0 in tensor.type.shape:
        return None
    return [float(n) for n in c.numbers(tensor, what).reshape(-1)]


def _kept_ratio(
    shape: Sequence[Any], sizes: list[Any], axes: Sequence[int], policy: str
) -> tuple[list[Any], list[float]]:
    """Sizes that scale all of ``axes`` alike: as large as fits within those wanted, or as small as covers them.

    Returns:
        The sizes, and the scale of each axis before rounding; none where the sizes give them.
    """
    if policy == "stretch":
        return sizes, []
    if policy not in ("not_larger", "not_smaller"):
        raise ModelError(f"keep_aspect_ratio_policy {policy!r} is not known")
    if any(isinstance(n, Dim) for n in (*(shape[a] for a in axes), *(sizes[a] for a in axes))):
        raise ModelError(f"keep_aspect_ratio_policy {policy!r} needs fixed sizes; one is named, or depends on data")
    ratios = [Fraction(sizes[a], shape[a]) for a in axes]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    found = list(sizes)
    for axis in axes:
        found[axis] = int(ratio * shape[axis] + Fraction(1, 2))  # halves go up
    return found, [float(ratio) if axis in axes else 1.0 for axis in range(len(shape))]


def _resize(
    c: Importer, x: Value, sizes: Sequence[Any], scales: Sequence[float], extrapolation: float, **how: Any
) -> Any:
    y = ops.resize(x, sizes=tuple(sizes), scales=tuple(scales), **how)
    if how["coordinates"] != "tf_crop_and_resize":
        return y
    inside = np.ones((), bool)
    rank, roi = x.type.rank, how["roi"]
    for axis, (size, result) in enumerate(zip(x.type.shape, sizes, strict=True)):
        begin, end = np.float32(roi[axis]), np.float32(roi[axis + rank])
        if size == result and begin == 0 and end == 1:
            continue  # the axis as it is
        if isinstance(size, Dim) or isinstance(result, Dim):
            raise ModelError("tf_crop_and_resize needs fixed sizes of what is cropped; fix them when exporting")
        at = coordinates_of(np.arange(result, dtype=np.float32), size, result, 1.0, "tf_crop_and_resize", begin, end)
        good = (at >= 0) & (at <= size - 1)
        inside = inside & good.reshape([-1 if i == axis else 1 for i in range(rank)])
    if inside.all():
        return y
    outside = number(c.builder, extrapolation, x.type.dtype)
    return ops.where(c.builder.constant(inside), y, outside)


@operator("Resize", 10)
def Resize_10(c: Importer, x: T, scales: T, *, mode: str = "nearest") -> Any:
    """Asymmetric; nearest rounds down, but up along axes that shrink, as in ONNX's tests of that version."""
    value, found = c.value(x), _scales(c, scales)
    shrinks = [min(scale, 1.0) for scale in found]
    if mode != "nearest" or min(shrinks, default=1.0) == 1:
        return scaled_by(c, value, found, mode)
    grown = scaled_by(c, value, [max(scale, 1.0) for scale in found], mode)
    return scaled_by(c, grown, shrinks, mode, nearest="ceil")


@operator("Upsample", 7)
def Upsample_7(c: Importer, x: T, *, scales: Sequence[float], mode: str = "nearest") -> Any:
    return scaled_by(c, c.value(x), list(scales), mode)


@operator("Upsample", 9)
def Upsample(c: Importer, x: T, scales: T, *, mode: str = "nearest") -> Any:
    return scaled_by(c, c.value(x), _scales(c, scales), mode)


def _scales(c: Importer, scales: T) -> list[float]:
    found = _numbers(c, scales, "scales")
    if found is None:
        raise ModelError("the scales are left out")
    return found


def scaled_by(
    c: Importer,
    value: Value,
    scales: list[float],
    mode: str,
    coordinates: str = "asymmetric",
    nearest: str = "floor",
) -> Any:
    """``value`` resized by numbers; where it takes the nearest element, it rounds as ``nearest`` says."""
    if len(scales) != value.type.rank:
        raise ModelError(f"{len(scales)} scales for {value.type}")
    sizes = [_scaled(n, s) for n, s in zip(value.type.shape, scales, strict=True)]
    kind = "linear" if mode == "bilinear" else mode
    scales = _where_sizes_change(c, value.type.shape, sizes, scales, kind)
    return _resize(c, value, sizes, scales, 0.0, mode=kind, coordinates=coordinates, nearest=nearest)


@operator("Resize", 11)
def Resize(
    c: Importer,
    x: T,
    roi: T | None = None,
    scales: T | None = None,
    sizes: T | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Any:
    value = c.value(x)
    rank, shape = value.type.rank, list(value.type.shape)
    chosen = list(range(rank)) if axes is None else axes_in(axes, rank)
    factors = _numbers(c, scales, "scales")
    wanted: list[Any] = list(shape)
    full_scales: list[float] = []
    if factors is not None:
        if len(factors) != len(chosen):
            raise ModelError(f"{len(factors)} scales for {len(chosen)} axes")
        full_scales = [1.0] * rank
        for axis, factor in zip(chosen, factors, strict=True):
            full_scales[axis], wanted[axis] = factor, _scaled(shape[axis], factor)
        if coordinate_transformation_mode == "align_corners" and not antialias and c.record.producer == _AT_ELEMENTS:
            full_scales = []
        elif not antialias:
            full_scales = _where_sizes_change(c, shape, wanted, full_scales, mode)
    elif sizes is not None:
        cropped = coordinate_transformation_mode == "tf_crop_and_resize" and c.known_sizes(sizes) is None
        fixed = cropped or keep_aspect_ratio_policy != "stretch"
        given = c.ints(sizes, "sizes") if fixed else c.sizes(sizes, "sizes")
        if len(given) != len(chosen):
            raise ModelError(f"{len(given)} sizes for {len(chosen)} axes")
        for axis, size in zip(chosen, given, strict=True):
            wanted[axis] = size if isinstance(size, Dim) else int(size)
        wanted = wanted if c.freed is None else c.freed.resized(shape, wanted)
        wanted, full_scales = _kept_ratio(shape, wanted, chosen, keep_aspect_ratio_policy)
    else:
        raise ModelError("neither scales nor sizes are given")
    region: tuple[float, ...] = ()
    if coordinate_transformation_mode == "tf_crop_and_resize":
        corners = _numbers(c, roi, "roi")
        if corners is None or len(corners) != 2 * len(chosen):
            raise ModelError(f"roi has {len(corners or ())} numbers; expected {2 * len(chosen)}")
        starts, ends = [0.0] * rank, [1.0] * rank
        for index, axis in enumerate(chosen):
            starts[axis], ends[axis] = corners[index], corners[index + len(chosen)]
        region = (*starts, *ends)
    dtype = value.type.dtype
    if mode != "nearest" and not dtype.is_float and (dtype.kind not in "iu" or dtype.bits > 32):
        raise ModelError(f"its input is {value.type}; only floats and integers of at most 32 bits are interpolated")
    as_it_is = dtype.is_float or (mode == "nearest" and not region)
    floats = value if as_it_is else ops.cast(value, to=float32 if dtype.bits < 32 else float64)
    how: dict[str, Any] = {
        "mode": mode, "coordinates": coordinate_transformation_mode, "nearest": nearest_mode,
        "cubic_a": cubic_coeff_a, "exclude_outside": exclude_outside, "antialias": antialias, "roi": region,
    }  # fmt: skip
    if dtype.kind not in "iu" or mode == "nearest":
        return cast_to(_resize(c, floats, wanted, full_scales, extrapolation_value, **how), dtype)
    if not antialias or region:
        return cast_to(_within(_resize(c, floats, wanted, full_scales, extrapolation_value, **how), dtype), dtype)
    # As Pillow and onnxruntime: axis by axis from the last on, each rounded.
    for axis in reversed(range(rank)):
        sizes_now = [*floats.type.shape[:axis], wanted[axis], *floats.type.shape[axis + 1 :]]
        scales_now = [s if i == axis else 1.0 for i, s in enumerate(full_scales)]
        if wanted[axis] != shape[axis]:
            floats = _within(_resize(c, floats, sizes_now, scales_now, extrapolation_value, **how), dtype, rounded=True)
    return cast_to(floats, dtype)


def _within(y: Value, dtype: DType, *, rounded: bool = False) -> Any:
    """Interpolated numbers within an integer dtype: as onnxruntime does, towards zero, or rounded as Pillow does."""
    limits = np.iinfo(dtype.numpy)
    y = ops.floor(ops.add(y, 0.5)) if rounded else y
    return ops.minimum(ops.maximum(y, float(limits.min)), float(limits.max))
