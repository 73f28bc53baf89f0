"""Converters of elementwise arithmetic. Names and attributes are ONNX's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow import float16, float64, ops

from ..converters import Collector
from ..emit import number
from ..importer import Importer
from ..tensor import Tensor
from .elementwise import binary, unary

T = Tensor
operator = Collector()

unary(operator, "Abs", ops.abs)
unary(operator, "Acos", ops.acos)
unary(operator, "Acosh", ops.acosh)
unary(operator, "Asin", ops.asin)
unary(operator, "Asinh", ops.asinh)
unary(operator, "Atan", ops.atan)
unary(operator, "Atanh", ops.atanh)
unary(operator, "Ceil", ops.ceil)
unary(operator, "Cos", ops.cos)
unary(operator, "Cosh", ops.cosh)
unary(operator, "Erf", ops.erf)
unary(operator, "Exp", ops.exp)
unary(operator, "Floor", ops.floor)
unary(operator, "Log", ops.log)
unary(operator, "Neg", ops.neg)
unary(operator, "Reciprocal", ops.reciprocal)
unary(operator, "Round", ops.round)
unary(operator, "Sign", ops.sign)
unary(operator, "Sin", ops.sin)
unary(operator, "Sinh", ops.sinh)
unary(operator, "Sqrt", ops.sqrt)
unary(operator, "Tan", ops.tan)
unary(operator, "Tanh", ops.tanh)
binary(operator, "Add", ops.add, learned=True)
binary(operator, "Sub", ops.sub)
binary(operator, "Mul", ops.mul, learned=True)
binary(operator, "Div", ops.div)


@operator("Identity")
def Identity(c: Importer, x: T) -> Any:
    if not c.record.noted.stopped.isdisjoint(c.node.outputs):
        return ops.stop_gradient(c.value(x))
    if x.array is not None and x.known is None:
        c.value(x)  # both names are then one parameter: the file could not hold two
    return x


@operator("Pow")
def Pow(c: Importer, a: T, b: T) -> Any:
    """In the base's dtype; computed in float64 where that doesn't hold the exponent."""
    base, exponent = c.value(a), c.value(b)
    own, other = base.type.dtype, exponent.type.dtype
    if other == own:
        return ops.pow(base, exponent)
    stored = None if b.array is None or not b.array.size else b.array
    with np.errstate(all="ignore"):
        fits = np.can_cast(other.numpy, own.numpy) or (
            stored is not None and bool((stored.astype(own.numpy).astype(stored.dtype) == stored).all())
        )
    if fits:
        return ops.pow(base, ops.cast(exponent, to=own))
    return ops.cast(ops.pow(*(ops.cast(v, to=float64) for v in (base, exponent))), to=own)


@operator("Mod")
def Mod(c: Importer, a: T, b: T, *, fmod: int = 0) -> Any:
    return ops.mod(c.value(a), c.value(b), fmod=fmod)


_LARGEST = float(np.finfo(np.float32).max)


@operator("Clip")
def Clip_6(c: Importer, x: T, *, min: float | None = None, max: float | None = None) -> Any:
    value = c.value(x)
    dtype = value.type.dtype
    low, high = -_LARGEST if min is None else min, _LARGEST if max is None else max
    far = np.inf if dtype != float16 else float(np.finfo(np.float16).max)  # a bound beyond is infinite, and none
    bounds = (None if low < -far else low, None if high > far else high)
    return ops.clip(value, *(None if bound is None else number(c.builder, bound, dtype) for bound in bounds))


@operator("Clip", 11)
def Clip(c: Importer, x: T, min: T | None = None, max: T | None = None) -> Any:
    bounds = []
    for bound in (min, max):
        value = None if bound is None else c.value(bound)
        if value is not None and value.type.rank:
            value = ops.reshape(value, shape=())
        bounds.append(value)
    return ops.clip(c.value(x), *bounds)


def _variadic(onnx_name: str, op: Any) -> None:
    @operator(onnx_name)
    def convert(c: Importer, *xs: T) -> Any:
        values = [c.value(x) for x in xs]
        total, *others = values if c.freed is None else c.freed.aligned(c, *values)
        for value in others:
            total = op(total, value)
        return total if len(xs) > 1 else xs[0]


_variadic("Sum", ops.add)
_variadic("Max", ops.maximum)
_variadic("Min", ops.minimum)


@operator("Mean")
def Mean(c: Importer, *xs: T) -> Any:
    total = c.value(xs[0])
    for x in xs[1:]:
        total = ops.add(total, c.value(x))
    return ops.mul(total, 1.0 / len(xs))
