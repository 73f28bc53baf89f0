"""Softmax along one axis."""

from __future__ import annotations

from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import TensorType
from ..ir.value import Value
from .arithmetic import copy, div, exp, log, mul, neg, sub
from .infer import alike, need_float, normal_axis
from .reduce import reduce_max, reduce_sum


def _infer(x: TensorType, *, axis: int) -> TensorType:
    need_float("softmax", x)
    normal_axis("softmax", axis, x.rank)
    return x


def _grad_infer(dy: TensorType, y: TensorType, *, axis: int) -> TensorType:
    return _infer(alike("softmax_grad", y, dy), axis=axis)


def _cost(node: Node) -> int:
    value = node.outputs[0]
    assert value is not None
    return 10 * value.type.elements


def _gradient(node: Node, dy: Value) -> Value:
    rule = softmax_grad if node.op is softmax else log_softmax_grad
    return rule(dy, node.outputs[0], **node.attributes)


def _over(x: Value, axis: int) -> Value:
    """The sums along an axis, which stays."""
    total: Value = reduce_sum(x, axes=(axis,), keepdims=True)
    return total


def _softmax_second(node: Node, u: Value) -> tuple[Value, Value]:
    """Of dx = y (dy - sum(dy y))."""
    dy, y = node.inputs
    assert dy is not None and y is not None
    axis = node.attributes["axis"]
    inner = sub(dy, _over(mul(dy, y), axis))
    return softmax_grad(u, y, axis=axis), sub(mul(u, inner), mul(dy, _over(mul(u, y), axis)))


def _log_softmax_second(node: Node, u: Value) -> tuple[Value, Value]:
    """Of dx = dy - e^y sum(dy)."""
    dy, y = node.inputs
    assert dy is not None and y is not None
    axis, share = node.attributes["axis"], exp(y)
    weighted = mul(u, share)
    return sub(u, _over(weighted, axis)), neg(mul(weighted, _over(dy, axis)))


def _below_largest(x: Value, axis: int) -> Value:
    """What is left of x without its largest along an axis; powers of e of it do not overflow."""
    return sub(x, reduce_max(x, axes=(axis,), keepdims=True))


def _softmax(x: Value, *, axis: int) -> Value:
    if not x.type.elements:
        return copy(x)
    powers = exp(_below_largest(x, axis))
    return div(powers, _over(powers, axis))


def _log_softmax(x: Value, *, axis: int) -> Value:
    if not x.type.elements:
        return copy(x)
    below = _below_largest(x, axis)
    return sub(below, log(_over(exp(below), axis)))


softmax: Op = Op(
    "softmax",
    ("x",),
    _infer,
    attributes={"axis": -1},
    gradient=_gradient,
    decompose=_softmax,
    inplace=((0, 0),),
    cost=_cost,
    doc="y = e^(x - max x) / sum e^(x - max x) along axis",
)
softmax_grad: Op = Op(
    "softmax_grad",
    ("dy", "y"),
    _grad_infer,
    outputs=("dx",),
    attributes={"axis": -1},
    gradient=_softmax_second,
    decompose=lambda dy, y, *, axis: mul(y, sub(dy, _over(mul(dy, y), axis))),
    inplace=((0, 0), (0, 1)),
    cost=_cost,
    doc="dx = y (dy - sum(dy y)) along axis",
)
log_softmax: Op = Op(
    "log_softmax",
    ("x",),
    _infer,
    attributes={"axis": -1},
    gradient=_gradient,
    decompose=_log_softmax,
    inplace=((0, 0),),
    cost=_cost,
    doc="y = x - max x - ln sum e^(x - max x) along axis",
)
log_softmax_grad: Op = Op(
    "log_softmax_grad",
    ("dy", "y"),
    _grad_infer,
    outputs=("dx",),
    attributes={"axis": -1},
    gradient=_log_softmax_second,
    decompose=lambda dy, y, *, axis: sub(dy, mul(exp(y), _over(dy, axis))),
    inplace=((0, 0), (0, 1)),
    cost=_cost,
    doc="dx = dy - e^y sum(dy) along axis",
)

OPS = (softmax, softmax_grad, log_softmax, log_softmax_grad)
