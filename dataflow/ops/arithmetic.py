"""Elementwise functions of one number, y[i] = f(x[i]), and of two that broadcast as in NumPy, y[i] = f(a[i], b[i])."""

from __future__ import annotations

import math
from typing import Any

from ..errors import InputError
from ..ir.graph import Node
from ..ir.op import Gradient, Infer, Op, same_type
from ..ir.types import TensorType
from ..ir.value import Value
from .infer import (
    broadcast,
    broadcast_shape,
    floats_alike,
    need_real,
    numbers_alike,
    operand,
    result,
    same_dtype,
    scalar_like,
    varies,
)
from .logic import equal, less, less_equal, logical_and, where

# ---- two operands -------------------------------------------------------------------------------------

_EITHER = ((0, 0), (0, 1))


def _ab(node: Node) -> tuple[Value, Value]:
    a, b = node.inputs[:2]
    assert a is not None and b is not None
    return a, b


def _binary(name: str, gradient: Gradient, doc: str, *, commutative: bool = False, elementwise: bool = True) -> Op:
    return Op(
        name,
        ("a", "b"),
        broadcast(name),
        gradient=gradient,
        inplace=_EITHER,
        cheap=True,
        commutative=commutative,
        elementwise=elementwise,
        doc=doc,
    )


def _pow_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    a, b = _ab(node)
    # b a^(b - 1), where b is 0 taken as b a^0: at a = 0, too, that is 0, and 0 times a^-1 would be nan.
    first = mul(dy, mul(b, pow_(a, where(equal(b, scalar_like(b, 0)), scalar_like(b, 0), sub(b, 1.0)))))
    # d/db a^b = a^b ln a, and 0 where a is 0: there ln would give nan.
    positive = less(scalar_like(a, 0), a)
    safe = where(positive, a, scalar_like(a, 1))
    return first, where(positive, mul(dy, mul(node.outputs[0], log(safe))), scalar_like(dy, 0))


def _chosen_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    """Of maximum and minimum: to the operand that was taken, halves where both were."""
    a, b = _ab(node)
    y = node.outputs[0]
    both = equal(a, b)
    half = where(both, mul(dy, 0.5), dy)
    zero = scalar_like(dy, 0)
    return where(equal(a, y), half, zero), where(equal(b, y), half, zero)


def _mod_infer(a: TensorType, b: TensorType, **_: Any) -> TensorType:
    need_real("mod", a, b)
    return TensorType(same_dtype("mod", a, b), broadcast_shape("mod", a.shape, b.shape))


def _mod_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    a, b = _ab(node)
    quotient = div(sub(a, node.outputs[0]), b)
    return dy, neg(mul(dy, floor(add(quotient, 0.5))))


add: Op = _binary("add", lambda n, dy: (dy, dy), "y = a + b", commutative=True)
sub: Op = _binary("sub", lambda n, dy: (dy, mul(dy, -1.0)), "y = a - b")
mul: Op = _binary("mul", lambda n, dy: (mul(dy, n.inputs[1]), mul(dy, n.inputs[0])), "y = a b", commutative=True)


def _div_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    _, b = _ab(node)
    da = div(dy, b)
    return da, mul(mul(da, node.outputs[0]), -1.0)


div: Op = _binary("div", _div_gradient, "y = a / b; of integers: towards zero, by 0: 0")

pow_: Op = _binary("pow", _pow_gradient, "y = a^b", elementwise=False)
maximum: Op = _binary("maximum", _chosen_gradient, "y = max(a, b)", commutative=True)
minimum: Op = _binary("minimum", _chosen_gradient, "y = min(a, b)", commutative=True)
mod: Op = Op(
    "mod",
    ("a", "b"),
    _mod_infer,
    attributes={"fmod": False},
    gradient=_mod_gradient,
    inplace=_EITHER,
    cheap=True,
    doc="the rest of a / b, with b's sign; with a's sign for fmod=1; of integers by 0: 0",
)

# ---- one operand --------------------------------------------------------------------------------------


def unary(name: str, gradient: Gradient, doc: str, *, infer: Infer | None = None, cheap: bool = False) -> Op:
    """An elementwise function of one number; of floats by default."""
    return Op(
        name,
        ("x",),
        infer or floats_alike(name),
        gradient=gradient,
        inplace=((0, 0),),
        cheap=cheap,
        elementwise=True,
        doc=doc,
    )


def _no_gradient(node: Node, dy: Value) -> None:
    """The gradient of a step function: none."""


