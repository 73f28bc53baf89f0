"""Normalization: over the batch, and over neighbouring channels."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..ir.dims import Dim
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import TensorType
from ..ir.value import Value
from .activation import neg, reciprocal, sqrt
from .arithmetic import add, mul, sub
from .conv import MOST
from .infer import alike, floats_alike, need, need_float, need_no_cotangent
from .reduce import reduce_sum
from .shape import reshape


def _check_channels(name: str, x: TensorType, **vectors: TensorType) -> None:
    need_float(name, x)
    if x.rank < 2:
        raise InputError(f"{name}: x is {x}; expected (N, C, ...)")
    for label, type_ in vectors.items():
        fits = type_.rank == 1 and (type_.shape[0] == x.shape[1] or isinstance(x.shape[1], Dim))
        if not fits:
            raise InputError(f"{name}: {label} is {type_}; expected one element for each of {x.shape[1]} channels")


def per_channel(vector: Value, rank: int) -> Value:
    """(C,) as (1, C, 1, ...), to broadcast over (N, C, ...)."""
    shaped: Value = reshape(vector, shape=(1, vector.type.shape[0], *(1,) * (rank - 2)))
    return shaped


def over_channels(x: Value) -> Value:
    """The sum over all axes but the second: (C,)."""
    axes = (0, *range(2, x.type.rank))
    summed: Value = reduce_sum(x, axes=axes, keepdims=0)
    return summed


def _infer(
    x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, variance: TensorType, *, epsilon: float
) -> TensorType:
    _check_channels("batch_norm", x, scale=scale, bias=bias, mean=mean, variance=variance)
    return x


def _inverse_deviation(variance: Value, epsilon: float) -> Value:
    inverse: Value = reciprocal(sqrt(add(variance, epsilon)))
    return inverse


def _decompose(x: Value, scale: Value, bias: Value, mean: Value, variance: Value, *, epsilon: float) -> Value:
    factor = mul(scale, _inverse_deviation(variance, epsilon))
    shift = sub(bias, mul(mean, factor))
    rank = x.type.rank
    y: Value = add(mul(x, per_channel(factor, rank)), per_channel(shift, rank))
    return y


def _gradient(node: Node, dy: Value) -> tuple[Value, ...]:
    """With fixed statistics: a scale and shift per channel."""
    x, scale, _, mean, variance = node.inputs
    assert x is not None and variance is not None and scale is not None
    inverse = _inverse_deviation(variance, node.attributes["epsilon"])
    factor = mul(scale, inverse)
    dbias = over_channels(dy)
    # sum(dy (x - mean)) / deviation; the mean comes out of the sum
    centered = sub(over_channels(mul(dy, x)), mul(dbias, mean))
    dscale = mul(centered, inverse)
    dmean = neg(mul(dbias, factor))
    dvariance = mul(mul(dscale, scale), mul(mul(inverse, inverse), -0.5))
    return mul(dy, per_channel(factor, x.type.rank)), dscale, dbias, dmean, dvariance


batch_norm: Op = Op(
    "batch_norm",
    ("x", "scale", "bias", "mean", "variance"),
    _infer,
    attributes={"epsilon": 1e-5},
    gradient=_gradient,
    decompose=_decompose,
    inplace=((0, 0),),
    doc="y = (x - mean) / sqrt(variance + epsilon) scale + bias, per channel (axis 1)",
)


def _train_infer(
    x: TensorType,
    scale: TensorType,
    bias: TensorType,
    mean: TensorType,
    variance: TensorType,
    *,
    epsilon: float,
    momentum: float,
) -> tuple[TensorType, ...]:
    _check_channels("batch_norm_train", x, scale=scale, bias=bias, running_mean=mean, running_variance=variance)
    need(0 not in (x.shape[0], *x.shape[2:]), f"batch_norm_train: x is {x}; of no elements there is no mean")
    return x, mean, variance, mean, variance


def _train_gradient(node: Node, dy: Value | None, *rest: Value | None) -> Any:
    need_no_cotangent(node, *rest[2:])  # running statistics are constants to the loss, as everywhere
    x, scale = node.inputs[:2]
    mean, inverse = node.outputs[3:5]
    return batch_norm_train_grad(dy, x, scale, mean, inverse) if dy is not None else None


batch_norm_train: Op = Op(
    "batch_norm_train",
    ("x", "scale", "bias", "running_mean", "running_variance"),
    _train_infer,
    outputs=("y", "new_mean", "new_variance", "+mean", "+inverse_deviation"),
    attributes={"epsilon": 1e-5, "momentum": 0.9},
    gradient=_train_gradient,
    inplace=((1, 3), (2, 4)),
    doc="batch_norm with the batch's mean and biased variance; new = running momentum + batch (1 - momentum)",
)


def _train_grad_infer(
    dy: TensorType, x: TensorType, scale: TensorType, mean: TensorType, inverse: TensorType
) -> tuple[TensorType, ...]:
    _check_channels("batch_norm_train_grad", x, scale=scale, mean=mean, inverse_deviation=inverse)
    alike("batch_norm_train_grad: x and dy", x, dy)
    return x, scale, scale


batch_norm_train_grad: Op = Op(
    "batch_norm_train_grad",
    ("dy", "x", "scale", "mean", "inverse_deviation"),
    _train_grad_infer,
    outputs=("dx", "dscale", "dbias"),
    doc="dx = scale inverse (dy - mean(dy) - x^ mean(dy x^)), x^ = (x - mean) inverse; dscale = sum(dy x^)",
)


def _lrn_infer(x: TensorType, *, size: int, alpha: float, beta: float, bias: float) -> tuple[TensorType, TensorType]:
    need_float("lrn", x)
    need(x.rank >= 2, f"lrn: x is {x}; expected (N, C, ...)")
    need(1 <= size <= MOST, f"lrn: size is {size}; expected 1 to {MOST}")
    return x, x


def _lrn_gradient(node: Node, dy: Value, *kept: Value | None) -> Value:
    need_no_cotangent(node, *kept)
    y, scale = node.outputs
    dx: Value = lrn_grad(dy, node.inputs[0], y, scale, **node.attributes)
    return dx


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
    doc="the gradient of lrn",
)

OPS = (batch_norm, batch_norm_train, batch_norm_train_grad, lrn, lrn_grad)
