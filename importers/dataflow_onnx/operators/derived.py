"""Converters of operators that others make up: norms, windows, losses, reversed and unpooled tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataflow import Value, ops
from dataflow.errors import ModelError
from dataflow.ir.dims import Dim
from dataflow.ir.types import DType, float32, float64, int64

from ..converters import Collector
from ..dynamic_sizes import size_value
from ..importer import Importer, Tensor
from ..shape_eval import axes_in, axis_in, product
from .arithmetic import dtype_of
from .layers import window_of

T = Tensor
operator = Collector()


def places(c: Importer, count: Any, dtype: DType = int64) -> Any:
    """0, 1, ... before ``count``."""
    return c.builder.add(ops.range_, (), {"start": 0, "limit": count, "delta": 1, "dtype": dtype}).outputs[0]


def _along(vector: Value, axis: int, rank: int) -> Any:
    """A vector that broadcasts along an axis."""
    return ops.reshape(vector, shape=tuple(vector.type.shape[0] if i == axis else 1 for i in range(rank)))


# ---- norms ------------------------------------------------------------------------------------------------


def _p_norm(value: Value, p: int, axes: Sequence[int]) -> Any:
    if p == 1:
        return ops.reduce_sum(ops.abs(value), axes=tuple(axes), keepdims=1)
    if p == 2:
        return ops.sqrt(ops.reduce_sum(ops.mul(value, value), axes=tuple(axes), keepdims=1))
    if p < 1:
        raise ModelError(f"p is {p}; expected at least 1")
    total = ops.reduce_sum(ops.pow(ops.abs(value), float(p)), axes=tuple(axes), keepdims=1)
    return ops.pow(total, 1.0 / p)


@operator("LpNormalization")
def LpNormalization(c: Importer, x: T, *, axis: int = -1, p: int = 2) -> Any:
    value = c.value(x)
    norm = _p_norm(value, p, [axis_in(axis, value.type.rank)])
    zero, one = (c.builder.constant(np.asarray(n, value.type.dtype.numpy)) for n in (0, 1))
    return ops.div(value, ops.where(ops.equal(norm, zero), one, norm))


@operator("MeanVarianceNormalization", 9)
def MeanVarianceNormalization(c: Importer, x: T, *, axes: Sequence[int] = (0, 2, 3)) -> Any:
    value = c.value(x)
    over = tuple(axes_in(axes, value.type.rank))
    centered = ops.sub(value, ops.reduce_mean(value, axes=over, keepdims=1))
    variance = ops.reduce_mean(ops.mul(centered, centered), axes=over, keepdims=1)
    return ops.div(centered, ops.add(ops.sqrt(variance), 1e-9))


@operator("GlobalLpPool", 2)
def GlobalLpPool(c: Importer, x: T, *, p: int = 2) -> Any:
    value = c.value(x)
    return _p_norm(value, p, range(2, value.type.rank))


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


@operator("SwiGLU", 28)
def SwiGLU(c: Importer, a: T, b: T, *, alpha: float = 1.0) -> Any:
    gate = c.value(a)
    return ops.mul(ops.mul(gate, ops.sigmoid(ops.mul(gate, alpha))), c.value(b))


# ---- tensors made of numbers ------------------------------------------------------------------------------


@operator("EyeLike", 9)
def EyeLike(c: Importer, x: T, *, dtype: int | None = None, k: int = 0) -> Any:
    shape = x.type.shape
    if len(shape) != 2:
        raise ModelError(f"its input is {x.type}; expected a matrix")
    row, column = (_along(places(c, n), i, 2) for i, n in enumerate(shape))
    hits = ops.equal(ops.sub(column, row), c.builder.constant(np.array(k)))
    return ops.cast(hits, to=x.type.dtype if dtype is None else dtype_of(dtype))


def _cosine_window(name: str, factors: Sequence[float]) -> None:
    @operator(name, 17)
    def window(c: Importer, size: T, *, output_datatype: int = 1, periodic: int = 1) -> Any:
        count = c.sizes(size, "the size")[0]
        span = ops.cast(size_value(c, count if periodic else count - 1), to=float64)
        turn = ops.div(ops.mul(places(c, count, float64), 2 * math.pi), span)
        y: Any = None
        for order, factor in enumerate(factors):
            term = ops.mul(ops.cos(ops.mul(turn, float(order))), factor)
            y = term if y is None else ops.add(y, term)
        return ops.cast(y, to=dtype_of(output_datatype))


_cosine_window("HannWindow", (0.5, -0.5))
_cosine_window("HammingWindow", (25 / 46, -21 / 46))
_cosine_window("BlackmanWindow", (0.42, -0.5, 0.08))

# ---- losses -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Labels:
    """Classes that can index, and which of them count.

    Attributes:
        index: int64, 0 where the label is ignored.
        counts: bool, or None: all.
    """

    index: Value
    counts: Value | None

    @staticmethod
    def of(c: Importer, target: Value, ignored: int | None) -> _Labels:
        index = target if target.type.dtype == int64 else ops.cast(target, to=int64)
        if ignored is None:
            return _Labels(index, None)
        counts = ops.logical_not(ops.equal(index, c.builder.constant(np.array(ignored))))
        return _Labels(ops.where(counts, index, c.builder.constant(np.array(0))), counts)

    def column(self, value: Value) -> Any:
        """One number per label, along axis 1."""
        shape = self.index.type.shape
        return ops.reshape(value, shape=(shape[0], 1, *shape[1:]))

    def counted(self, value: Value) -> Any:
        """Zeros where the label is ignored: what is there, infinite or NaN, has no part in the loss or a gradient."""
        if self.counts is None:
            return value
        counts = self.counts if value.type.rank == self.index.type.rank else self.column(self.counts)
        zero = value.builder.scalar(0.0, value.type.dtype)  # type: ignore[union-attr]
        return ops.where(counts, value, zero)


def _likelihood(logs: Value, labels: _Labels, weight: Value | None, reduction: str) -> Any:
    """The negative of the entry that the label names, along axis 1."""
    if reduction not in ("none", "sum", "mean"):
        raise ModelError(f"reduction {reduction!r} is not known")
    shape, dtype = labels.index.type.shape, logs.type.dtype
    chosen = ops.gather_elements(logs, labels.column(labels.index), axis=1)
    terms = labels.counted(ops.neg(ops.reshape(chosen, shape=shape)))
    share: Any = None
    if weight is not None:
        share = labels.counted(ops.gather(weight, labels.index, axis=0))
        terms = ops.mul(terms, share)
    elif labels.counts is not None:
        share = ops.cast(labels.counts, to=dtype)
    if reduction == "none":
        return terms
    axes = tuple(range(len(shape)))
    total = ops.reduce_sum(terms, axes=axes, keepdims=0)
    if reduction == "sum":
        return total
    if share is None:
        return ops.reduce_mean(terms, axes=axes, keepdims=0)
    return ops.div(total, ops.reduce_sum(share, axes=axes, keepdims=0))


@operator("NegativeLogLikelihoodLoss", 12)
def NegativeLogLikelihoodLoss(
    c: Importer, x: T, target: T, weight: T | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Any:
    given = None if weight is None else c.value(weight)
    return _likelihood(c.value(x), _Labels.of(c, c.value(target), ignore_index), given, reduction)


@operator("SoftmaxCrossEntropyLoss", 12)
def SoftmaxCrossEntropyLoss(
    c: Importer,
    scores: T,
    labels: T,
    weights: T | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Any:
    value, target = c.value(scores), _Labels.of(c, c.value(labels), ignore_index)
    given = None if weights is None else c.value(weights)
    logs = counted = ops.log_softmax(value, axis=1)
    if target.counts is not None:
        counted = ops.log_softmax(target.counted(value), axis=1)
    loss = _likelihood(counted, target, given, reduction)
    return (loss, logs) if len(c.node.outputs) > 1 else loss


# ---- places -----------------------------------------------------------------------------------------------


@operator("ReverseSequence", 10)
def ReverseSequence(c: Importer, x: T, sequence_lens: T, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    value = c.value(x)
    if {batch_axis, time_axis} != {0, 1}:
        raise ModelError(f"batch_axis {batch_axis}, time_axis {time_axis}; expected 0 and 1")
    lengths = c.value(sequence_lens)
    lengths = lengths if lengths.type.dtype == int64 else ops.cast(lengths, to=int64)
    time = _along(places(c, value.type.shape[time_axis]), time_axis, 2)
    length = _along(lengths, batch_axis, 2)
    turned = ops.sub(ops.sub(length, 1), time)
    index = ops.where(ops.less(time, length), turned, ops.add(time, ops.mul(length, 0)))
    index = ops.reshape(index, shape=(*value.type.shape[:2], *(1,) * (value.type.rank - 2)))
    return ops.gather_elements(value, ops.broadcast_to(index, shape=value.type.shape), axis=time_axis)


@operator("TensorScatter", 24)
def TensorScatter(
    c: Importer, past_cache: T, update: T, write_indices: T | None = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    """New rows of each sample's cache, from its own place on."""
    cache, new = c.value(past_cache), c.value(update)
    rank = cache.type.rank
    at = axis_in(axis, rank)
    if at == 0 or mode not in ("linear", "circular"):
        raise ModelError(f"axis {axis} and mode {mode!r}: expected an axis behind the batch, linear or circular")
    index = _along(places(c, new.type.shape[at]), at, rank)
    if write_indices is not None:
        starts = c.value(write_indices)
        starts = starts if starts.type.dtype == int64 else ops.cast(starts, to=int64)
        index = ops.add(index, _along(starts, 0, rank))
    if mode == "circular":
        index = ops.mod(index, size_value(c, cache.type.shape[at]))
    index = ops.broadcast_to(index, shape=new.type.shape)
    return ops.scatter_elements(cache, index, new, axis=at, reduction="none")


