"""Activations: y[i] = f(x[i])."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import InputError
from ..ir.graph import Node
from ..ir.op import Decompose, MultiOp, Op, Pattern
from ..ir.types import TensorType
from ..ir.value import Value
from .arithmetic import abs_, add, clip, div, erf, exp, mul, pow_, sub, tanh, unary
from .infer import (
    alike,
    broadcast_shape,
    floats_alike,
    need,
    need_number,
    numbers_alike,
    operand,
    result,
    same_dtype,
    scalar_like,
)
from .logic import less, where
from .reduce import reduce_sum


def _relu_grad_infer(dy: TensorType, y: TensorType) -> TensorType:
    need_number("relu_grad", dy, y)
    shape = broadcast_shape("relu_grad", dy.shape, y.shape)
    alike("relu_grad: dy and what y broadcasts to", dy, TensorType(y.dtype, shape))
    return dy


relu: Op = unary(
    "relu", lambda n, dy: relu_grad(dy, result(n)), "y = max(x, 0)", infer=numbers_alike("relu"), cheap=True
)
relu_grad: Op = Op(
    "relu_grad",
    ("dy", "y"),
    _relu_grad_infer,
    gradient=lambda n, g: (relu_grad(g, n.inputs[1]), None),
    inplace=((0, 0), (0, 1)),
    cheap=True,
    elementwise=True,
    doc="dx = dy where y > 0, else 0",
)

sigmoid: Op = unary("sigmoid", lambda n, dy: mul(dy, mul(result(n), sub(1.0, result(n)))), "y = 1 / (1 + e^-x)")

softplus: Op = unary("softplus", lambda n, dy: mul(dy, sigmoid(operand(n))), "y = ln(1 + e^x), without overflow")


def _softsign_gradient(node: Node, dy: Value) -> Value:
    divisor = add(abs_(operand(node)), 1.0)
    return div(dy, mul(divisor, divisor))


softsign: Op = unary("softsign", _softsign_gradient, "y = x / (1 + |x|)")

# ---- activations that are made of smaller ops ---------------------------------------------------------


def _composite(
    name: str, decompose: Decompose, doc: str, *, elementwise: bool = False, **attributes: float | str
) -> Op:
    return Op(
        name,
        ("x",),
        floats_alike(name),
        attributes=attributes,
        decompose=decompose,
        inplace=((0, 0),),
        elementwise=elementwise,
        doc=doc,
    )


def _positive(x: Value) -> Value:
    """0 < x, as bools."""
    return less(scalar_like(x, 0.0), x)


def _positive_or(x: Value, other: Callable[[Value], Value]) -> Value:
    """Where x is positive x, else what ``other`` makes of it; positive elements are 0 to ``other``.

    An exponential of those might overflow, and its gradient would be NaN. A minimum has half of the gradient at 0.
    """
    positive = _positive(x)
    return where(positive, x, other(where(positive, scalar_like(x, 0.0), x)))


def _celu_infer(x: TensorType, *, alpha: float) -> TensorType:
    need(alpha != 0.0, "celu: alpha is 0; x / alpha is not defined")
    result = floats_alike("celu")(x)
    with np.errstate(over="ignore", under="ignore"):
        held = math.fabs(float(np.asarray(alpha).astype(x.dtype.numpy)))
    if not (0.0 < held < math.inf):
        raise InputError(f"celu: alpha {alpha} is beyond {x.dtype.name}; cast x to float32")
    return result


def _expm1(x: Value, negative: bool) -> Value:
    """e^x - 1; of x <= 0 as 2 t / (1 - t) with t = tanh(x / 2), which doesn't cancel near 0."""
    if not negative:
        return sub(exp(x), 1.0)
    t = tanh(mul(x, 0.5))
    return div(mul(t, 2.0), sub(1.0, t))


leaky_relu: Op = _composite(
    "leaky_relu",
    lambda x, *, alpha: where(_positive(x), x, mul(x, alpha)),
    "y = x where x > 0, else alpha x",
    alpha=0.01,
)

elu: Op = _composite(
    "elu",
    lambda x, *, alpha: _positive_or(x, lambda z: mul(sub(exp(z), 1.0), alpha)),
    "y = x where x > 0, else alpha (e^x - 1)",
    alpha=1.0,
)

selu: Op = _composite(
    "selu",
    lambda x, *, alpha, gamma: mul(_positive_or(x, lambda z: mul(sub(exp(z), 1.0), alpha)), gamma),
    "y = gamma (x where x > 0, else alpha (e^x - 1))",
    alpha=1.67326319217681884765625,
    gamma=1.05070102214813232421875,
)

celu: Op = dataclasses.replace(
    _composite(
        "celu",
        lambda x, *, alpha: _positive_or(x, lambda z: mul(_expm1(mul(z, 1.0 / alpha), alpha > 0), alpha)),
        "y = x where x > 0, else alpha (e^(x/alpha) - 1)",
        alpha=1.0,
    ),
    infer=_celu_infer,
)

thresholded_relu: Op = _composite(
    "thresholded_relu",
    lambda x, *, alpha: where(less(scalar_like(x, alpha), x), x, scalar_like(x, 0.0)),
    "y = x where x > alpha, else 0",
    alpha=1.0,
)

hard_sigmoid: Op = _composite(
    "hard_sigmoid",
    lambda x, *, alpha, beta: clip(add(mul(x, alpha), beta), scalar_like(x, 0.0), scalar_like(x, 1.0)),
    "y = alpha x + beta, between 0 and 1",
    alpha=0.2,
    beta=0.5,
)

