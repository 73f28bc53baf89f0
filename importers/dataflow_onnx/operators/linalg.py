"""Converters of matrix products, determinants, Fourier transforms, and the matrix that sums a spectrum over bands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dataflow import Dim, Value, float32, float64, int64, ops
from dataflow.errors import ModelError
from dataflow.plugin import Size

from ..block_weights import takes
from ..converters import Collector
from ..dynamic_sizes import size_value, within
from ..emit import along, cast_to, full, iota, number, slice_axis
from ..importer import Importer
from ..shape_eval import axis_in
from ..tensor import Tensor
from .cast import dtype_of

T = Tensor
operator = Collector()


def _transposed(x: Value, wanted: int) -> Any:
    return ops.transpose(x, perm=(1, 0)) if wanted else x


@operator("Gemm", 7)
def Gemm(
    c: Importer,
    a: T,
    b: T,
    bias: T | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    left, right = _transposed(c.weight(a), transA), c.weight(b)
    y = _block_product(c, left, right, bool(transB))
    if y is None:
        y = ops.matmul(left, _transposed(right, transB))
    if alpha != 1.0:
        y = ops.mul(y, alpha)
    if bias is None or beta == 0.0:
        return y
    added = c.weight(bias)
    return ops.add(y, added if beta == 1.0 else ops.mul(added, beta))


@operator("MatMul")
def MatMul(c: Importer, a: T, b: T) -> Any:
    left, right = c.weight(a), c.weight(b)
    y = _block_product(c, left, right)
    if y is not None:
        return y
    return product_of(c, left, right, ops.matmul)


def product_of(c: Importer, left: Value, right: Value, multiply: Callable[[Value, Value], Any]) -> Any:
    """The product of matrices, or of a vector, whose axis the product doesn't have; ``multiply`` takes matrices."""
    one, two = left.type.rank == 1, right.type.rank == 1
    if one:
        left = ops.reshape(left, shape=(1, left.type.shape[0]))
    if two:
        right = ops.reshape(right, shape=(right.type.shape[0], 1))
    if c.freed is not None:
        left, right = c.freed.aligned(c, left, right, last=2)
    y = multiply(left, right)
    shape = list(y.type.shape)
    if one:
        del shape[-2]
    if two:
        del shape[-1]
    return ops.reshape(y, shape=tuple(shape)) if one or two else y


@operator("Det", 11)
def Det(c: Importer, x: T) -> Any:
    return ops.det(c.value(x))