@operator("CenterCropPad", 18)
def CenterCropPad(c: Importer, x: T, shape: T, *, axes: Sequence[int] | None = None) -> Any:
    value = c.value(x)
    rank = value.type.rank
    chosen = list(range(rank)) if axes is None else axes_in(axes, rank)
    wanted = list(value.type.shape)
    for axis, size in zip(chosen, c.ints(shape, "the shape"), strict=True):
        wanted[axis] = size
    if any(isinstance(n, Dim) for n in (value.type.shape[a] for a in chosen)):
        raise ModelError(f"its input is {value.type}: the axes that change must have fixed sizes")
    starts, stops, before, after = [0] * rank, list(value.type.shape), [0] * rank, [0] * rank
    for axis in chosen:
        have, want = int(value.type.shape[axis]), int(wanted[axis])
        if want < have:
            starts[axis] = (have - want) // 2
            stops[axis] = starts[axis] + want
        else:
            before[axis] = (want - have) // 2
            after[axis] = want - have - before[axis]
    y = ops.slice(value, starts=tuple(starts), stops=tuple(stops), steps=(1,) * rank)
    return ops.pad(y, pads=(*before, *after), mode="constant") if any((*before, *after)) else y


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
    flat = {"shape": (product(shape),), "value": 0.0, "dtype": value.type.dtype}
    zeros = c.builder.add(ops.full, (), flat).outputs[0]
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


