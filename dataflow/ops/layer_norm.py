"""Normalization of each example by itself: layer norm, and RMS norm as the same without centering.

Instance and group norm are this op over a reshaped tensor, with a scale and shift per channel behind it.
"""

from __future__ import annotations

from typing import Any

from ..ir.dims import Shape
from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import TensorType
from ..ir.value import Value
from .infer import alike, need, need_float, need_no_cotangent, normal_axis

_ATTRIBUTES: dict[str, Any] = {"axis": -1, "epsilon": 1e-5, "center": 1}


def _parts(name: str, x: TensorType, axis: int) -> tuple[Shape, Shape]:
    """The sizes that count the rows, and those of a row."""
    need_float(name, x)
    at = normal_axis(name, axis, x.rank)
    return x.shape[:at], x.shape[at:]


def _infer(
    x: TensorType,
    scale: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    axis: int,
    epsilon: float,
    center: int,
) -> tuple[TensorType, ...]:
    rows, row = _parts("layer_norm", x, axis)
    for label, vector in (("scale", scale), ("bias", bias)):
        if vector is None:
            continue
        fits = vector.shape == row or not (x.is_bound and vector.is_bound)
        need(fits and vector.dtype == x.dtype, f"layer_norm: {label} is {vector}; expected {TensorType(x.dtype, row)}")
    return x, TensorType(x.dtype, rows), TensorType(x.dtype, rows)


def _gradient(node: Node, dy: Value | None, *kept: Value | None) -> tuple[Value, ...] | None:
    need_no_cotangent(node, *kept)
    if dy is None:
        return None
    x, scale = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    mean, inverse = node.outputs[1:]
    assert x is not None and x.builder is not None
    made = x.builder.add(layer_norm_grad, (dy, x, scale, mean, inverse), node.attributes)
    dx, dscale, dbias = made.outputs
    assert dx is not None and dscale is not None and dbias is not None
    return dx, dscale, dbias


def _cost(node: Node) -> int:
    value = node.outputs[0]
    assert value is not None
    return 8 * value.type.elements


layer_norm: Op = Op(
    "layer_norm",
    ("x", "scale?", "bias?"),
    _infer,
    outputs=("y", "+mean", "+inverse_deviation"),
    attributes=_ATTRIBUTES,
    gradient=_gradient,
    inplace=((0, 0),),
    cost=_cost,
    doc="y = (x - mean) / sqrt(variance + epsilon) scale + bias over the axes from ``axis`` on; with center = 0 the "
    "mean is taken as 0 (RMS norm); mean and 1 / sqrt(variance + epsilon) have the sizes before ``axis``",
)


def _grad_infer(
    dy: TensorType,
    x: TensorType,
    scale: TensorType | None,
    mean: TensorType,
    inverse: TensorType,
    *,
    axis: int,
    epsilon: float,
    center: int,
) -> tuple[TensorType, ...]:
    rows, columns = _parts("layer_norm_grad", x, axis)
    row = TensorType(x.dtype, columns)
    alike("layer_norm_grad: x and dy", x, dy)
    alike("layer_norm_grad: a row of x and scale", row, *(() if scale is None else (scale,)))
    alike("layer_norm_grad: rows of x, mean and inverse_deviation", TensorType(x.dtype, rows), mean, inverse)
    return x, row, row


layer_norm_grad: Op = Op(
    "layer_norm_grad",
    ("dy", "x", "scale?", "mean", "inverse_deviation"),
    _grad_infer,
    outputs=("dx", "+dscale", "+dbias"),
    attributes=_ATTRIBUTES,
    inplace=((0, 0), (0, 1)),
    cost=_cost,
    doc="g = dy scale; dx = inverse (g - mean(g) - x^ mean(g x^)), x^ = (x - mean) inverse; without centering the "
    "middle term is left out; dscale = sum of dy x^ over the rows, dbias = sum of dy",
)

OPS = (layer_norm, layer_norm_grad)
