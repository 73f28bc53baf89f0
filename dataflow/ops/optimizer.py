"""Optimizer steps: parameters and their state, in place; norms of gradients; state in bytes."""

from __future__ import annotations

from typing import Any

from ..ir.op import MultiOp, Op
from ..ir.types import DType, TensorType, float32, float64, uint8
from ..ir.value import Value
from .arithmetic import add, mul
from .cast import cast
from .infer import alike, need, need_float
from .reduce import reduce_sum
from .shape import reshape


def _check(name: str, size: int, param: TensorType, grad: TensorType, hyper: TensorType, scale: TensorType) -> None:
    need_float(name, param)
    need(grad == param, f"{name}: the gradient is {grad}, the parameter {param}")
    dtype = _sum_dtype(param)
    need(hyper == TensorType(dtype, (size,)), f"{name}: hyper is {hyper}; expected {TensorType(dtype, (size,))}")
    need(scale == TensorType(dtype, ()), f"{name}: scale is {scale}; expected {TensorType(dtype, ())}")


def _sum_dtype(*types: TensorType | None) -> DType:
    """In which numbers of these types are summed: float64 where one is, else float32."""
    return float64 if any(type_ is not None and type_.dtype == float64 for type_ in types) else float32


def _sgd_infer(
    param: TensorType, grad: TensorType, velocity: TensorType | None, hyper: TensorType, scale: TensorType, **_: Any
) -> TensorType | tuple[TensorType, TensorType]:
    _check("sgd_step", 2, param, grad, hyper, scale)
    return param if velocity is None else (param, alike("sgd_step: param and velocity", velocity, param))


sgd_step: MultiOp = MultiOp(
    "sgd_step",
    ("param", "grad", "velocity?", "hyper", "scale"),
    _sgd_infer,
    outputs=("new_param", "new_velocity"),
    attributes={"momentum": 0.0, "nesterov": False},
    inplace=((0, 0), (1, 2)),
    gate=4,
    doc="g = grad scale + decay param; v = momentum v + g; param - rate (v, or g + momentum v); hyper: rate, decay; it"
    " and scale are float64 where the parameter is, else float32",
)


def _adamw_infer(
    param: TensorType,
    grad: TensorType,
    m: TensorType,
    v: TensorType,
    hyper: TensorType,
    scale: TensorType,
    **_: Any,
) -> tuple[TensorType, TensorType, TensorType]:
    _check("adamw_step", 4, param, grad, hyper, scale)
    alike("adamw_step: param, m and v", param, m, v)
    return param, m, v


adamw_step: MultiOp = MultiOp(
    "adamw_step",
    ("param", "grad", "m", "v", "hyper", "scale"),
    _adamw_infer,
    outputs=("new_param", "new_m", "new_v"),
    attributes={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    inplace=((0, 0), (1, 2), (2, 3)),
    gate=5,
    doc="Loshchilov and Hutter 2019: decoupled decay; hyper: rate, decay, 1 - beta1^t, 1 - beta2^t; it and scale are"
    " float64 where the parameter is, else float32",
)


def _square_infer(x: TensorType, before: TensorType | None) -> TensorType:
    need_float("square_sum", x)
    sums = (TensorType(float32, ()), TensorType(float64, ()))
    need(before in (None, *sums), f"square_sum: before is {before}; expected float32[] or float64[]")
    return TensorType(_sum_dtype(x, before), ())


def _square_sum(x: Value, before: Value | None) -> Value:
    flat = reshape(x, shape=(x.type.elements,))
    upcast = flat if x.type.dtype.bits >= 32 else cast(flat, to=float32)
    total = reduce_sum(mul(upcast, upcast), axes=(0,), keepdims=False)
    if before is None:
        return total
    dtype = _sum_dtype(x.type, before.type)
    return add(*(value if value.type.dtype == dtype else cast(value, to=dtype) for value in (before, total)))


square_sum: Op = Op(
    "square_sum",
    ("x", "before?"),
    _square_infer,
    decompose=_square_sum,
    doc="before + the sum of x^2 over all elements, float64[] where one of both is of float64, else float32[]: not"
    " finite where an element of x isn't",
)


def _squares_infer(*xs: TensorType) -> TensorType:
    for x in xs:
        need(x.dtype == float32, f"square_sums: an operand is {x}; expected float32")
    return TensorType(float32, ())


def _square_sums(*xs: Value) -> Value:
    total = _square_sum(xs[0], None)
    for x in xs[1:]:
        total = _square_sum(x, total)
    return total


square_sums: Op = Op(
    "square_sums",
    ("xs*",),
    _squares_infer,
    decompose=_square_sums,
    doc="the sum of x^2 over all elements of all operands, float32[]: what ``square_sum`` gives in a chain",
)

CODES = 256  # of a byte


def _blocks(x: TensorType, block: int) -> TensorType:
    need(isinstance(block, int) and block > 0, f"blocks of {block!r} elements; expected a count above 0")
    return TensorType(float32, (-(-x.elements // block),))


def _encode_infer(x: TensorType, code: TensorType, *, block: int) -> tuple[TensorType, TensorType]:
    need(x.dtype == float32, f"encode_blocks: x is {x}; expected float32")
    need(code == TensorType(float32, (CODES,)), f"encode_blocks: code is {code}; expected float32[{CODES}]")
    return TensorType(uint8, x.shape), _blocks(x, block)


encode_blocks: MultiOp = MultiOp(
    "encode_blocks",
    ("x", "code"),
    _encode_infer,
    outputs=("codes", "scales"),
    attributes={"block": 2048},
    doc="scales: the largest |x| of every block of x, in row-major order; codes: the index of the number of code, which"
    " ascends, that is nearest to x / scale, the lower one of two, 0 where that is NaN; 0 / 0 is 0 here",
)


def _decode_infer(codes: TensorType, scales: TensorType, code: TensorType, *, block: int) -> TensorType:
    need(codes.dtype == uint8, f"decode_blocks: codes are {codes}; expected uint8")
    need(scales == _blocks(codes, block), f"decode_blocks: scales are {scales}; expected {_blocks(codes, block)}")
    need(code == TensorType(float32, (CODES,)), f"decode_blocks: code is {code}; expected float32[{CODES}]")
    return TensorType(float32, codes.shape)


decode_blocks: Op = Op(
    "decode_blocks",
    ("codes", "scales", "code"),
    _decode_infer,
    attributes={"block": 2048},
    doc="code[codes] * the scale of their block; see encode_blocks",
)

OPS = (sgd_step, adamw_step, square_sum, square_sums, encode_blocks, decode_blocks)
