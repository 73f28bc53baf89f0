"""One input, same shape: y[i] = f(x[i])."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ..ir.graph import Node
from ..ir.op import REQUIRED, Op, same_type
from ..ir.types import DType, TensorType, bool_
from ..ir.value import Value
from .arithmetic import add, div, less, less_equal, logical_and, maximum, minimum, mul, sub, where
from .infer import (
    alike,
    broadcast_shape,
    floats_alike,
    need,
    need_bool,
    need_number,
    need_real,
    numbers_alike,
    same_dtype,
    varies,
)


def _x(node: Node) -> Value:
    assert node.inputs[0] is not None
    return node.inputs[0]


def _y(node: Node) -> Value:
    assert node.outputs[0] is not None
    return node.outputs[0]


def _unary(name: str, gradient: Any, doc: str, *, cheap: bool = False, **attributes: Any) -> Op:
    return Op(
        name,
        ("x",),
        floats_alike(name),
        attributes=attributes,
        gradient=gradient,
        inplace=((0, 0),),
        cheap=cheap,
        doc=doc,
    )


def _zero(node: Node, dy: Value) -> None:
    """The gradient of a step function: none."""


def _relu_grad_infer(dy: TensorType, y: TensorType) -> TensorType:
    need_number("relu_grad", dy, y)
    shape = broadcast_shape("relu_grad", dy.shape, y.shape)
    alike("relu_grad: dy and what y broadcasts to", dy, TensorType(y.dtype, shape))
    return dy


neg: Op = Op(
    "neg",
    ("x",),
    numbers_alike("neg"),
    gradient=lambda n, dy: neg(dy),
    inplace=((0, 0),),
    cheap=True,
    doc="y = -x",
)
copy: Op = Op("copy", ("x",), same_type, gradient=lambda n, dy: dy, inplace=((0, 0),), cheap=True, doc="y = x")
abs: Op = Op(
    "abs",
    ("x",),
    numbers_alike("abs"),
    gradient=lambda n, dy: mul(dy, sign(_x(n))),
    inplace=((0, 0),),
    cheap=True,
    doc="y = |x|",
)
sign: Op = Op(
    "sign", ("x",), numbers_alike("sign"), gradient=_zero, inplace=((0, 0),), cheap=True, doc="y = -1, 0 or 1"
)
relu: Op = Op(
    "relu",
    ("x",),
    numbers_alike("relu"),
    gradient=lambda n, dy: relu_grad(dy, _y(n)),
    inplace=((0, 0),),
    cheap=True,
    doc="y = max(x, 0)",
)
relu_grad: Op = Op(
    "relu_grad",
    ("dy", "y"),
    _relu_grad_infer,
    gradient=lambda n, g: (relu_grad(g, n.inputs[1]), None),
    inplace=((0, 0), (0, 1)),
    cheap=True,
    doc="dx = dy where y > 0, else 0",
)
exp: Op = _unary("exp", lambda n, dy: mul(dy, _y(n)), "y = e^x")
log: Op = _unary("log", lambda n, dy: div(dy, _x(n)), "y = ln x")
sqrt: Op = _unary("sqrt", lambda n, dy: div(mul(dy, 0.5), _y(n)), "y = x^(1/2)")
reciprocal: Op = _unary("reciprocal", lambda n, dy: neg(mul(dy, mul(_y(n), _y(n)))), "y = 1 / x")
sin: Op = _unary("sin", lambda n, dy: mul(dy, cos(_x(n))), "y = sin x")
cos: Op = _unary("cos", lambda n, dy: neg(mul(dy, sin(_x(n)))), "y = cos x")
tan: Op = _unary("tan", lambda n, dy: mul(dy, add(mul(_y(n), _y(n)), 1.0)), "y = tan x")
asin: Op = _unary("asin", lambda n, dy: div(dy, sqrt(sub(1.0, mul(_x(n), _x(n))))), "y = arcsin x")
acos: Op = _unary("acos", lambda n, dy: neg(div(dy, sqrt(sub(1.0, mul(_x(n), _x(n)))))), "y = arccos x")
atan: Op = _unary("atan", lambda n, dy: div(dy, add(mul(_x(n), _x(n)), 1.0)), "y = arctan x")
sinh: Op = _unary("sinh", lambda n, dy: mul(dy, cosh(_x(n))), "y = sinh x")
cosh: Op = _unary("cosh", lambda n, dy: mul(dy, sinh(_x(n))), "y = cosh x")
tanh: Op = _unary("tanh", lambda n, dy: mul(dy, sub(1.0, mul(_y(n), _y(n)))), "y = tanh x")
asinh: Op = _unary("asinh", lambda n, dy: div(dy, sqrt(add(mul(_x(n), _x(n)), 1.0))), "y = arsinh x")
acosh: Op = _unary("acosh", lambda n, dy: div(dy, sqrt(sub(mul(_x(n), _x(n)), 1.0))), "y = arcosh x")
atanh: Op = _unary("atanh", lambda n, dy: div(dy, sub(1.0, mul(_x(n), _x(n)))), "y = artanh x")
sigmoid: Op = _unary("sigmoid", lambda n, dy: mul(dy, mul(_y(n), sub(1.0, _y(n)))), "y = 1 / (1 + e^-x)")
erf: Op = _unary(
    "erf",
    lambda n, dy: mul(dy, mul(exp(neg(mul(_x(n), _x(n)))), 2.0 / math.sqrt(math.pi))),
    "y = 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x",
)
floor: Op = _unary("floor", _zero, "the largest whole number not above x", cheap=True)
ceil: Op = _unary("ceil", _zero, "the smallest whole number not below x", cheap=True)
round: Op = _unary("round", _zero, "the nearest whole number, halves to even", cheap=True)
softplus: Op = _unary("softplus", lambda n, dy: mul(dy, sigmoid(_x(n))), "y = ln(1 + e^x), without overflow")
softsign: Op = Op(
    "softsign",
    ("x",),
    floats_alike("softsign"),
    gradient=lambda n, dy: div(dy, _square(add(abs(_x(n)), 1.0))),
    inplace=((0, 0),),
    doc="y = x / (1 + |x|)",
)


def _bools(x: TensorType) -> TensorType:
    need_bool("logical_not", x)
    return x


def _integers(x: TensorType) -> TensorType:
    need(x.dtype.is_int, f"bitwise_not: expected integers, got {x}")
    return x


logical_not: Op = Op("logical_not", ("x",), _bools, inplace=((0, 0),), cheap=True, doc="y = not x, of bools")
bitwise_not: Op = Op("bitwise_not", ("x",), _integers, inplace=((0, 0),), cheap=True, doc="y = ~x, of integers")


def _square(x: Value) -> Value:
    squared: Value = mul(x, x)
    return squared


def _flag(name: str) -> Any:
    def infer(x: TensorType, **_: Any) -> TensorType:
        need_real(name, x)
        return TensorType(bool_, x.shape)

    return infer


is_nan: Op = Op("is_nan", ("x",), _flag("is_nan"), cheap=True, doc="whether x is not a number")
is_inf: Op = Op(
    "is_inf",
    ("x",),
    _flag("is_inf"),
    attributes={"detect_negative": 1, "detect_positive": 1},
    cheap=True,
    doc="whether x is infinite, of the signs asked for",
)


def _cast_infer(x: TensorType, *, to: DType) -> TensorType:
    need(isinstance(to, DType), f"cast: to={to!r} is no dtype, e.g. df.float32")
    need(x.dtype.kind != "c" or to.kind in "cb", f"cast: {x} to {to} would lose the imaginary parts")
    return TensorType(to, x.shape)


def _cast_gradient(node: Node, dy: Value) -> Value | None:
    source: DType = _x(node).type.dtype
    return cast(dy, to=source) if source.is_float and dy.type.dtype.is_float else None


cast: Op = Op(
    "cast",
    ("x",),
    _cast_infer,
    attributes={"to": REQUIRED},
    gradient=_cast_gradient,
    cheap=True,
    doc="x in another dtype; floats to integers towards zero, out of range to the nearest end, NaN to the lower one",
)


# ---- activations that are made of smaller ops ---------------------------------------------------------


def _composite(name: str, decompose: Any, doc: str, **attributes: Any) -> Op:
    return Op(name, ("x",), floats_alike(name), attributes=attributes, decompose=decompose, inplace=((0, 0),), doc=doc)


def _positive(x: Value) -> Value:
    """0 < x, as bools."""
    found: Value = less(_like(x, 0.0), x)
    return found


def _celu_infer(x: TensorType, *, alpha: float) -> TensorType:
    need(alpha != 0.0, "celu: alpha is 0; x / alpha is not defined")
    result = floats_alike("celu")(x)
    with np.errstate(over="ignore", under="ignore"):
        held = math.fabs(float(np.asarray(alpha).astype(x.dtype.numpy)))
    need(0.0 < held < math.inf, f"celu: alpha {alpha} is beyond {x.dtype.name}; cast x to float32")
    return result


def _expm1(x: Value, negative: bool) -> Value:
    """e^x - 1; of x <= 0 as 2 t / (1 - t) with t = tanh(x / 2), which doesn't cancel near 0."""
    t = tanh(mul(x, 0.5))
    found: Value = div(mul(t, 2.0), sub(1.0, t)) if negative else sub(exp(x), 1.0)
    return found


