"""Convolution over one to three spatial axes: x is (N, C, spatial...), w is (O, C / groups, kernel...)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..ir.dims import Dim, Shape, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op, PerAxis
from ..ir.types import Array, TensorType
from ..ir.value import Value
from .infer import alike, builder_for, need_number, need_shape, product, same_dtype
from .reduce import reduce_sum
from .rules.channels_last import transposed, with_channels_last

_ATTRIBUTES: dict[str, Any] = {"strides": PerAxis(1), "pads": PerAxis(0, ends=2), "dilations": PerAxis(1), "groups": 1}


def window_size(size: Size, kernel: Size, stride: int, pads: Size, dilation: int) -> Size:
    """Windows along an axis of ``size`` elements with ``pads`` more in all."""
    span = size + pads - (dilation * (kernel - 1) + 1)
    if isinstance(span, Dim):
        return span // stride + 1 if stride != 1 else span + 1
    return 0 if span < 0 else span // stride + 1


MOST = 2**31 - 1
"""The largest stride, dilation, pad, kernel and number of groups, so that products of two fit in 63 bits."""


def check_window(name: str, spatial: int, *lists: tuple[str, Sequence[Size], int]) -> None:
    """Raises InputError unless each list has ``factor`` entries per spatial axis, from 0 or 1 to ``MOST``.

    Pads may be named sizes, as those that keep a size are; they are checked when they are bound.
    """
    for label, values, factor in lists:
        if len(values) != factor * spatial:
            raise InputError(
                f"{name}: {label} {tuple(values)} has {len(values)} entries; {factor * spatial} are needed for "
                f"{spatial} spatial axes"
            )
        least = 0 if label == "pads" else 1
        known = [int(v) for v in values if not (label == "pads" and isinstance(v, Dim))]
        if any(v < least for v in known):
            raise InputError(f"{name}: {label} {tuple(values)} must be at least {least}")
        if any(v > MOST for v in known):
            raise InputError(f"{name}: {label} {tuple(values)} must be at most {MOST}")


def _check(
    name: str, x: Shape, w: Shape, strides: Sequence[int], pads: Sequence[Size], dilations: Sequence[int], groups: int
) -> tuple[Size, ...]:
    """The spatial sizes of the result."""
    spatial = len(x) - 2
    if not 1 <= spatial <= 3:
        raise InputError(f"{name}: the input has {len(x)} axes; expected 3 to 5")
    if len(w) != len(x):
        raise InputError(f"{name}: the weight has {len(w)} axes, the input {len(x)}")
    kernel = tuple(d if isinstance(d, Dim) else int(d) for d in w[2:])  # named where a gradient is the weight
    check_window(
        name,
        spatial,
        ("kernel", tuple(1 if isinstance(d, Dim) else d for d in kernel), 1),
        ("strides", strides, 1),
        ("pads", pads, 2),
        ("dilations", dilations, 1),
    )
    if not 1 <= groups <= MOST:
        raise InputError(f"{name}: groups is {groups}; expected 1 to {MOST}")
    channels, filters = x[1], w[0]
    if not (isinstance(channels, Dim) or isinstance(w[1], Dim)) and channels != w[1] * groups:
        raise InputError(f"{name}: the input has {channels} channels, the weight takes {w[1]} x {groups} groups")
    if filters % groups != 0:
        raise InputError(f"{name}: {filters} filters don't divide into {groups} groups")
    sizes = []
    for i in range(spatial):
        size = window_size(x[2 + i], kernel[i], strides[i], pads[i] + pads[i + spatial], dilations[i])
        if not (isinstance(size, Dim) or size > 0 or x[2 + i] == 0 or x[0] == 0):
            raise InputError(
                f"{name}: the kernel {kernel} is larger than the padded input ({', '.join(map(str, x[2:]))})"
            )
        sizes.append(size)
    return tuple(sizes)


def _infer(x: TensorType, w: TensorType, bias: TensorType | None = None, **attributes: Any) -> TensorType:
    need_number("conv", x, w)
    dtype = same_dtype("conv", x, w)
    sizes = _check("conv", x.shape, w.shape, **attributes)
    if bias is not None and (bias.shape != (w.shape[0],) or bias.dtype != dtype):
        raise InputError(f"conv: bias is {bias}; expected {dtype}[{w.shape[0]}]")
    return TensorType(dtype, (x.shape[0], w.shape[0], *sizes))


def _gradient(node: Node, dy: Value) -> tuple[Value | None, ...]:
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    dx = conv_grad_input(dy, w, input_shape=x.type.shape, **node.attributes)
    dw = conv_grad_weight(x, dy, weight_shape=w.type.shape, **node.attributes)
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return dx, dw
    axes = (0, *range(2, dy.type.rank))
    return dx, dw, reduce_sum(dy, axes=axes, keepdims=False)


def _cost(node: Node) -> int:
    """Two operations per weight and element of the result, also of fused ops, or of dy for the gradients."""
    if node.op in (conv_grad_input, conv_last_grad_input):
        dy, weight = node.inputs[:2]
        assert dy is not None and weight is not None
        return 2 * dy.type.elements * int(product(weight.type.shape[1:]))
    if node.op in (conv_grad_weight, conv_last_grad_weight):
        dy = node.inputs[1]
        assert dy is not None
        return 2 * dy.type.elements * int(product(node.attributes["weight_shape"][1:]))
    result, weight = node.outputs[0], node.inputs[1]
    assert result is not None and weight is not None
    return 2 * result.type.elements * int(product(weight.type.shape[1:]))


conv: Op = Op(
    "conv",
    ("x", "w", "bias?"),
    _infer,
    attributes=_ATTRIBUTES,
    gradient=_gradient,
    cost=_cost,
    doc="y[n, o] = bias[o] + sum over c of x[n, c] correlated with w[o, c]; pads are (before..., after...)",
)


def _grad_input_infer(dy: TensorType, w: TensorType, *, input_shape: Shape, **attributes: Any) -> TensorType:
    need_number("conv_grad_input", dy, w)
    dtype = same_dtype("conv_grad_input", dy, w)
    sizes = _check("conv_grad_input", input_shape, w.shape, **attributes)
    fits = dy.shape == (input_shape[0], w.shape[0], *sizes)
    if not (fits or not dy.is_bound):
        raise InputError(f"conv_grad_input: dy is {dy}, the result of the convolution has {sizes} positions")
    return TensorType(dtype, tuple(input_shape))


def _window(node: Node) -> dict[str, Any]:
    return {key: node.attributes[key] for key in _ATTRIBUTES}


def _grad_input_gradient(node: Node, g: Value) -> tuple[Value, Value]:
    dy, w = node.inputs[:2]
    assert w is not None
    return conv(g, w, **_window(node)), conv_grad_weight(g, dy, weight_shape=w.type.shape, **_window(node))


conv_grad_input: Op = Op(
    "conv_grad_input",
    ("dy", "w"),
    _grad_input_infer,
    attributes={"input_shape": REQUIRED, **_ATTRIBUTES},
    gradient=_grad_input_gradient,
    cost=_cost,
    doc="the gradient of conv by x; also a transposed convolution",
)


def _grad_weight_infer(x: TensorType, dy: TensorType, *, weight_shape: Shape, **attributes: Any) -> TensorType:
    need_number("conv_grad_weight", x, dy)
    dtype = same_dtype("conv_grad_weight", x, dy)
    sizes = _check("conv_grad_weight", x.shape, weight_shape, **attributes)
    fits = dy.shape == (x.shape[0], weight_shape[0], *sizes)
    if not (fits or not dy.is_bound):
        raise InputError(f"conv_grad_weight: dy is {dy}, the result of the convolution has {sizes} positions")
    return TensorType(dtype, tuple(weight_shape))


def _grad_weight_gradient(node: Node, g: Value) -> tuple[Value, Value]:
    x, dy = node.inputs[:2]
    assert x is not None
    return conv_grad_input(dy, g, input_shape=x.type.shape, **_window(node)), conv(x, g, **_window(node))


conv_grad_weight: Op = Op(
    "conv_grad_weight",
    ("x", "dy"),
    _grad_weight_infer,
    attributes={"weight_shape": REQUIRED, **_ATTRIBUTES},
    gradient=_grad_weight_gradient,
    cost=_cost,
    doc="the gradient of conv by w",
)

# ---- windows back to an image -------------------------------------------------------------------------


def _col2im_infer(
    x: TensorType,
    *,
    image: Shape,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> TensorType:
    spatial = len(image)
    need_number("col2im", x)
    need_shape("col2im", image)
    if not (x.rank == 3 and spatial >= 1):
        raise InputError(f"col2im: x is {x}, the image {tuple(image)}; expected (N, C taps, windows)")
    lists = (("kernel", kernel, 1), ("strides", strides, 1), ("pads", pads, 2), ("dilations", dilations, 1))
    check_window("col2im", spatial, *lists)
    taps = product(tuple(kernel))
    channels = x.shape[1] // taps
    fits = isinstance(channels, Dim) or channels * taps == x.shape[1]
    if not fits:
        raise InputError(f"col2im: x is {x}; expected a multiple of the {taps} taps of kernel {tuple(kernel)}")
    counts = (
        window_size(n, kernel[i], strides[i], pads[i] + pads[i + spatial], dilations[i]) for i, n in enumerate(image)
    )
    windows = (TensorType(x.dtype, (n,)) for n in (x.shape[2], product(tuple(counts))))
    alike("col2im: the windows of x and of the image", *windows)
    return TensorType(x.dtype, (x.shape[0], channels, *image))


def col2im_elements(
    image: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> Array:
    """Per tap and window, (taps, windows), the flat element of the image; the number of elements for none."""
    total, element, outside = 1, np.zeros((1, 1), np.int64), np.zeros((1, 1), bool)
    for axis, size in enumerate(image):
        count = window_size(size, kernel[axis], strides[axis], pads[axis] + pads[axis + len(image)], dilations[axis])
        at = np.add.outer(np.arange(kernel[axis]) * dilations[axis], np.arange(int(count)) * strides[axis] - pads[axis])
        element = (element[:, None, :, None] * size + at[None, :, None]).reshape(-1, element.shape[1] * int(count))
        outside = (outside[:, None, :, None] | ((at < 0) | (at >= size))[None, :, None]).reshape(element.shape)
        total *= size
    return np.where(outside, total, element)


def _col2im(x: Value, *, image: Shape, kernel: Sequence[int], **window: Sequence[int]) -> Value:
    from .gather import index_add
    from .shape import reshape, slice_

    N, C, _ = x.type.shape
    if any(isinstance(n, Dim) for n in image):
        return _named_image(x, image, kernel, **window)
    sizes = [int(n) for n in image if not isinstance(n, Dim)]
    elements = col2im_elements(sizes, kernel, **window)
    channels, total = C // len(elements), math.prod(sizes)
    rows = reshape(x, shape=(N * channels, elements.size))
    summed = index_add(builder_for(x).constant(elements.reshape(-1)), rows, size=total + 1, axis=1)
    inside = slice_(summed, starts=(0, 0), stops=(N * channels, total), steps=(1, 1))
    return reshape(inside, shape=(N, channels, *sizes))


def _named_image(
    x: Value,
    image: Shape,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> Value:
    from .rules.image_of_taps import image_of_taps
    from .shape import slice_

    spatial = len(image)
    padded = tuple(n + pads[i] + pads[i + spatial] for i, n in enumerate(image))
    counts = tuple(window_size(n, kernel[i], strides[i], 0, dilations[i]) for i, n in enumerate(padded))
    found = image_of_taps(x, padded, counts, kernel, strides, dilations)
    ends = (*found.type.shape[:2], *(pads[i] + n for i, n in enumerate(image)))
    return slice_(found, starts=(0, 0, *pads[:spatial]), stops=ends, steps=(1,) * len(ends))


col2im: Op = Op(
    "col2im",
    ("x",),
    _col2im_infer,
    attributes={
        "image": REQUIRED,
        "kernel": REQUIRED,
        "strides": REQUIRED,
        "pads": REQUIRED,
        "dilations": REQUIRED,
    },
    decompose=_col2im,
    doc="(N, C, *image): each column of x (N, C taps, windows) added to the elements of its window; what a convolution "
    "reads, summed back",
)

# ---- with channels last -------------------------------------------------------------------------------


def _last_infer(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    addend: TensorType | None = None,
    *,
    relu: bool,
    **window: Any,
) -> TensorType:
    y = with_channels_last(_infer)(x, w, bias, **window)
    if addend is not None and addend != y:
        raise InputError(f"conv_last: the addend is {addend}; expected what the convolution gives, {y}")
    return y


def _conv_last(
    x: Value, w: Value, bias: Value | None = None, addend: Value | None = None, *, relu: bool, **window: Any
) -> Any:
    from .activation import relu as rectified
    from .arithmetic import add

    y = transposed(conv)(x, w, bias, **window)
    y = y if addend is None else add(y, addend)
    return rectified(y) if relu else y


conv_last: Op = Op(
    "conv_last",
    ("x", "w", "bias?", "addend?"),
    _last_infer,
    attributes={**_ATTRIBUTES, "relu": False},
    decompose=_conv_last,
    cost=_cost,
    doc="conv with channels last: x (N, spatial..., C), w (O, kernel..., C / groups); the addend is like the result; "
    "with ``relu`` max(y, 0)",
)
conv_last_grad_input: Op = Op(
    "conv_last_grad_input",
    ("dy", "w"),
    with_channels_last(_grad_input_infer, "input_shape"),
    attributes=conv_grad_input.attributes,
    decompose=transposed(conv_grad_input, "input_shape"),
    cost=_cost,
    doc="conv_grad_input of tensors with channels last, as conv_last has them",
)
conv_last_grad_weight: Op = Op(
    "conv_last_grad_weight",
    ("x", "dy"),
    with_channels_last(_grad_weight_infer, "weight_shape"),
    attributes=conv_grad_weight.attributes,
    decompose=transposed(conv_grad_weight, "weight_shape"),
    cost=_cost,
    doc="conv_grad_weight of tensors with channels last, as conv_last has them",
)

OPS = (conv, conv_grad_input, conv_grad_weight, col2im, conv_last, conv_last_grad_input, conv_last_grad_weight)