@operator("DFT", 17)
def DFT_17(
    c: Importer, x: T, dft_length: T | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Any:
    return transformed(c, x, dft_length, axis, inverse, onesided)


@operator("DFT", 20)
def DFT(
    c: Importer, x: T, dft_length: T | None = None, axis: T | None = None, *, inverse: int = 0, onesided: int = 0
) -> Any:
    return transformed(c, x, dft_length, -2 if axis is None else c.ints(axis, "the axis")[0], inverse, onesided)


def transformed(c: Importer, x: T, dft_length: T | None, axis: int, inverse: int, onesided: int) -> Any:
    """The Fourier transform along an axis, of pairs of real and imaginary parts along the last one."""
    value = _complex(c, c.value(x))
    at = axis_in(axis, value.type.rank)
    if at == value.type.rank - 1:
        raise ModelError(f"its axis is {axis}; expected another one than the last, that of real and imaginary parts")
    length = value.type.shape[at]
    if dft_length is not None:
        count = c.sizes(dft_length, "dft_length")[0]
    else:
        count = 2 * (length - 1) if inverse and onesided else length
    if isinstance(count, int) and count < 1:
        raise ModelError(f"it has {count} points; expected 1 or more")
    if inverse and onesided:
        y = _real_inverse(c, value, at, count)
    else:
        y = ops.dft(_resized(c, value, at, count), axis=at, inverse=inverse)
        if onesided:
            y = slice_axis(y, at, 0, count // 2 + 1)
    if inverse:
        y = ops.div(y, cast_to(size_value(c, count), y.type.dtype))
    return cast_to(y, x.type.dtype)


def _complex(c: Importer, x: Value) -> Any:
    """Pairs of real and imaginary parts, in a dtype that is transformed; of real numbers, pairs with 0."""
    if x.type.rank < 2 or x.type.shape[-1] not in (1, 2):
        raise ModelError(f"its input is {x.type}; expected 1 number or 2 along the last axis")
    x = x if x.type.dtype.bits > 16 else ops.cast(x, to=float32)
    return x if x.type.shape[-1] == 2 else ops.concat(x, full(c.builder, x.type.shape, 0.0, x.type.dtype), axis=-1)


def _resized(c: Importer, x: Value, axis: int, count: Size) -> Any:
    """With so many points along an axis: zeros at the end, or what is beyond left out."""
    missing = count - x.type.shape[axis]
    if isinstance(missing, int) and missing == 0:
        return x
    none = (0,) * x.type.rank
    if isinstance(missing, Dim):  # of either sign
        zeros = full(c.builder, tuple(count if i == axis else n for i, n in enumerate(x.type.shape)), 0.0, x.type.dtype)
        return slice_axis(ops.concat(x, zeros, axis=axis), axis, 0, count)
    return ops.pad(x, pads=(*none, *(missing if i == axis else 0 for i in range(x.type.rank))))


def _real_inverse(c: Importer, x: Value, axis: int, count: Size) -> Any:
    """The sum over all frequencies of a real signal, from the first half of them.

    The other half are conjugates: each counts twice but the first and, of an even number, that in the middle.
    """
    bins = count // 2 + 1
    half = _resized(c, x, axis, bins)
    index = iota(c.builder, bins)
    middle = ops.equal(ops.mul(index, 2), size_value(c, count))
    once = ops.logical_or(ops.equal(index, number(c.builder, 0, int64)), middle)
    times = ops.where(once, number(c.builder, 1, x.type.dtype), number(c.builder, 2, x.type.dtype))
    weighted = ops.mul(half, along(times, axis, x.type.rank))
    return slice_axis(ops.dft(_resized(c, weighted, axis, count), axis=axis, inverse=1), -1, 0, 1)


@operator("STFT", 17)
def STFT(
    c: Importer, signal: T, frame_step: T, window: T | None = None, frame_length: T | None = None, *, onesided: int = 1
) -> Any:
    given = c.value(signal)
    if given.type.rank == 2:  # as PyTorch's exporter writes it, and onnxruntime reads it
        given = ops.reshape(given, shape=(*given.type.shape, 1))
    if given.type.rank != 3:
        raise ModelError(f"its signal is {signal.type}; expected (batch, length, 1) or (batch, length, 2)")
    value = _complex(c, given)
    step, length = c.sizes(frame_step, "frame_step")[0], value.type.shape[1]
    if frame_length is not None:
        points = c.sizes(frame_length, "frame_length")[0]
    else:
        points = length if window is None else window.type.shape[0]
    if any(isinstance(n, int) and n < 1 for n in (step, points)):
        raise ModelError(f"frame_step is {step}, and a frame has {points} points; expected 1 or more")
    frames = (length - points) // step + 1
    first = ops.mul(iota(c.builder, frames), size_value(c, step))
    index = ops.add(along(first, 0, 2), along(iota(c.builder, points), 1, 2))
    framed = ops.gather(value, index, axis=1)
    if window is not None:
        weights = along(cast_to(c.value(window), value.type.dtype), 2, 4)
        framed = ops.mul(framed, within(weights, framed.type.shape))
    y = ops.dft(framed, axis=2)
    return cast_to(slice_axis(y, 2, 0, points // 2 + 1) if onesided else y, signal.type.dtype)


@operator("MelWeightMatrix", 17)
def MelWeightMatrix(
    c: Importer,
    num_mel_bins: T,
    dft_length: T,
    sample_rate: T,
    lower_edge_hertz: T,
    upper_edge_hertz: T,
    *,
    output_datatype: int = 1,
) -> Any:
    """A triangle per band, from the lower to the upper neighbour's center; the centers lie evenly on the mel scale."""
    bands, length = c.sizes(num_mel_bins, "num_mel_bins")[0], c.sizes(dft_length, "dft_length")[0]
    rate, lower, upper = (
        ops.reshape(cast_to(c.value(t), float64), shape=()) for t in (sample_rate, lower_edge_hertz, upper_edge_hertz)
    )
    natural = 2595 / math.log(10)  # mels of a factor e
    low, high = (ops.mul(ops.log(ops.add(ops.div(edge, 700.0), 1.0)), natural) for edge in (lower, upper))
    step = ops.div(ops.sub(high, low), cast_to(size_value(c, bands + 2), float64))
    mels = ops.add(ops.mul(iota(c.builder, bands + 2, float64), step), low)
    hertz = ops.mul(ops.sub(ops.exp(ops.div(mels, natural)), 1.0), 700.0)
    points = ops.floor(ops.div(ops.mul(hertz, cast_to(size_value(c, length + 1), float64)), rate))
    left, center, right = (along(slice_axis(points, 0, i, bands + i), 1, 2) for i in range(3))
    at = along(iota(c.builder, length // 2 + 1, float64), 0, 2)
    rising = ops.div(ops.sub(at, left), ops.maximum(ops.sub(center, left), 1.0))
    falling = ops.div(ops.sub(right, at), ops.maximum(ops.sub(right, center), 1.0))
    inside = ops.maximum(ops.minimum(rising, falling), 0.0)
    peak = number(c.builder, 1.0, float64)
    return cast_to(ops.where(ops.equal(at, center), peak, inside), dtype_of(output_datatype))


def _block_product(c: Importer, x: Value, weight: Value, transposed: bool = False) -> Any:
    """The product of x with a stored weight that the file dequantizes, as it is stored; None of another.

    Quantized x is left to products of integers.
    """
    found = c.blocks.get(weight)
    maker = c.builder.producer(x)
    if found is None or not takes(x, weight) or (maker is not None and maker.op is ops.dequantize):
        return None
    path = c.node.name or c.node.outputs[0]
    y, elements = (found.other() if transposed else found).product(c.builder, x, f"{path}.blocks")
    c.block_names[elements] = (*([f"{c.node.scope}.weight"] if c.node.scope else []), f"{path}.weight")
    return y