def _like(x: Value, number: float) -> Value:
    assert x.builder is not None
    return x.builder.scalar(number, x.type.dtype)


leaky_relu: Op = _composite(
    "leaky_relu",
    lambda x, *, alpha: where(_positive(x), x, mul(x, alpha)),
    "y = x where x > 0, else alpha x",
    alpha=0.01,
)
# e^min(x, 0): the branch that isn't taken must not overflow, its gradient would be nan.
elu: Op = _composite(
    "elu",
    lambda x, *, alpha: where(_positive(x), x, mul(sub(exp(minimum(x, 0.0)), 1.0), alpha)),
    "y = x where x > 0, else alpha (e^x - 1)",
    alpha=1.0,
)
selu: Op = _composite(
    "selu",
    lambda x, *, alpha, gamma: mul(where(_positive(x), x, mul(sub(exp(minimum(x, 0.0)), 1.0), alpha)), gamma),
    "y = gamma (x where x > 0, else alpha (e^x - 1))",
    alpha=1.67326319217681884765625,
    gamma=1.05070102214813232421875,
)
celu: Op = dataclasses.replace(
    _composite(
        "celu",
        lambda x, *, alpha: where(_positive(x), x, mul(_expm1(mul(minimum(x, 0.0), 1.0 / alpha), alpha > 0), alpha)),
        "y = x where x > 0, else alpha (e^(x/alpha) - 1)",
        alpha=1.0,
    ),
    infer=_celu_infer,
)
thresholded_relu: Op = _composite(
    "thresholded_relu",
    lambda x, *, alpha: where(less(_like(x, alpha), x), x, _like(x, 0.0)),
    "y = x where x > alpha, else 0",
    alpha=1.0,
)
hard_sigmoid: Op = _composite(
    "hard_sigmoid",
    lambda x, *, alpha, beta: clip(add(mul(x, alpha), beta), _like(x, 0.0), _like(x, 1.0)),
    "y = alpha x + beta, between 0 and 1",
    alpha=0.2,
    beta=0.5,
)
hard_swish: Op = _composite(
    "hard_swish",
    lambda x: mul(x, hard_sigmoid(x, alpha=1.0 / 6.0, beta=0.5)),
    "y = x (x / 6 + 1/2, between 0 and 1)",
)
mish: Op = _composite("mish", lambda x: mul(x, tanh(softplus(x))), "y = x tanh(ln(1 + e^x))")


