"""Converters of elementwise operators and reductions. Names and attributes are ONNX's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataflow import ops
from dataflow.errors import ModelError
from dataflow.graph import Value
from dataflow.types import Dim, bool_, float32

from .importing import Importer, Tensor
from .table import operator

T = Tensor


def _unary(onnx_name: str, op: Any) -> None:
    @operator(onnx_name)
    def convert(c: Importer, x: T) -> Any:
        return op(c.value(x))


for _name in [
    "Abs",
    "Neg",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Sigmoid",
    "Relu",
    "Erf",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Softplus",
    "Softsign",
    "HardSwish",
    "Mish",
]:
    _onnx_to_own = {"HardSwish": "hard_swish"}
    _unary(_name, getattr(ops, _onnx_to_own.get(_name, _name.lower())))
_unary("BitwiseNot", ops.bitwise_not)
_unary("IsNaN", ops.is_nan)


@operator("IsInf")
def IsInf(c: Importer, x: T, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    return ops.is_inf(c.value(x), detect_negative=detect_negative, detect_positive=detect_positive)


@operator("Identity")
def Identity(c: Importer, x: T) -> Any:
    return x


def _activation(onnx_name: str, op: Any, **defaults: float) -> None:
    @operator(onnx_name)
    def convert(c: Importer, x: T, **attributes: float) -> Any:
        unknown = set(attributes) - set(defaults)
        if unknown:
            raise ModelError(f"attribute {unknown.pop()!r} is not known")
        return op(c.value(x), **{**defaults, **attributes})


_activation("LeakyRelu", ops.leaky_relu, alpha=0.01)
_activation("Elu", ops.elu, alpha=1.0)
_activation("Selu", ops.selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
_activation("Celu", ops.celu, alpha=1.0)
_activation("ThresholdedRelu", ops.thresholded_relu, alpha=1.0)
_activation("HardSigmoid", ops.hard_sigmoid, alpha=0.2, beta=0.5)


@operator("Gelu", 20)
def Gelu(c: Importer, x: T, *, approximate: str = "none") -> Any:
    return ops.gelu(c.value(x), approximate=approximate)


@operator("PRelu")
def PRelu(c: Importer, x: T, slope: T) -> Any:
    return ops.prelu(c.value(x), c.weight(slope))


@operator("Clip")
def Clip_6(c: Importer, x: T, *, min: float | None = None, max: float | None = None) -> Any:
    value = c.value(x)
    bounds = [None if b is None else c.builder.scalar(b, value.type.dtype) for b in (min, max)]
    return ops.clip(value, *bounds)


@operator("Clip", 11)
def Clip(c: Importer, x: T, min: T | None = None, max: T | None = None) -> Any:
    bounds = []
    for bound in (min, max):
        value = None if bound is None else c.value(bound)
        if value is not None and value.type.rank:
            value = ops.reshape(value, shape=())
        bounds.append(value)
    return ops.clip(c.value(x), *bounds)


# ---- two operands ---------------------------------------------------------------------------------------


def _both_known(a: T, b: T) -> bool:
    return a.known is not None and b.known is not None


def _binary(onnx_name: str, op: Any, of_sizes: Callable[[Any, Any], Any] | None, role: str | None = None) -> None:
    @operator(onnx_name, 7)
    def convert(c: Importer, a: T, b: T) -> Any:
        if of_sizes is not None and _both_known(a, b) and (a.array is None or b.array is None):
            return np.asarray(np.frompyfunc(of_sizes, 2, 1)(a.known, b.known), object)
        if role == "bias" and a.array is None:
            return op(c.value(a), c.weight(b))
        if role == "bias" and b.array is None:
            return op(c.weight(a), c.value(b))
        return op(c.value(a), c.value(b))


@operator("Not")
def Not(c: Importer, x: T) -> Any:
    if x.known is not None and x.array is None:
        return np.asarray(np.frompyfunc(lambda a: not a, 1, 1)(x.known), object)
    return ops.logical_not(c.value(x))


def _number(size: Any) -> int:
    """A size that must be a whole number, since it is compared."""
    if isinstance(size, Dim):
        raise ModelError(f"the size {size} is compared with another; fix it when exporting")
    return int(size)


def _quotient(a: Any, b: Any) -> Any:
    """Of sizes, which aren't negative."""
    return a // b


_binary("Add", ops.add, lambda a, b: a + b, "bias")
_binary("Sub", ops.sub, lambda a, b: a - b)
_binary("Mul", ops.mul, lambda a, b: a * b, "bias")
_binary("Div", ops.div, _quotient)
_binary("Equal", ops.equal, lambda a, b: a == b)
_binary("Less", ops.less, lambda a, b: _number(a) < _number(b))
_binary("LessOrEqual", ops.less_equal, lambda a, b: _number(a) <= _number(b))
_binary("Greater", ops.greater, lambda a, b: _number(a) > _number(b))
_binary("GreaterOrEqual", ops.greater_equal, lambda a, b: _number(a) >= _number(b))
_binary("And", ops.logical_and, lambda a, b: bool(a and b))
_binary("Or", ops.logical_or, lambda a, b: bool(a or b))
_binary("Xor", ops.logical_xor, None)


