"""Pooling over one to three spatial axes: x is (N, C, spatial...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..ir.dims import Dim, Shape, Size, least_size
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op, PerAxis
from ..ir.types import TensorType, int32
from ..ir.value import Value
from .conv import check_window
from .infer import alike, need_float, need_number, need_real, need_shape, operand, product
from .scatter import gather_elements
from .shape import reshape

_WINDOW: dict[str, Any] = {
    "kernel": REQUIRED,
    "strides": REQUIRED,  # 1 in ONNX, the kernel in PyTorch: to be said
    "pads": PerAxis(0, ends=2),
    "dilations": PerAxis(1),
    "ceil_mode": False,
}


def _sizes(
    name: str,
    shape: Shape,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[Size],
    dilations: Sequence[int],
    ceil_mode: bool,
) -> tuple[Size, ...]:
    """The windows along each axis, by ONNX's formula; refused where it gives fewer than none."""
    spatial = len(shape) - 2
    if not 1 <= spatial <= 3:
        raise InputError(f"{name}: the input has {len(shape)} axes; expected 3 to 5")
    check_window(
        name,
        spatial,
        ("kernel", kernel, 1),
        ("strides", strides, 1),
        ("pads", pads, 2),
        ("dilations", dilations, 1),
    )
    sizes: list[Size] = []
    for i in range(spatial):
        before, after = pads[i], pads[i + spatial]
        span = dilations[i] * (kernel[i] - 1)
        if any(not isinstance(pad, Dim) and pad > span for pad in (before, after)):
            raise InputError(f"{name}: pads {tuple(pads)} hold all of a window of axis {i}")
        last = shape[2 + i] + before + after - span - 1 + (strides[i] - 1 if ceil_mode else 0)
        size = last // strides[i] + 1 if strides[i] != 1 else last + 1
        if ceil_mode and (isinstance(size, Dim) or size > 0):  # no window begins in the padding behind
            size = least_size([size, (shape[2 + i] + before - 1) // strides[i] + 1])
        if 0 in shape and not isinstance(size, Dim):
            size = max(size, 0)
        # What is cut off of a quotient below 0 isn't agreed upon; without it there is no window.
        nothing = size == 0 and (ceil_mode or last % strides[i] == 0)
        if not (isinstance(size, Dim) or size > 0 or nothing or 0 in shape):
            raise InputError(f"{name}: the kernel {tuple(kernel)} is larger than the padded input")
        sizes.append(size)
    return tuple(sizes)


def _max_infer(x: TensorType, **window: Any) -> tuple[TensorType, TensorType]:
    need_real("max_pool", x)
    shape = (*x.shape[:2], *_sizes("max_pool", x.shape, **window))
    return TensorType(x.dtype, shape), TensorType(int32, shape)


def _max_gradient(node: Node, dy: Value, *_: Value | None) -> Value:
    x, indices = node.inputs[0], node.outputs[1]
    assert x is not None
    return max_pool_grad(dy, indices, input_shape=x.type.shape)


def _window_cost(node: Node) -> int:
    value = node.outputs[0] if node.op in (max_pool, avg_pool) else node.inputs[0]
    assert value is not None
    count = 1
    for size in node.attributes.get("kernel", ()):
        count *= size
    return value.type.elements * count


max_pool: Op = Op(
    "max_pool",
    ("x",),
    _max_infer,
    outputs=("y", "+indices"),
    attributes=_WINDOW,
    gradient=_max_gradient,
    cost=_window_cost,
    doc="the largest of each window; indices: where it lies in the plane of its channel, flat, without padding",
)


def _max_grad_infer(dy: TensorType, indices: TensorType, *, input_shape: Shape) -> TensorType:
    if indices.dtype != int32:
        raise InputError(f"max_pool_grad: indices are {indices}; expected int32")
    need_number("max_pool_grad", dy)
    need_shape("max_pool_grad", input_shape)
    alike("max_pool_grad: dy and indices", TensorType(int32, dy.shape), indices)
    planes = TensorType(dy.dtype, tuple(input_shape[:2]))
    if not (len(input_shape) == dy.rank >= 2):
        raise InputError(f"max_pool_grad: dy is {dy}, the input's shape {tuple(input_shape)}")
    alike("max_pool_grad: samples and channels", TensorType(dy.dtype, dy.shape[:2]), planes)
    return TensorType(dy.dtype, tuple(input_shape))


def _max_grad_gradient(node: Node, g: Value) -> tuple[Value, None]:
    """The cotangent of each dy is that of the element where its maximum was."""
    indices = operand(node, 1)
    planes, pooled = g.type.shape[:2], indices.type.shape
    flat = reshape(g, shape=(*planes, product(g.type.shape[2:])))
    found = gather_elements(flat, reshape(indices, shape=(*planes, product(pooled[2:]))), axis=2)
    return reshape(found, shape=pooled), None


max_pool_grad: Op = Op(
    "max_pool_grad",
    ("dy", "indices"),
    _max_grad_infer,
    attributes={"input_shape": REQUIRED},
    gradient=_max_grad_gradient,
    doc="zeros with each dy added where its maximum was",
)


def _avg_infer(x: TensorType, *, count_include_pad: bool, **window: Any) -> TensorType:
    need_float("avg_pool", x)
    return TensorType(x.dtype, (*x.shape[:2], *_sizes("avg_pool", x.shape, **window)))


def _avg_gradient(node: Node, dy: Value) -> Value:
    x = node.inputs[0]
    assert x is not None
    return avg_pool_grad(dy, input_shape=x.type.shape, **node.attributes)


avg_pool: Op = Op(
    "avg_pool",
    ("x",),
    _avg_infer,
    attributes={**_WINDOW, "count_include_pad": False},
    gradient=_avg_gradient,
    cost=_window_cost,
    doc="the mean of each window, of its elements inside x, or of all with padding as zeros",
)


def _avg_grad_infer(dy: TensorType, *, input_shape: Shape, count_include_pad: bool, **window: Any) -> TensorType:
    need_float("avg_pool_grad", dy)
    need_shape("avg_pool_grad", input_shape)
    pooled = TensorType(dy.dtype, (*input_shape[:2], *_sizes("avg_pool_grad", input_shape, **window)))
    alike("avg_pool_grad: dy and what the pool gives", dy, pooled)
    return TensorType(dy.dtype, tuple(input_shape))


def _avg_grad_gradient(node: Node, g: Value) -> Value:
    window = {key: value for key, value in node.attributes.items() if key != "input_shape"}
    return avg_pool(g, **window)


avg_pool_grad: Op = Op(
    "avg_pool_grad",
    ("dy",),
    _avg_grad_infer,
    attributes={"input_shape": REQUIRED, **_WINDOW, "count_include_pad": False},
    gradient=_avg_grad_gradient,
    cost=_window_cost,
    doc="each dy distributed evenly over its window",
)

OPS = (max_pool, max_pool_grad, avg_pool, avg_pool_grad)
