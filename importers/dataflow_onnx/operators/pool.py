"""Converters of pooling and unpooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import full
from ..importer import Importer
from ..shape_eval import product
from ..tensor import Tensor
from .conv import window_of
from .reduce import p_norm

T = Tensor
operator = Collector()


def _pool_window(c: Importer, x: T, kernel: Sequence[int], **given: Any) -> dict[str, Any]:
    ceil_mode = given.pop("ceil_mode")
    shape = x.type.shape
    if len(kernel) != len(shape) - 2:
        raise ModelError(f"kernel_shape {tuple(kernel)} for {x.type}: expected {len(shape) - 2} sizes")
    window = window_of(shape, kernel, **given)
    return {"kernel": tuple(kernel), **window, "ceil_mode": ceil_mode}


@operator("MaxPool")
def MaxPool(
    c: Importer,
    x: T,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Any:
    window = _pool_window(
        c, x, kernel_shape, auto_pad=auto_pad, ceil_mode=ceil_mode, dilations=dilations, pads=pads, strides=strides
    )
    return ops.max_pool(c.value(x), **window)


@operator("AveragePool")
def AveragePool(
    c: Importer,
    x: T,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    window = _pool_window(
        c, x, kernel_shape, auto_pad=auto_pad, ceil_mode=ceil_mode, dilations=dilations, pads=pads, strides=strides
    )
    return ops.avg_pool(c.value(x), **window, count_include_pad=count_include_pad)


@operator("GlobalAveragePool")
def GlobalAveragePool(c: Importer, x: T) -> Any:
    value = c.value(x)
    return ops.reduce_mean(value, axes=tuple(range(2, value.type.rank)), keepdims=1)


@operator("GlobalMaxPool")
def GlobalMaxPool(c: Importer, x: T) -> Any:
    value = c.value(x)
    return ops.reduce_max(value, axes=tuple(range(2, value.type.rank)), keepdims=1)


@operator("GlobalLpPool", 2)
def GlobalLpPool(c: Importer, x: T, *, p: int = 2) -> Any:
    value = c.value(x)
    return p_norm(value, p, range(2, value.type.rank))


@operator("LpPool", 2)
def LpPool(
    c: Importer,
    x: T,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """A convolution of each channel's powers with ones."""
    value = c.value(x)
    channels = value.type.shape[1]
    if ceil_mode or isinstance(channels, Dim) or p < 1:
        raise ModelError(f"ceil_mode {ceil_mode} with {channels} channels and p={p} is not supported")
    window = window_of(value.type.shape, kernel_shape, strides, pads, dilations, auto_pad)
    ones = c.builder.constant(np.ones((channels, 1, *kernel_shape), value.type.dtype.numpy))
    powers = ops.abs(value) if p == 1 else ops.pow(ops.abs(value), float(p))
    y = ops.conv(powers, ones, **window, groups=channels)
    return y if p == 1 else ops.pow(y, 1.0 / p)


@operator("MaxUnpool", 9)
def MaxUnpool(
    c: Importer,
    x: T,
    indices: T,
    output_shape: T | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    value = c.value(x)
    spatial = value.type.rank - 2
    steps, around = list(strides or (1,) * spatial), list(pads or (0,) * 2 * spatial)
    if not len(kernel_shape) == len(steps) == len(around) / 2 == spatial:
        raise ModelError(f"kernel_shape, strides and pads don't all fit {spatial} spatial axes")
    sizes = [
        (n - 1) * step + kernel - around[i] - around[i + spatial]
        for i, (n, step, kernel) in enumerate(zip(value.type.shape[2:], steps, kernel_shape, strict=True))
    ]
    shape = (*value.type.shape[:2], *sizes)
    zeros = full(c.builder, (product(shape),), 0.0, value.type.dtype)
    count = (product(value.type.shape),)
    index = ops.reshape(c.value(indices), shape=count)
    y = ops.scatter_elements(zeros, index, ops.reshape(value, shape=count), axis=0, reduction="none")
    y = ops.reshape(y, shape=shape)
    if output_shape is None:
        return y
    wanted = c.sizes(output_shape, "output_shape")
    more = [w - n for w, n in zip(wanted, shape, strict=True)]
    if any(isinstance(n, Dim) or n < 0 for n in more):
        raise ModelError(f"output_shape {wanted} is smaller than {shape}, or depends on data or a named size")
    return ops.pad(y, pads=(*(0,) * len(more), *more), mode="constant") if any(more) else y