def _gelu(x: Value, *, approximate: str) -> Value:
    need(approximate in ("none", "tanh"), f"gelu: approximate={approximate!r}; expected 'none' or 'tanh'")
    if approximate == "tanh":
        inner = mul(add(x, mul(mul(mul(x, x), x), 0.044715)), math.sqrt(2.0 / math.pi))
        gate = add(tanh(inner), 1.0)
    else:
        gate = add(erf(mul(x, math.sqrt(0.5))), 1.0)
    found: Value = mul(mul(x, gate), 0.5)
    return found


def _gelu_slope(x: Value, approximate: str) -> Value:
    if approximate == "tanh":
        factor = math.sqrt(2.0 / math.pi)
        square = mul(x, x)
        gate = tanh(mul(mul(x, add(mul(square, 0.044715), 1.0)), factor))
        inner = mul(add(mul(square, 3 * 0.044715), 1.0), factor)
        steep: Value = mul(mul(x, sub(1.0, mul(gate, gate))), inner)
        slope: Value = mul(add(add(gate, 1.0), steep), 0.5)
        return slope
    density = mul(exp(mul(mul(x, x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    found: Value = add(mul(add(erf(mul(x, math.sqrt(0.5))), 1.0), 0.5), mul(x, density))
    return found


gelu: Op = dataclasses.replace(
    _composite("gelu", _gelu, "y = x (1 + erf(x / sqrt 2)) / 2, or its approximation by tanh", approximate="none"),
    gradient=lambda n, dy: gelu_grad(dy, n.inputs[0], **n.attributes),
)
gelu_grad: Op = Op(
    "gelu_grad",
    ("dy", "x"),
    floats_alike("gelu_grad"),
    outputs=("dx",),
    attributes={"approximate": "none"},
    decompose=lambda dy, x, *, approximate: mul(dy, _gelu_slope(x, approximate)),
    inplace=((0, 0), (0, 1)),
    doc="dx = dy (Phi(x) + x phi(x)), Phi and phi the normal distribution's; or of the approximation by tanh",
)


def _clip_infer(x: TensorType, low: TensorType | None = None, high: TensorType | None = None) -> TensorType:
    for bound in (low, high):
        if bound is not None:
            need(bound.rank == 0 and bound.dtype == x.dtype, f"clip: bounds are scalars of {x.dtype}, got {bound}")
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
    zero = _like(dy, 0.0)
    floor = ceiling = None
    if high is not None:
        raised = x if low is None else maximum(x, low)
        ceiling = where(less(high, raised), dy, zero) if varies(high) else None
    if low is not None and varies(low):
        below = less(x, low) if high is None else logical_and(less(x, low), less_equal(low, high))
        floor = where(below, dy, zero)
    if low is not None:
        dy = where(less_equal(low, x), dy, zero)
    if high is not None:
        dy = where(less_equal(x, high), dy, zero)
    return [dy, floor, ceiling]


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


def _prelu_infer(x: TensorType, slope: TensorType) -> TensorType:
    dtype = same_dtype("prelu", x, slope)
    shape = broadcast_shape("prelu", x.shape, slope.shape)
    fits = shape == x.shape or (len(shape) == x.rank and not (x.is_bound and slope.is_bound))
    need(fits, f"prelu: slope {slope} doesn't broadcast to x, {x}")
    return TensorType(dtype, x.shape)


prelu: Op = Op(
    "prelu",
    ("x", "slope"),
    _prelu_infer,
    decompose=lambda x, slope: where(_positive(x), x, mul(x, slope)),
    inplace=((0, 0),),
    doc="y = x where x > 0, else slope x; slope broadcasts to x",
)

OPS = (
    neg, copy, abs, sign, relu, relu_grad, exp, log, sqrt, reciprocal, sin, cos, tan, asin, acos, atan, sinh, cosh,
    tanh, asinh, acosh, atanh, sigmoid, erf, floor, ceil, round, softplus, softsign, logical_not, bitwise_not,
    is_nan, is_inf, cast, leaky_relu, elu, selu, celu, thresholded_relu, hard_sigmoid, hard_swish, mish, gelu,
    gelu_grad, clip, prelu,
)  # fmt: skip
