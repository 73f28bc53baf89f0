"""Converters of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import ops
from dataflow.errors import ModelError
from dataflow.plugin import least_size

from ..converters import Collector
from ..emit import full, slice_axis
from ..importer import Importer
from ..tensor import Tensor

T = Tensor
operator = Collector()


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
            count, span = (size + step - 1) // step, (k - 1) * gap
            small, large = _halves((count - 1) * step + span + 1 - size if span else 0, span + 1 >= step)
            before.append(small if auto_pad == "SAME_UPPER" else large)
            after.append(large if auto_pad == "SAME_UPPER" else small)
        around = (*before, *after)
    elif auto_pad == "VALID":
        around = (0,) * (2 * spatial)
    return {"strides": steps, "pads": around, "dilations": gaps}


def _halves(total: Any, positive: bool = False) -> tuple[Any, Any]:
    """The two sides of a padding, the smaller first; none where it is negative, as it isn't where ``positive``."""
    if not positive:
        total = -least_size([0, -total])
    return total // 2, total - total // 2


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
        full = (size - 1) * steps[axis] + (kernel[axis] - 1) * gaps[axis] + 1 + extra[axis]  # before padding
        if output_shape is None and not auto_pad.startswith("SAME"):
            if auto_pad == "VALID":
                around[axis] = around[axis + spatial] = 0
            sizes.append(full - around[axis] - around[axis + spatial])
            continue
        wanted = size * steps[axis] if output_shape is None else output_shape[axis - spatial]
        small, large = _halves(full - wanted)
        around[axis], around[axis + spatial] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        sizes.append(wanted)
    shape = (value.type.shape[0], weight.type.shape[1] * group, *sizes)
    y = ops.conv_grad_input(
        value, weight, input_shape=shape, strides=steps, pads=tuple(around), dilations=gaps, groups=group
    )
    if bias is None:
        return y
    return ops.add(y, ops.reshape(c.weight(bias), shape=(1, shape[1], *(1,) * spatial)))


@operator("Col2Im", 18)
def Col2Im(
    c: Importer,
    x: T,
    image_shape: T,
    block_shape: T,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    image, kernel = c.sizes(image_shape, "image_shape"), c.ints(block_shape, "block_shape")
    ones = (1,) * len(kernel)
    return ops.col2im(
        c.value(x), image=tuple(image), kernel=kernel, strides=tuple(strides or ones),
        pads=tuple(pads or (0,) * 2 * len(kernel)), dilations=tuple(dilations or ones),
    )  # fmt: skip


@operator("CausalConvWithState", 27)
def CausalConvWithState(
    c: Importer,
    x: T,
    w: T,
    bias: T | None = None,
    past_state: T | None = None,
    *,
    activation: str = "none",
) -> Any:
    value, weight = c.value(x), c.weight(w)
    if value.type.rank != 3 or weight.type.rank != 3 or weight.type.shape[1] != 1:
        raise ModelError(
            f"input is {value.type}, weight {weight.type}; expected (batch, channels, length) and (channels, 1, size)"
        )
    batch, channels, length = value.type.shape
    before = weight.type.sizes[2] - 1
    if past_state is None:
        past = full(c.builder, (batch, channels, before), 0.0, value.type.dtype)
    else:
        past = c.value(past_state)
    extended = ops.concat(past, value, axis=2)
    added = None if bias is None else c.weight(bias)
    y = ops.conv(extended, weight, added, strides=(1,), pads=(0, 0), dilations=(1,), groups=weight.type.sizes[0])
    if activation != "none":
        y = ops.mul(y, ops.sigmoid(y))
    return y, slice_axis(extended, 2, length, length + before)