@operator("Pow")
def Pow(c: Importer, a: T, b: T) -> Any:
    base, exponent = c.value(a), c.value(b)
    if exponent.type.dtype != base.type.dtype:
        exponent = ops.cast(exponent, to=base.type.dtype)
    return ops.pow(base, exponent)


@operator("Mod")
def Mod(c: Importer, a: T, b: T, *, fmod: int = 0) -> Any:
    return ops.mod(c.value(a), c.value(b), fmod=fmod)


@operator("Where")
def Where(c: Importer, condition: T, x: T, y: T) -> Any:
    if condition.known is not None and x.known is not None and y.known is not None:
        choose = np.frompyfunc(lambda which, a, b: a if which is True or which == 1 else b, 3, 1)
        return np.asarray(choose(condition.known, x.known, y.known), object)
    return ops.where(c.value(condition), c.value(x), c.value(y))


def _variadic(onnx_name: str, op: Any) -> None:
    @operator(onnx_name)
    def convert(c: Importer, *xs: T) -> Any:
        total = c.value(xs[0])
        for x in xs[1:]:
            total = op(total, c.value(x))
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


# ---- reductions -------------------------------------------------------------------------------------------


def _reduce_whole(name: str, x: Value, axes: Sequence[int], keepdims: int) -> Any:
    """One of ONNX's reductions, in terms of the ops."""
    over: dict[str, Any] = {"axes": tuple(axes), "keepdims": keepdims}
    if name == "ReduceL1":
        return ops.reduce_sum(ops.abs(x), **over)
    if name == "ReduceL2":
        return ops.sqrt(ops.reduce_sum(ops.mul(x, x), **over))
    if name == "ReduceSumSquare":
        return ops.reduce_sum(ops.mul(x, x), **over)
    if name == "ReduceLogSum":
        return ops.log(ops.reduce_sum(x, **over))
    if name == "ReduceLogSumExp":
        top = ops.reduce_max(x, axes=tuple(axes), keepdims=1)
        summed = ops.log(ops.reduce_sum(ops.exp(ops.sub(x, top)), axes=tuple(axes), keepdims=1))
        kept = ops.add(summed, top)
        return kept if keepdims else ops.reduce_sum(kept, **over)
    own = {"ReduceSum": ops.reduce_sum, "ReduceMean": ops.reduce_mean, "ReduceMax": ops.reduce_max}
    own |= {"ReduceMin": ops.reduce_min, "ReduceProd": ops.reduce_prod}
    if x.type.dtype == bool_ and name in ("ReduceMax", "ReduceMin"):
        return ops.cast(own[name](ops.cast(x, to=float32), **over), to=bool_)
    return own[name](x, **over)


def _reduce(name: str, since: int) -> None:
    """Until opset ``since`` the axes are an attribute, from then on an input."""

    @operator(name)
    def by_attribute(c: Importer, x: T, *, axes: Sequence[int] | None = None, keepdims: int = 1) -> Any:
        value = c.value(x)
        return _reduce_whole(name, value, range(value.type.rank) if axes is None else axes, keepdims)

    @operator(name, since)
    def by_input(c: Importer, x: T, axes: T | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        if name == "ReduceProd" and x.known is not None and x.array is None:
            product: Any = 1
            for size in x.known.reshape(-1):
                product = product * size
            result = np.empty((1,) if keepdims else (), object)
            result[...] = product
            return result
        value = c.value(x)
        chosen = None if axes is None else c.ints(axes, "axes")
        if not chosen:
            if noop_with_empty_axes:
                return _elementwise_part(name, value) if name != "ReduceSum" else x
            chosen = tuple(range(value.type.rank))
        return _reduce_whole(name, value, chosen, keepdims)


def _elementwise_part(name: str, x: Value) -> Any:
    """What a reduction over no axes leaves: its elementwise part."""
    return _reduce_whole(name, x, (), 1)


for _name in [
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
]:
    _reduce(_name, 18)
_reduce("ReduceSum", 13)


@operator("ArgMax")
def ArgMax(c: Importer, x: T, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return ops.argmax(c.value(x), axis=axis, keepdims=keepdims, select_last_index=select_last_index)


@operator("ArgMin")
def ArgMin(c: Importer, x: T, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    return ops.argmin(c.value(x), axis=axis, keepdims=keepdims, select_last_index=select_last_index)


def _cast(c: Importer, x: T, dtype: Any) -> Any:
    if x.known is not None and x.array is None and dtype.is_int:
        return x.known
    source = x.type.dtype
    for end in (source, dtype):
        if end is None or end.name == "string" or end.bits < 8 or end.name.startswith("float8"):
            raise ModelError(f"casting {source} to {dtype} is not supported")
    return x if source == dtype else ops.cast(c.value(x), to=dtype)


@operator("Cast")
def Cast(c: Importer, x: T, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    from .reader import DTYPE_OF

    dtype = DTYPE_OF.get(to)
    if dtype is None:
        raise ModelError(f"casting to element type {to} is not supported")
    return _cast(c, x, dtype)


@operator("CastLike")
def CastLike(c: Importer, x: T, like: T, *, saturate: int = 1, round_mode: str = "up") -> Any:
    return _cast(c, x, like.type.dtype)
