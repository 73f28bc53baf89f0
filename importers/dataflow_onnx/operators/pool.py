"""Converters of pooling and unpooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import Dim, TensorType, Value, int64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..dynamic_sizes import size_value
from ..emit import cast_to, full, iota, number, upcast
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
    value = c.value(x)
    y, index = c.builder.add(ops.max_pool, (value,), window).outputs
    wanted = len(c.node.outputs) > 1 and c.node.outputs[1]
    return (y, _flat_indices(c, value, index, storage_order)) if wanted else y


def _flat_indices(c: Importer, x: Value, index: Value | None, storage_order: int) -> Any:
    """Indices into all of ``x`` from those into planes; 1 counts the first axis of a plane fastest."""
    assert index is not None
    planes, sizes = product(x.type.shape[:2]), x.type.shape[2:]
    at = ops.cast(index, to=int64)
    if storage_order:
        rest, at = at, number(c.builder, 0, int64)
        for axis, size in reversed(list(enumerate(sizes))):
            length = size_value(c, size)
            apart = size_value(c, product(sizes[:axis]))
            at = ops.add(at, ops.mul(ops.mod(rest, length), apart))
            rest = ops.div(rest, length)
    first = ops.mul(iota(c.builder, planes), size_value(c, product(sizes)))
    return ops.add(at, ops.reshape(first, shape=(*x.type.shape[:2], *(1,) * len(sizes))))


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
    return cast_to(p_norm(upcast(value), p, range(2, value.type.rank)), value.type.dtype)


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
    """The mean of each window's powers, with padding as zeros, by the size of the window."""
    value = c.value(x)
    if p < 1:
        raise ModelError(f"p is {p}; expected at least 1")
    given = _pool_window(
        c, x, kernel_shape, auto_pad=auto_pad, ceil_mode=ceil_mode, dilations=dilations, pads=pads, strides=strides
    )
    pooled = ops.avg_pool.infer(value.type, **given, count_include_pad=True)
    assert isinstance(pooled, TensorType)
    if 0 in pooled.shape:
        return full(c.builder, pooled.shape, 0.0, pooled.dtype)
    # Where sizes are rounded up, the last window has more padding behind it, but at most a stride less one.
    spatial, around = value.type.rank - 2, given["pads"]
    more = [step - 1 if ceil_mode else 0 for step in given["strides"]]
    behind = [n + extra for n, extra in zip(around[spatial:], more, strict=True)]
    window = {**given, "pads": (0,) * (2 * spatial), "ceil_mode": 0}
    raised = upcast(value)
    powers = ops.abs(raised) if p == 1 else ops.mul(raised, raised) if p == 2 else ops.pow(ops.abs(raised), float(p))
    padded = ops.pad(powers, pads=(0, 0, *around[:spatial], 0, 0, *behind))
    mean = ops.avg_pool(padded, **window, count_include_pad=True)
    rank = value.type.rank
    mean = ops.slice(mean, starts=(0,) * rank, stops=pooled.shape, steps=(1,) * rank)
    total = ops.mul(mean, float(product(kernel_shape)))
    found = total if p == 1 else ops.sqrt(total) if p == 2 else ops.pow(total, 1.0 / p)
    return cast_to(found, pooled.dtype)


def _shape_pooled(c: Importer, indices: Value) -> Any:
    """The shape that indices count through, where a pooling of this graph gave them; else None."""
    waiting = [indices]
    while waiting:
        maker = c.builder.producer(waiting.pop())
        if maker is not None and maker.op is ops.max_pool:
            pooled = maker.inputs[0]
            return None if pooled is None else pooled.type.shape
        if maker is not None and maker.op in (ops.cast, ops.add, ops.reshape):
            waiting.extend(v for v in maker.inputs if v is not None)
    return None


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
    wanted = None if output_shape is None else tuple(c.sizes(output_shape, "output_shape"))
    at = c.value(indices)
    shape = (None if wanted is None else _shape_pooled(c, at)) or (*value.type.shape[:2], *sizes)
    zeros = full(c.builder, (product(shape),), 0.0, value.type.dtype)
    count = (product(value.type.shape),)
    index = ops.reshape(at, shape=count)
    y = ops.scatter_elements(zeros, index, ops.reshape(value, shape=count), axis=0, reduction="none")
    y = ops.reshape(y, shape=shape)
    if wanted is None or wanted == shape:
        return y
    if len(wanted) != len(shape) or any(not isinstance(n, Dim) and n < 0 for n in wanted):
        raise ModelError(f"output_shape is {wanted} for {value.type}")
    return ops.slice_grad(y, shape=wanted, starts=(0,) * len(shape), stops=shape, steps=(1,) * len(shape))
