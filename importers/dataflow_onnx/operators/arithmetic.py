"""Converters of elementwise operators and reductions. Names and attributes are ONNX's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import ops
from dataflow.errors import ModelError
from dataflow.ir.dims import Dim
from dataflow.ir.types import DType, bool_, float32, float64
from dataflow.ir.value import Value

from ..converters import Collector
from ..file.reader import DTYPE_OF
from ..importer import Importer, Tensor
from ..shape_eval import Known, axes_in

T = Tensor
operator = Collector()


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


@operator("Swish", 24)
def Swish(c: Importer, x: T, *, alpha: float = 1.0) -> Any:
    value = c.value(x)
    return ops.mul(value, ops.sigmoid(value if alpha == 1.0 else ops.mul(value, alpha)))


@operator("Shrink", 9)
def Shrink(c: Importer, x: T, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    value = c.value(x)
    zero = c.builder.scalar(0.0, value.type.dtype)
    inner = ops.where(ops.greater(value, lambd), ops.sub(value, bias), zero)
    return ops.where(ops.less(value, -lambd), ops.add(value, bias), inner)


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


def _binary(onnx_name: str, op: Any, learned: bool = False) -> None:
    """With ``learned``, an operand that is stored is a parameter when the other isn't."""

    @operator(onnx_name, 7)
    def convert(c: Importer, a: T, b: T) -> Any:
        if learned and a.array is None:
            return op(c.value(a), c.weight(b, single=False))
        if learned and b.array is None:
            return op(c.weight(a, single=False), c.value(b))
        return op(c.value(a), c.value(b))


_binary("Add", ops.add, learned=True)
_binary("Sub", ops.sub)
_binary("Mul", ops.mul, learned=True)
_binary("Div", ops.div)
_binary("Equal", ops.equal)
_binary("Less", ops.less)
_binary("LessOrEqual", ops.less_equal)
_binary("Greater", ops.greater)
_binary("GreaterOrEqual", ops.greater_equal)
_binary("And", ops.logical_and)
_binary("Or", ops.logical_or)
_binary("Xor", ops.logical_xor)
_unary("Not", ops.logical_not)


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


@operator("Where")
def Where(c: Importer, condition: T, x: T, y: T) -> Any:
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


_OF_NOTHING = {"ReduceMax": -1, "ReduceMin": 1, "ReduceLogSumExp": -1}  # the sign of what ONNX gives


def _of_nothing(name: str, x: Value, axes: Sequence[int], keepdims: int) -> Any:
    """A reduction of no elements: the least or greatest number."""
    sign, dtype = _OF_NOTHING[name], x.type.dtype
    fill: Any = sign * float("inf")
    if dtype == bool_:
        fill = sign > 0
    elif dtype.is_int:
        limits = np.iinfo(dtype.numpy)
        fill = limits.max if sign > 0 else limits.min
    shape = ops.reduce_sum(ops.cast(x, to=float32), axes=axes, keepdims=keepdims).type.shape
    assert x.builder is not None
    number = x.builder.constant(np.full((), fill, dtype.numpy))
    return ops.broadcast_to(number, shape=shape)


def _reduce_whole(name: str, x: Value, axes: Sequence[int], keepdims: int) -> Any:
    """One of ONNX's reductions, in terms of the ops."""
    over: dict[str, Any] = {"axes": tuple(axes), "keepdims": keepdims}
    if name in _OF_NOTHING and any(x.type.shape[a] == 0 for a in axes_in(axes, x.type.rank)):
        return _of_nothing(name, x, **over)
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
        zero = x.builder.scalar(0.0, x.type.dtype)  # type: ignore[union-attr]
        top = ops.where(ops.is_inf(top), zero, top)  # infinity less infinity is no number
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
    if x.known is not None and dtype.is_int:
        numbers = np.asarray(
            np.frompyfunc(lambda n: n if isinstance(n, Dim) else int(n), 1, 1)(x.known.numbers), object
        )
        limits = np.iinfo(dtype.numpy) if dtype.bits >= 8 else None
        if limits and all(isinstance(n, Dim) or limits.min <= n <= limits.max for n in numbers.reshape(-1)):
            return Known(numbers, dtype)
    source = x.type.dtype
    for end in (source, dtype):
        if end is None or end.name == "string" or end.bits < 8 or end.name.startswith("float8"):
            raise ModelError(f"casting {source} to {dtype} is not supported")
    return x if source == dtype else ops.cast(c.value(x), to=dtype)


def dtype_of(number: int) -> DType:
    """The element type of that number."""
    dtype = DTYPE_OF.get(number)
    if dtype is None:
        raise ModelError(f"casting to element type {number} is not supported")
    return dtype


@operator("Cast")
def Cast(c: Importer, x: T, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    return _cast(c, x, dtype_of(to))


@operator("CastLike")
def CastLike(c: Importer, x: T, like: T, *, saturate: int = 1, round_mode: str = "up") -> Any:
    return _cast(c, x, like.type.dtype)
