"""Converters of the operators that networks are made of: products, convolution, pooling, normalization, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Value, ops
from dataflow.errors import ModelError
from dataflow.ir.dims import Dim
from dataflow.ir.types import bool_

from ..converters import Collector
from ..importer import Importer, Tensor
from ..shape_eval import axis_in
from .shape import reshaped

T = Tensor
operator = Collector()


# ---- products -------------------------------------------------------------------------------------------


def _turned(x: Value, turn: int) -> Any:
    return ops.transpose(x, perm=(1, 0)) if turn else x


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
    y = ops.matmul(_turned(c.weight(a), transA), _turned(c.weight(b), transB))
    if alpha != 1.0:
        y = ops.mul(y, alpha)
    if bias is None or beta == 0.0:
        return y
    added = c.weight(bias)
    return ops.add(y, added if beta == 1.0 else ops.mul(added, beta))


@operator("MatMul")
def MatMul(c: Importer, a: T, b: T) -> Any:
    left, right = c.weight(a), c.weight(b)
    one, two = left.type.rank == 1, right.type.rank == 1
    if one:
        left = ops.reshape(left, shape=(1, left.type.shape[0]))
    if two:
        right = ops.reshape(right, shape=(right.type.shape[0], 1))
    y = ops.matmul(left, right)
    shape = list(y.type.shape)
    if one:
        del shape[-2]
    if two:
        del shape[-1]
    return ops.reshape(y, shape=tuple(shape)) if one or two else y


# ---- windows ---------------------------------------------------------------------------------------------


def window_of(
    shape: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    auto_pad: str,
) -> dict[str, Any]:
    """Strides, pads and dilations, with defaults filled in and ``auto_pad`` worked out."""
    spatial = len(shape) - 2
    steps = tuple(strides) if strides else (1,) * spatial
    gaps = tuple(dilations) if dilations else (1,) * spatial
    around = tuple(pads) if pads else (0,) * (2 * spatial)
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", ""):
        raise ModelError(f"auto_pad {auto_pad!r} is not known")
    if auto_pad.startswith("SAME"):
        before, after = [], []
        for size, k, step, gap in zip(shape[2:], kernel, steps, gaps, strict=True):
            if isinstance(size, Dim):
                raise ModelError(f"auto_pad {auto_pad} needs a fixed spatial size, got {size}; fix it when exporting")
            total = max(0, (-(-size // step) - 1) * step + (k - 1) * gap + 1 - size)
            small, large = total // 2, total - total // 2
            before.append(small if auto_pad == "SAME_UPPER" else large)
            after.append(large if auto_pad == "SAME_UPPER" else small)
        around = (*before, *after)
    elif auto_pad == "VALID":
        around = (0,) * (2 * spatial)
    return {"strides": steps, "pads": around, "dilations": gaps}


@operator("Conv")
def Conv(
    c: Importer,
    x: T,
    w: T,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    value, weight = c.value(x), c.weight(w)
    kernel = weight.type.sizes[2:]
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ModelError(f"kernel_shape is {tuple(kernel_shape)}, the weight is {weight.type}")
    window = window_of(value.type.shape, kernel, strides, pads, dilations, auto_pad)
    return ops.conv(value, weight, None if bias is None else c.weight(bias), **window, groups=group)


@operator("ConvTranspose")
def ConvTranspose(
    c: Importer,
    x: T,
    w: T,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    value, weight = c.value(x), c.weight(w)
    kernel = weight.type.sizes[2:]
    spatial = len(kernel)
    if value.type.rank != spatial + 2:
        raise ModelError(f"its input is {value.type}, its weight {weight.type}: they need the same number of axes")
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ModelError(f"kernel_shape is {tuple(kernel_shape)}, the weight is {weight.type}")
    steps, gaps = tuple(strides or (1,) * spatial), tuple(dilations or (1,) * spatial)
    extra = tuple(output_padding or (0,) * spatial)
    around = list(pads or (0,) * 2 * spatial)
    if {len(steps), len(gaps), len(extra), len(around) / 2} != {spatial}:
        raise ModelError(f"strides, pads, dilations and output_padding don't all fit {spatial} spatial axes")
    sizes: list[Any] = []
    for axis, size in enumerate(value.type.shape[2:]):
        whole = (size - 1) * steps[axis] + (kernel[axis] - 1) * gaps[axis] + 1 + extra[axis]  # before padding
        if output_shape is None and not auto_pad.startswith("SAME"):
            if auto_pad == "VALID":
                around[axis] = around[axis + spatial] = 0
            sizes.append(whole - around[axis] - around[axis + spatial])
            continue
        wanted = size * steps[axis] if output_shape is None else output_shape[axis - spatial]
        total = whole - wanted
        if isinstance(total, Dim):
            raise ModelError(f"output_shape with the size {size}: fix it when exporting")
        small, large = max(0, total) // 2, max(0, total) - max(0, total) // 2
        around[axis], around[axis + spatial] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        sizes.append(wanted)
    shape = (value.type.shape[0], weight.type.shape[1] * group, *sizes)
    y = ops.conv_grad_input(
        value, weight, input_shape=shape, strides=steps, pads=tuple(around), dilations=gaps, groups=group
    )
    if bias is None:
        return y
    return ops.add(y, ops.reshape(c.weight(bias), shape=(1, shape[1], *(1,) * spatial)))


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


# ---- normalization ----------------------------------------------------------------------------------------


def _batch_norm(c: Importer, x: T, scale: T, bias: T, mean: T, var: T, epsilon: float) -> Any:
    return ops.batch_norm(
        c.value(x),
        c.weight(scale),
        c.weight(bias),
        c.weight(mean, role="statistic"),
        c.weight(var, role="statistic"),
        epsilon=epsilon,
    )


@operator("BatchNormalization", 7)
def BatchNormalization_7(
    c: Importer,
    x: T,
    scale: T,
    bias: T,
    mean: T,
    var: T,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Any:
    if not spatial:
        raise ModelError("spatial=0, statistics per element, is not supported")
    return _batch_norm(c, x, scale, bias, mean, var, epsilon)


@operator("BatchNormalization", 14)
def BatchNormalization(
    c: Importer,
    x: T,
    scale: T,
    bias: T,
    mean: T,
    var: T,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Any:
    if not training_mode:
        return _batch_norm(c, x, scale, bias, mean, var, epsilon)
    operands = [c.value(t) for t in (x, scale, bias, mean, var)]
    return ops.batch_norm_train(*operands, epsilon=epsilon, momentum=momentum)


@operator("LRN")
def LRN(c: Importer, x: T, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    return ops.lrn(c.value(x), size=size, alpha=alpha, beta=beta, bias=bias)


def _softmax_family(onnx_name: str, op: Any) -> None:
    @operator(onnx_name)
    def over_the_rest(c: Importer, x: T, *, axis: int = 1) -> Any:
        """Until opset 12: over all axes from ``axis`` on, taken as one."""
        value = c.value(x)
        shape = value.type.shape
        at = axis_in(axis, len(shape))
        if all(not isinstance(n, Dim) and n == 1 for n in shape[at + 1 :]):
            return op(value, axis=at)
        flat = reshaped(value, [*shape[:at], -1])
        return ops.reshape(op(flat, axis=-1), shape=shape)

    @operator(onnx_name, 13)
    def along_one(c: Importer, x: T, *, axis: int = -1) -> Any:
        return op(c.value(x), axis=axis)


def _hardmax(x: Value, *, axis: int) -> Any:
    at = axis_in(axis, x.type.rank)
    if x.type.shape[at] == 0:
        return ops.copy(x)
    found = ops.argmax(x, axis=at, keepdims=0)
    return ops.one_hot(found, depth=x.type.shape[at], axis=at, dtype=x.type.dtype)


_softmax_family("Softmax", ops.softmax)
_softmax_family("LogSoftmax", ops.log_softmax)
_softmax_family("Hardmax", _hardmax)


def _kept(c: Importer, x: T, ratio: float) -> tuple[Any, ...]:
    """Dropout outside of training, and a mask that keeps everything where the file asks for one."""
    if not 0.0 <= ratio <= 1.0:
        raise ModelError(f"ratio is {ratio}; expected a number from 0 to 1")
    floats = x.type.dtype.is_float and x.array is None and 0.0 < ratio < 1.0
    count = sum(node.op.name == "dropout" for node in c.builder.nodes())
    y = ops.dropout(c.value(x), None, ratio=ratio, stream=count) if floats else x
    if len(c.node.outputs) < 2 or not c.node.outputs[1]:
        return (y,)
    attributes = {"shape": c.value(x).type.shape, "value": 1.0, "dtype": bool_}
    return y, c.builder.add(ops.full, (), attributes).outputs[0]


@operator("Dropout", 7)
def Dropout_7(c: Importer, x: T, *, ratio: float = 0.5) -> Any:
    return _kept(c, x, ratio)


@operator("Dropout", 12)
def Dropout(c: Importer, x: T, ratio: T | None = None, training_mode: T | None = None, *, seed: int = 0) -> Any:
    if training_mode is not None:
        on = training_mode.array
        if on is None or bool(np.asarray(on).any()):
            raise ModelError("the node drops in training mode; export the model in inference mode")
    return _kept(c, x, 0.5 if ratio is None else c.scalar(ratio, "ratio"))
