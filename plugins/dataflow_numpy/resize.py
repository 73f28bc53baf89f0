"""Reference of resampling along an axis."""

from __future__ import annotations

import numpy as np

from dataflow.plugin import taps

from .arrays import Array, Attributes, Code, check_indices, upcast


def _resample(attributes: Attributes, x: Array, index: Array, weight: Array) -> Array:
    axis = attributes["axis"] % x.ndim
    rows = np.moveaxis(upcast(x), axis, -1)
    found = (rows[..., check_indices(index, x.shape[axis], "resample")] * upcast(weight)).sum(axis=-1)
    return np.moveaxis(found, -1, axis).astype(x.dtype)


def _resample_grad(attributes: Attributes, dy: Array, index: Array, weight: Array) -> Array:
    axis = attributes["axis"] % dy.ndim
    rows = np.moveaxis(upcast(dy), axis, 0)
    dx = np.zeros((attributes["size"], *rows.shape[1:]), rows.dtype)
    positions = check_indices(index, attributes["size"], "resample_grad")
    for tap in range(index.shape[1]):
        factors = upcast(weight)[:, tap].reshape(-1, *[1] * (rows.ndim - 1))
        np.add.at(dx, positions[:, tap], rows * factors)
    return np.moveaxis(dx, 0, axis).astype(dy.dtype)


def _resize(attributes: Attributes, x: Array) -> Array:
    sizes, scales, roi = attributes["sizes"], attributes["scales"], attributes["roi"]
    options = {key: attributes[key] for key in ("mode", "coordinates", "nearest", "cubic_a")}
    options |= {key: bool(attributes[key]) for key in ("exclude_outside", "antialias")}
    if 0 in x.shape or 0 in sizes:
        return np.zeros(sizes, x.dtype)
    nearest = attributes["mode"] == "nearest"  # elements as they are, of any dtype
    y = x if nearest else upcast(x)
    for axis, (size, result) in enumerate(zip(x.shape, sizes, strict=True)):
        scale = scales[axis] if scales else result / size
        if size == result and scale == 1.0 and attributes["coordinates"] != "tf_crop_and_resize":
            continue  # an axis that isn't resized stays, whatever its coordinates would be
        crop = (roi[axis], roi[axis + x.ndim]) if roi else (0.0, 1.0)
        index, weight = taps(size, result, scale, crop=crop, **options)
        if nearest:
            y = np.take(y, index[:, 0], axis=axis)
            continue
        y = np.moveaxis((np.moveaxis(y, axis, -1)[..., index] * weight).sum(axis=-1), -1, axis)
    return y.astype(x.dtype)


KERNELS: dict[str, Code] = {"resample": _resample, "resample_grad": _resample_grad, "resize": _resize}
