"""Normalization: over the batch, over neighbouring channels, and over the last axes (layer norm and RMS norm)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..ir.dims import Dim
from ..ir.graph import Node
from ..ir.op import REQUIRED, MultiOp, Op
from ..ir.types import TensorType
from ..ir.value import Value
from .activation import relu
from .arithmetic import add, mul, neg, sub
from .cast import cast
from .conv import MOST
from .infer import alike, floats_alike, need, need_float, operand, result
from .reduce import over_count
from .rules.batch_norm import behind_relu, inverse_deviation, normalized, normalized_grad, per_channel, train_normalized
from .rules.layer_norm import norm_grad_infer, norm_grad_sums_infer, norm_infer, row_norm
from .rules.norm_gradients import (
    of_moments,
    per_row,
    response_grad,
    response_of_scale,
    row_grad,
    row_grad_sums,
    train_grad,
)
from .shape import broadcast_to


def _check_channels(name: str, x: TensorType, **vectors: TensorType) -> None:
    need_float(name, x)
    if x.rank < 2:
        raise InputError(f"{name}: x is {x}; expected (N, C, ...)")
    for label, type_ in vectors.items():
        fits = type_.rank == 1 and (type_.shape[0] == x.shape[1] or isinstance(x.shape[1], Dim))
        if not fits:
            raise InputError(f"{name}: {label} is {type_}; expected one element for each of {x.shape[1]} channels")


def _infer(
    x: TensorType,
    scale: TensorType,
    bias: TensorType,
    mean: TensorType,
    variance: TensorType,
    *,
    epsilon: float,
    momentum: float,
) -> TensorType:
    _check_channels("batch_norm", x, scale=scale, bias=bias, mean=mean, variance=variance)
    return x


def _gradient(node: Node, dy: Value) -> tuple[Value, ...]:
    """With fixed statistics: a scale and shift per channel."""
    x, scale, _, mean, variance = node.inputs
    assert x is not None and scale is not None and mean is not None and variance is not None
    epsilon = node.attributes["epsilon"]
    dx, dscale, dbias = batch_norm_grad(dy, x, scale, mean, variance, epsilon=epsilon)
    inverse = inverse_deviation(variance, epsilon)
    dmean = neg(mul(dbias, mul(scale, inverse)))
    dvariance = mul(mul(dscale, scale), mul(mul(inverse, inverse), -0.5))
    return dx, dscale, dbias, dmean, dvariance


batch_norm: Op = Op(
    "batch_norm",
    ("x", "scale", "bias", "mean", "variance"),
    _infer,
    attributes={"epsilon": 1e-5, "momentum": 0.9},
    gradient=_gradient,
    decompose=normalized,
    inplace=((0, 0),),
    doc="y = (x - mean) / sqrt(variance + epsilon) scale + bias, per channel (axis 1); momentum is batch_norm_train's, "
    "for a Trainer that updates the statistics",
)


def _grad_infer(
    dy: TensorType, x: TensorType, scale: TensorType, mean: TensorType, variance: TensorType, *, epsilon: float
) -> tuple[TensorType, ...]:
    _check_channels("batch_norm_grad", x, scale=scale, mean=mean, variance=variance)
    alike("batch_norm_grad: x and dy", x, dy)
    return x, scale, scale


batch_norm_grad: MultiOp = MultiOp(
    "batch_norm_grad",
    ("dy", "x", "scale", "mean", "variance"),
    _grad_infer,
    outputs=("dx", "dscale", "dbias"),
    attributes={"epsilon": 1e-5},
    decompose=normalized_grad,
    inplace=((0, 0), (0, 1)),
    doc="dx = dy scale / sqrt(variance + epsilon); dscale = sum(dy (x - mean)) / sqrt(variance + epsilon); "
    "dbias = sum(dy), per channel",
)


def _train_infer(
    x: TensorType,
    scale: TensorType,
    bias: TensorType,
    mean: TensorType,
    variance: TensorType,
    known_mean: TensorType | None = None,
    known_inverse: TensorType | None = None,
    *,
    epsilon: float,
    momentum: float,
) -> tuple[TensorType, ...]:
    _check_channels("batch_norm_train", x, scale=scale, bias=bias, running_mean=mean, running_variance=variance)
    need((known_mean is None) == (known_inverse is None), "batch_norm_train: both statistics are known, or neither is")
    if known_mean is not None and known_inverse is not None:
        _check_channels("batch_norm_train", x, mean=known_mean, inverse_deviation=known_inverse)
    if 0 in (x.shape[0], *x.shape[2:]):
        raise InputError(f"batch_norm_train: x is {x}; of no elements there is no mean")
    return x, mean, variance, mean, variance


def _train_gradient(
    node: Node, dy: Value | None, dmean: Value | None, dvariance: Value | None, *kept: Value | None
) -> list[Value | None]:
    x = operand(node)
    found: list[Value | None] = [None] * 5
    if dy is not None:
        scale, bias, mean, inverse = operand(node, 1), operand(node, 2), result(node, 3), result(node, 4)
        if node.op is batch_norm_train_relu:
            found[:3] = batch_norm_train_relu_grad(dy, x, scale, bias, mean, inverse)
        else:
            found[:3] = batch_norm_train_grad(dy, x, scale, mean, inverse)
    momentum, axes = node.attributes["momentum"], (0, *range(2, x.type.rank))

    def over_x(statistic: Value) -> Value:
        """It in the dtype of x, which may be another one, to broadcast over x."""
        same = statistic.type.dtype == x.type.dtype
        return per_channel(statistic if same else cast(statistic, to=x.type.dtype), x.type.rank)

    for index, cotangent in enumerate((dmean, dvariance)):
        if cotangent is not None:
            found[3 + index] = mul(cotangent, momentum)
            share = over_count(mul(cotangent, 1.0 - momentum), x, axes=axes, keepdims=False)
            slope = broadcast_to(over_x(share), shape=x.type.shape)
            if index == 1:
                slope = mul(mul(slope, 2.0), sub(x, over_x(result(node, 3))))
            found[0] = slope if found[0] is None else add(found[0], slope)
    if any(v is not None for v in kept):
        mean, inverse = (over_x(result(node, index)) for index in (3, 4))
        dkept = [None if v is None else over_x(v) for v in kept]
        more = of_moments(x, mean, inverse, *dkept, axes=axes)
        found[0] = more if found[0] is None or more is None else add(found[0], more)
    return found


batch_norm_train: MultiOp = MultiOp(
    "batch_norm_train",
    ("x", "scale", "bias", "running_mean", "running_variance", "mean?", "inverse_deviation?"),
    _train_infer,
    outputs=("y", "new_mean", "new_variance", "+mean", "+inverse_deviation"),
    attributes={"epsilon": 1e-5, "momentum": 0.9},
    gradient=_train_gradient,
    decompose=train_normalized,
    inplace=((1, 3), (2, 4)),
    again=((3, 3), (4, 4), (5, 3), (6, 4)),
    doc="batch_norm with the batch's mean and biased variance, which are taken from x unless they are known; "
    "new = running momentum + batch (1 - momentum)",
)


def _train_grad_infer(
    dy: TensorType, x: TensorType, scale: TensorType, mean: TensorType, inverse: TensorType
) -> tuple[TensorType, ...]:
    _check_channels("batch_norm_train_grad", x, scale=scale, mean=mean, inverse_deviation=inverse)
    alike("batch_norm_train_grad: x and dy", x, dy)
    return x, scale, scale


batch_norm_train_grad: MultiOp = MultiOp(
    "batch_norm_train_grad",
    ("dy", "x", "scale", "mean", "inverse_deviation"),
    _train_grad_infer,
    outputs=("dx", "dscale", "dbias"),
    decompose=train_grad,
    doc="dx = scale inverse (dy - mean(dy) - x^ mean(dy x^)), x^ = (x - mean) inverse; dscale = sum(dy x^)",
)


def _train_relu_decompose(x: Value, *others: Value | None, **attributes: Any) -> Sequence[Value]:
    assert x.builder is not None
    y, *more = x.builder.add(batch_norm_train, (x, *others), attributes).outputs
    assert y is not None
    return relu(y), *(v for v in more if v is not None)


batch_norm_train_relu: MultiOp = dataclasses.replace(
    batch_norm_train,
    name="batch_norm_train_relu",
    decompose=_train_relu_decompose,
    doc="max(y, 0) of batch_norm_train's y; its gradient needs x, not y",
)


def _train_relu_grad_infer(
    dy: TensorType, x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, inverse: TensorType
) -> tuple[TensorType, ...]:
    _check_channels("batch_norm_train_relu_grad", x, bias=bias)
    return _train_grad_infer(dy, x, scale, mean, inverse)


def _train_relu_grad_decompose(
    dy: Value, x: Value, scale: Value, bias: Value, mean: Value, inverse: Value
) -> Sequence[Value]:
    dy = behind_relu(dy, x, scale, bias, mean, inverse)
    found: Sequence[Value] = batch_norm_train_grad(dy, x, scale, mean, inverse)
    return found


batch_norm_train_relu_grad: MultiOp = MultiOp(
    "batch_norm_train_relu_grad",
    ("dy", "x", "scale", "bias", "mean", "inverse_deviation"),
    _train_relu_grad_infer,
    outputs=("dx", "dscale", "dbias"),
    decompose=_train_relu_grad_decompose,
    doc="batch_norm_train_grad with 0 for dy where x^ scale + bias, x^ = (x - mean) inverse, isn't above 0",
)


def _lrn_infer(x: TensorType, *, size: int, alpha: float, beta: float, bias: float) -> tuple[TensorType, TensorType]:
    _check_channels("lrn", x)
    if not (1 <= size <= MOST and all(map(math.isfinite, (alpha, beta, bias)))):
        given = f"size is {size}, alpha {alpha}, beta {beta}, bias {bias}"
        raise InputError(f"lrn: {given}; expected a size of 1 to {MOST} and finite numbers")
    return x, x


def _lrn_gradient(node: Node, dy: Value | None, dscale: Value | None = None) -> Value | None:
    x, (y, scale) = operand(node), node.outputs
    found: Value | None = None if dy is None else lrn_grad(dy, x, y, scale, **node.attributes)
    return found if dscale is None else response_of_scale(dscale, x, found, **node.attributes)


_LRN: dict[str, Any] = {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}
lrn: Op = Op(
    "lrn",
    ("x",),
    _lrn_infer,
    outputs=("y", "+scale"),
    attributes=_LRN,
    gradient=_lrn_gradient,
    doc="y = x / scale^beta, scale = bias + alpha / size times the sum of squares of ``size`` channels around",
)
lrn_grad: Op = Op(
    "lrn_grad",
    ("dy", "x", "y", "scale"),
    floats_alike("lrn_grad"),
    outputs=("dx",),
    attributes=_LRN,
    decompose=response_grad,
    doc="the gradient of lrn",
)

# ---- over the last axes of each example ---------------------------------------------------------------

# Instance and group norm are this op over a reshaped tensor, with a scale and shift per channel behind it.
_LAYER_NORM: dict[str, Any] = {"axis": -1, "epsilon": 1e-5, "center": True}


def _layer_norm_gradient(
    node: Node, dy: Value | None, dmean: Value | None = None, dinverse: Value | None = None
) -> tuple[Value | None, ...]:
    x, scale = operand(node), node.inputs[1] if len(node.inputs) > 1 else None
    slope: Value | None = None
    if dmean is not None or dinverse is not None:
        dmean = dmean if node.attributes["center"] else None  # it is 0 then
        axes = tuple(range(node.attributes["axis"] % x.type.rank, x.type.rank))
        mean, inverse = (per_row(result(node, index), x) for index in (1, 2))
        dkept = [None if v is None else per_row(v, x) for v in (dmean, dinverse)]
        slope = of_moments(x, mean, inverse, *dkept, axes=axes)
    if dy is None:
        return (slope, *[None] * (len(node.inputs) - 1))
    assert x.builder is not None
    made = x.builder.add(layer_norm_grad, (dy, x, scale, *node.outputs[1:]), node.attributes)
    dx, *others = made.outputs
    return dx if dx is None or slope is None else add(dx, slope), *others


def _layer_norm_cost(node: Node) -> int:
    value = node.outputs[0]
    assert value is not None
    return 8 * value.type.elements


layer_norm: Op = Op(
    "layer_norm",
    ("x", "scale?", "bias?"),
    norm_infer,
    outputs=("y", "+mean", "+inverse_deviation"),
    attributes=_LAYER_NORM,
    gradient=_layer_norm_gradient,
    decompose=row_norm,
    inplace=((0, 0),),
    cost=_layer_norm_cost,
    doc="y = (x - mean) / sqrt(variance + epsilon) scale + bias over the axes from ``axis`` on; with center = 0 the "
    "mean is taken as 0 (RMS norm); mean and 1 / sqrt(variance + epsilon) have the sizes before ``axis``",
)


layer_norm_grad: Op = Op(
    "layer_norm_grad",
    ("dy", "x", "scale?", "mean", "inverse_deviation", "addend?"),
    norm_grad_infer,
    outputs=("dx", "+dscale", "+dbias"),
    attributes=_LAYER_NORM,
    inplace=((0, 0), (0, 1), (0, 5)),
    cost=_layer_norm_cost,
    decompose=row_grad,
    doc="g = dy scale; dx = inverse (g - mean(g) - x^ mean(g x^)) + addend, x^ = (x - mean) inverse; without centering "
    "the middle term is left out; dscale = sum of dy x^ over the rows, dbias = sum of dy",
)

layer_norm_grad_sums: MultiOp = MultiOp(
    "layer_norm_grad_sums",
    layer_norm_grad.inputs,
    norm_grad_sums_infer,
    outputs=("dx", "sums", "+dscale", "+dbias"),
    attributes={**_LAYER_NORM, "keepdims": False},
    inplace=layer_norm_grad.inplace,
    cost=_layer_norm_cost,
    decompose=row_grad_sums,
    doc="``layer_norm_grad``, and the sum of dx over the rows",
)

OPS = (
    batch_norm, batch_norm_grad, batch_norm_train, batch_norm_train_grad, batch_norm_train_relu,
    batch_norm_train_relu_grad, lrn, lrn_grad, layer_norm, layer_norm_grad,
    layer_norm_grad_sums,
)  # fmt: skip