hard_swish: Op = _composite(
    "hard_swish",
    lambda x: mul(x, hard_sigmoid(x, alpha=1.0 / 6.0, beta=0.5)),
    "y = x (x / 6 + 1/2, between 0 and 1)",
    elementwise=True,
)

mish: Op = _composite("mish", lambda x: mul(x, tanh(softplus(x))), "y = x tanh(ln(1 + e^x))", elementwise=True)


def _gelu(x: Value, *, approximate: str) -> Value:
    if approximate not in ("none", "tanh"):
        raise InputError(f"gelu: approximate={approximate!r}; expected 'none' or 'tanh'")
    if approximate == "tanh":
        inner = mul(add(x, mul(mul(mul(x, x), x), 0.044715)), math.sqrt(2.0 / math.pi))
        gate = add(tanh(inner), 1.0)
    else:
        gate = add(erf(mul(x, math.sqrt(0.5))), 1.0)
    return mul(mul(x, gate), 0.5)


def _gelu_slope(x: Value, approximate: str) -> Value:
    if approximate == "tanh":
        factor = math.sqrt(2.0 / math.pi)
        square = mul(x, x)
        gate = tanh(mul(mul(x, add(mul(square, 0.044715), 1.0)), factor))
        inner = mul(add(mul(square, 3 * 0.044715), 1.0), factor)
        steep = mul(mul(x, sub(1.0, mul(gate, gate))), inner)
        return mul(add(add(gate, 1.0), steep), 0.5)
    density = mul(exp(mul(mul(x, x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    return add(mul(add(erf(mul(x, math.sqrt(0.5))), 1.0), 0.5), mul(x, density))


def _single(number: float) -> float:
    """As float32 has it, the type of the kernels and of the constants that exporters write."""
    return float(np.float32(number))


def _gelu_patterns() -> Iterator[Pattern]:
    """What exporters write: 1 + erf or 1 + tanh, times x and 1/2 in any order."""
    divisor, scale, factor, cubic = map(_single, (math.sqrt(2.0), math.sqrt(0.5), math.sqrt(2.0 / math.pi), 0.044715))
    gates: tuple[tuple[str, Callable[[Value], Value]], ...] = (
        ("none", lambda x: erf(div(x, divisor))),
        ("none", lambda x: erf(mul(x, scale))),
        ("tanh", lambda x: tanh(mul(add(x, mul(pow_(x, 3.0), cubic)), factor))),
        ("tanh", lambda x: tanh(mul(add(x, mul(mul(mul(x, x), x), cubic)), factor))),
        ("tanh", lambda x: tanh(mul(mul(x, factor), add(mul(mul(x, cubic), x), 1.0)))),
    )
    products: tuple[Callable[[Value, Value], Value], ...] = (
        lambda x, gate: mul(mul(x, gate), 0.5),
        lambda x, gate: mul(mul(x, 0.5), gate),
        lambda x, gate: mul(x, mul(gate, 0.5)),
    )
    for (approximate, gate), product in itertools.product(gates, products):
        yield _gelu_pattern(approximate, gate, product)


def _gelu_pattern(
    approximate: str, gate: Callable[[Value], Value], product: Callable[[Value, Value], Value]
) -> Pattern:
    return Pattern(lambda x: product(x, add(gate(x), 1.0)), lambda: {"approximate": approximate})


gelu: Op = dataclasses.replace(
    _composite("gelu", _gelu, "y = x (1 + erf(x / sqrt 2)) / 2, or its approximation by tanh", approximate="none"),
    gradient=lambda n, dy: gelu_grad(dy, n.inputs[0], **n.attributes),
    pattern=tuple(_gelu_patterns()),
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


def _gelu_sums_infer(
    dy: TensorType, x: TensorType, *, approximate: str, keepdims: bool
) -> tuple[TensorType, TensorType]:
    dx = gelu_grad.infer(dy, x, approximate=approximate)
    assert isinstance(dx, TensorType)
    sums = reduce_sum.infer(dx, axes=tuple(range(dx.rank - 1)), keepdims=keepdims)
    assert isinstance(sums, TensorType)
    return dx, sums


def _gelu_sums(dy: Value, x: Value, *, approximate: str, keepdims: bool) -> tuple[Value, Value]:
    dx = gelu_grad(dy, x, approximate=approximate)
    return dx, reduce_sum(dx, axes=tuple(range(dx.type.rank - 1)), keepdims=keepdims)


gelu_grad_sums = MultiOp(
    "gelu_grad_sums",
    gelu_grad.inputs,
    _gelu_sums_infer,
    outputs=("dx", "sums"),
    attributes={**gelu_grad.attributes, "keepdims": False},
    decompose=_gelu_sums,
    doc="``gelu_grad``, and the sum of its result over all axes but the last",
)


def _prelu_infer(x: TensorType, slope: TensorType) -> TensorType:
    need_number("prelu", x, slope)
    dtype = same_dtype("prelu", x, slope)
    shape = broadcast_shape("prelu", x.shape, slope.shape)
    fits = shape == x.shape or (len(shape) == x.rank and not (x.is_bound and slope.is_bound))
    if not fits:
        raise InputError(f"prelu: slope {slope} doesn't broadcast to x, {x}")
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
    relu, relu_grad, sigmoid, softplus, softsign, leaky_relu, elu, selu, celu, thresholded_relu, hard_sigmoid,
    hard_swish, mish, gelu, gelu_grad, gelu_grad_sums, prelu,
)  # fmt: skip