neg: Op = unary("neg", lambda n, dy: neg(dy), "y = -x", infer=numbers_alike("neg"), cheap=True)
copy: Op = Op("copy", ("x",), same_type, gradient=lambda n, dy: dy, inplace=((0, 0),), cheap=True, doc="y = x")
stop_gradient: Op = Op(
    "stop_gradient",
    ("x",),
    same_type,
    gradient=_no_gradient,
    decompose=lambda x: copy(x),
    inplace=((0, 0),),
    cheap=True,
    doc="y = x, of which no gradient goes back",
)
abs_: Op = unary("abs", lambda n, dy: mul(dy, sign(operand(n))), "y = |x|", infer=numbers_alike("abs"), cheap=True)
sign: Op = unary("sign", _no_gradient, "y = -1, 0 or 1", infer=numbers_alike("sign"), cheap=True)
exp: Op = unary("exp", lambda n, dy: mul(dy, result(n)), "y = e^x")
log: Op = unary("log", lambda n, dy: div(dy, operand(n)), "y = ln x")
sqrt: Op = unary("sqrt", lambda n, dy: div(mul(dy, 0.5), result(n)), "y = x^(1/2)")
reciprocal: Op = unary("reciprocal", lambda n, dy: neg(mul(dy, mul(result(n), result(n)))), "y = 1 / x")
sin: Op = unary("sin", lambda n, dy: mul(dy, cos(operand(n))), "y = sin x")
cos: Op = unary("cos", lambda n, dy: neg(mul(dy, sin(operand(n)))), "y = cos x")
tan: Op = unary("tan", lambda n, dy: mul(dy, add(mul(result(n), result(n)), 1.0)), "y = tan x")
asin: Op = unary("asin", lambda n, dy: div(dy, sqrt(sub(1.0, mul(operand(n), operand(n))))), "y = arcsin x")
acos: Op = unary("acos", lambda n, dy: neg(div(dy, sqrt(sub(1.0, mul(operand(n), operand(n)))))), "y = arccos x")
atan: Op = unary("atan", lambda n, dy: div(dy, add(mul(operand(n), operand(n)), 1.0)), "y = arctan x")
sinh: Op = unary("sinh", lambda n, dy: mul(dy, cosh(operand(n))), "y = sinh x")
cosh: Op = unary("cosh", lambda n, dy: mul(dy, sinh(operand(n))), "y = cosh x")
tanh: Op = unary("tanh", lambda n, dy: mul(dy, sub(1.0, mul(result(n), result(n)))), "y = tanh x")
asinh: Op = unary("asinh", lambda n, dy: div(dy, sqrt(add(mul(operand(n), operand(n)), 1.0))), "y = arsinh x")
acosh: Op = unary("acosh", lambda n, dy: div(dy, sqrt(sub(mul(operand(n), operand(n)), 1.0))), "y = arcosh x")
atanh: Op = unary("atanh", lambda n, dy: div(dy, sub(1.0, mul(operand(n), operand(n)))), "y = artanh x")
erf: Op = unary(
    "erf",
    lambda n, dy: mul(dy, mul(exp(neg(mul(operand(n), operand(n)))), 2.0 / math.sqrt(math.pi))),
    "y = 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x",
)
floor: Op = unary("floor", _no_gradient, "the largest whole number not above x", cheap=True)
ceil: Op = unary("ceil", _no_gradient, "the smallest whole number not below x", cheap=True)
round_: Op = unary("round", _no_gradient, "the nearest whole number, halves to even", cheap=True)


def _clip_infer(x: TensorType, low: TensorType | None = None, high: TensorType | None = None) -> TensorType:
    for bound in (low, high):
        if bound is not None and not (bound.rank == 0 and bound.dtype == x.dtype):
            raise InputError(f"clip: bounds are scalars of {x.dtype}, got {bound}")
    return x


def _clip(x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    if low is not None:
        x = maximum(x, low)
    if high is not None:
        x = minimum(x, high)
    if low is None and high is None:
        x = copy(x)
    return x


def _clip_gradient(node: Node, dy: Value) -> list[Value | None]:
    x, low, high = (*node.inputs, None, None)[:3]
    zero = scalar_like(dy, 0.0)
    d_low = d_high = None
    if high is not None:
        raised = x if low is None else maximum(x, low)
        d_high = where(less(high, raised), dy, zero) if varies(high) else None
    if low is not None and varies(low):
        below = less(x, low) if high is None else logical_and(less(x, low), less_equal(low, high))
        d_low = where(below, dy, zero)
    if low is not None:
        dy = where(less_equal(low, x), dy, zero)
    if high is not None:
        dy = where(less_equal(x, high), dy, zero)
    return [dy, d_low, d_high]


clip: Op = Op(
    "clip",
    ("x", "low?", "high?"),
    _clip_infer,
    gradient=_clip_gradient,
    decompose=_clip,
    inplace=((0, 0),),
    cheap=True,
    doc="y = min(max(x, low), high); low and high are scalars",
)

OPS = (
    add, sub, mul, div, pow_, maximum, minimum, mod, neg, copy, stop_gradient, abs_, sign, exp, log, sqrt, reciprocal,
    sin, cos, tan, asin, acos, atan, sinh, cosh, tanh, asinh, acosh, atanh, erf, floor, ceil, round_, clip,
)  # fmt: skip