@operator("RandomNormalLike")
def RandomNormalLike(
    c: Importer, x: T, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Any:
    return _random(c, ops.random_normal, x.type.shape, dtype, x.type.dtype, seed, mean=mean, scale=scale)


@operator("RandomNormal")
def RandomNormal(
    c: Importer,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Any:
    return _random(c, ops.random_normal, tuple(shape), dtype, float32, seed, mean=mean, scale=scale)


@operator("RandomUniformLike")
def RandomUniformLike(
    c: Importer, x: T, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Any:
    return _random(c, ops.random_uniform, x.type.shape, dtype, x.type.dtype, seed, low=low, high=high)


@operator("RandomUniform")
def RandomUniform(
    c: Importer,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Any:
    return _random(c, ops.random_uniform, tuple(shape), dtype, float32, seed, low=low, high=high)


def _random(c: Importer, op: Any, shape: Any, number: int | None, like: DType, seed: float | None, **how: float) -> Any:
    """Numbers that are the same at every run: by the seed, and apart from those of other nodes."""
    dtype = like if number is None else dtype_of(number)
    stream = sum(node.op.effects == "random" for node in c.builder.nodes())
    bits = 0 if seed is None else int(np.float32(seed).view(np.uint32))
    key = c.builder.constant(np.array([bits, 0], np.uint64))
    drawn = dtype if dtype.nbytes(1) >= 4 and dtype.is_float else float32
    made = c.builder.add(op, (key,), {"shape": tuple(shape), "dtype": drawn, "stream": stream, **how}).outputs[0]
    return made if drawn == dtype else ops.cast(made, to=dtype)
