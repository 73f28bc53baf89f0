"""Fused ops: small graphs that a device may compute with one kernel.

Their patterns are found in finished graphs when a device offers a kernel for them (see passes/fuse.py); a device
without one runs the graph. Nobody writes them by hand, and autodiff never sees them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..errors import InputError
from ..ir.op import REQUIRED, MultiOp, Op, Pattern
from ..ir.types import TensorType, float32
from ..ir.value import Value
from . import activation, arithmetic, reduce
from .activation import relu
from .arithmetic import add, clip
from .conv import conv
from .infer import broadcast_shape, need
from .linalg import matmul
from .pool import max_pool
from .reduce import reduce_sum


def _matmul_bias_infer(a: TensorType, b: TensorType, bias: TensorType, addend: TensorType | None = None) -> TensorType:
    y = matmul.infer(a, b)
    assert isinstance(y, TensorType)
    fits = bias.dtype == y.dtype and bias.rank <= y.rank and bias.rank >= 1 and bias.shape[-1] == y.shape[-1]
    if not (fits and all(d == 1 for d in bias.shape[:-1])):
        raise InputError(f"matmul_bias: bias is {bias}; expected one element per column")
    if addend is not None and addend != y:
        raise InputError(f"matmul_bias: addend is {addend}; expected what the product gives, {y}")
    return y


def _matmul_bias(a: Value, b: Value, bias: Value, addend: Value | None = None) -> Any:
    y = add(matmul(a, b), bias)
    return y if addend is None else add(y, addend)


def _matmul_bias_relu(a: Value, b: Value, bias: Value) -> Any:
    return relu(add(matmul(a, b), bias))


def _conv_relu(x: Value, w: Value, bias: Value | None = None, **window: Any) -> Any:
    return relu(conv(x, w, bias, **window))


def _conv_clip_infer(*operands: Any, high: float, **window: Any) -> Any:
    if not 0.0 < high < math.inf:
        raise InputError(f"conv_clip: high is {high}; expected a finite number above 0")
    return conv.infer(*operands, **window)


def _conv_clip(x: Value, w: Value, bias: Value | None = None, *, high: float, **window: Any) -> Any:
    return clip(conv(x, w, bias, **window), 0.0, high)


def _conv_add_relu_infer(x: TensorType, w: TensorType, bias: TensorType, z: TensorType, **window: Any) -> Any:
    if z != (y := conv.infer(x, w, bias, **window)):
        raise InputError(f"conv_add_relu: z is {z}; expected what the convolution gives, {y}")
    return z


def _conv_add_relu(x: Value, w: Value, bias: Value, z: Value, **window: Any) -> Any:
    return relu(add(conv(x, w, bias, **window), z))


_OF_POOL = {key: f"pool_{key}" for key in max_pool.attributes}


def _parted(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of the convolution, and of the pool under its own names."""
    window = {key: attributes[key] for key in conv.attributes}
    return window, {key: attributes[name] for key, name in _OF_POOL.items()}


def _conv_relu_max_pool_infer(x: TensorType, w: TensorType, bias: TensorType | None = None, **attributes: Any) -> Any:
    window, pool = _parted(attributes)
    found = max_pool.infer(conv.infer(x, w, bias, **window), **pool)
    return found[0] if isinstance(found, tuple) else found


def _conv_relu_max_pool(x: Value, w: Value, bias: Value | None = None, **attributes: Any) -> Any:
    window, pool = _parted(attributes)
    return max_pool(_conv_relu(x, w, bias, **window), **pool)


def _add_relu(a: Value, b: Value) -> Any:
    return relu(add(a, b))


matmul_bias = Op(
    "matmul_bias",
    ("a", "b", "bias", "addend?"),
    _matmul_bias_infer,
    decompose=_matmul_bias,
    cost=matmul.cost,
    inplace=((0, 3),),
    pattern=(Pattern(_matmul_bias),),
    doc="y = a b + bias + addend; the bias has one element per column, the addend is like y",
)
matmul_bias_relu = Op(
    "matmul_bias_relu",
    ("a", "b", "bias"),
    _matmul_bias_infer,
    decompose=_matmul_bias_relu,
    cost=matmul.cost,
    pattern=(Pattern(_matmul_bias_relu),),
    doc="y = max(a b + bias, 0)",
)
conv_relu = Op(
    "conv_relu",
    conv.inputs,
    conv.infer,
    attributes=conv.attributes,
    decompose=_conv_relu,
    cost=conv.cost,
    pattern=(Pattern(_conv_relu),),
    doc="y = max(conv(x, w, bias), 0)",
)
conv_clip = Op(
    "conv_clip",
    conv.inputs,
    _conv_clip_infer,
    attributes={**conv.attributes, "high": REQUIRED},
    decompose=_conv_clip,
    cost=conv.cost,
    pattern=(Pattern(_conv_clip),),
    doc="y = min(max(conv(x, w, bias), 0), high); high is finite and above 0",
)
conv_add_relu = Op(
    "conv_add_relu",
    ("x", "w", "bias", "z"),
    _conv_add_relu_infer,
    attributes=conv.attributes,
    decompose=_conv_add_relu,
    cost=conv.cost,
    inplace=((0, 3),),
    pattern=(Pattern(_conv_add_relu),),
    doc="y = max(conv(x, w, bias) + z, 0)",
)
conv_relu_max_pool = Op(
    "conv_relu_max_pool",
    conv.inputs,
    _conv_relu_max_pool_infer,
    attributes={**conv.attributes, **{_OF_POOL[key]: value for key, value in max_pool.attributes.items()}},
    decompose=_conv_relu_max_pool,
    cost=lambda node: _conv_pool_cost(node),
    pattern=(Pattern(_conv_relu_max_pool),),
    doc="y = max_pool(max(conv(x, w, bias), 0)); the pool's attributes begin with pool_",
)
add_relu = Op(
    "add_relu",
    ("a", "b"),
    add.infer,
    decompose=_add_relu,
    inplace=((0, 0), (0, 1)),
    pattern=(Pattern(_add_relu),),
    doc="y = max(a + b, 0)",
)


def _conv_pool_cost(node: Any) -> int:
    """As the convolution's: of the windows, without strides, that the pool reads."""
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    planes = conv.infer(x.type, w.type, **_parted(node.attributes)[0])
    assert isinstance(planes, TensorType)
    return 2 * planes.elements * int(math.prod(w.type.sizes[1:])) + int(y.type.elements)


# ---- programs -----------------------------------------------------------------------------------------

PROGRAM_OPS: Mapping[str, Op] = MappingProxyType(
    {op.name: op for op in (*arithmetic.OPS, *activation.OPS) if isinstance(op, Op) and op.elementwise}
)
REDUCTIONS: Mapping[str, Op] = MappingProxyType({op.name: op for op in reduce.OPS if op.reduction})
STEP_NAMES = (
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "div", "erf", "exp",
    "floor", "hard_swish", "log", "maximum", "minimum", "mish", "mul", "neg", "reciprocal", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "relu", "relu_grad", "round", "sigmoid", "sign",
    "sin", "sinh", "softplus", "softsign", "sqrt", "sub", "tan", "tanh",
)  # fmt: skip
"""Ops in the order of their numbers, which plugins are compiled with: new ones go to the end."""
_OPS = {**PROGRAM_OPS, **REDUCTIONS}
STEPS: tuple[Op, ...] = tuple(_OPS[name] for name in (*STEP_NAMES, *sorted(_OPS.keys() - {*STEP_NAMES})))
"""What a step of a program can be; programs have the indices, and dataflow_steps.h names them for C."""
_CODES = {op.name: code for code, op in enumerate(STEPS)}


def program(*steps: tuple[Any, ...]) -> tuple[int, ...]:
    """The attribute ``program`` of ``fused_elementwise``: for each step the number of its op, then its operands.

    Args:
        steps: the op's name and its operands: numbers of inputs and, behind them, of earlier steps. ``("add", 0, 1)``.

    Raises:
        InputError: an op that can't be a step, or too few or many operands.
    """
    numbers: list[int] = []
    for name, *operands in steps:
        if name not in _CODES:
            raise InputError(f"fused_elementwise: {name!r} can't be a step")
        code = _CODES[name]
        if len(operands) != len(STEPS[code].inputs):
            raise InputError(f"fused_elementwise: step {name} {operands} doesn't fit the op")
        numbers += [code, *operands]
    return tuple(numbers)


def program_steps(program: Sequence[int]) -> list[tuple[Op, list[int]]]:
    """Each step's op and operands.

    Raises:
        InputError: the program is no list of steps.
    """
    steps = []
    at = 0
    while at < len(program):
        if not (0 <= program[at] < len(STEPS)):
            raise InputError(f"fused_elementwise: there is no op with number {program[at]}")
        op = STEPS[program[at]]
        operands = list(program[at + 1 : at + 1 + len(op.inputs)])
        if len(operands) != len(op.inputs):
            raise InputError(f"fused_elementwise: the program ends within the step {op.name}")
        steps.append((op, operands))
        at += 1 + len(operands)
    need(bool(steps), "fused_elementwise: the program is empty")
    return steps


def _parted_steps(program: Sequence[int], inputs: int, trailing: int) -> tuple[list[tuple[Op, list[int]]], Op | None]:
    """The elementwise steps, and the op of the reduction behind them, if there is one.

    Raises:
        InputError: a step reads what is not there, or the last one is no reduction of what the step before it gives.
    """
    steps = program_steps(program)
    reduction = None
    if trailing:
        reduction, operands = steps.pop()
        fits = steps and reduction.name in REDUCTIONS and operands == [inputs + len(steps) - 1]
        last = f"{reduction.name} {operands}"
        if not bool(fits):
            raise InputError(f"fused_elementwise: {last} is no reduction of what the step before it gives")
    for index, (op, operands) in enumerate(steps):
        if op.name not in PROGRAM_OPS:
            raise InputError(f"fused_elementwise: {op.name!r} can't be a step with no axes to reduce")
        there = all(0 <= operand < inputs + index for operand in operands)
        if not there:
            raise InputError(
                f"fused_elementwise: step {op.name} {operands} doesn't fit {inputs} inputs and {index} steps before it"
            )
    return steps, reduction


def _reduced(trailing: int, keepdims: bool, rank: int) -> dict[str, Any]:
    """The attributes of a reduction over the last axes."""
    return {"axes": tuple(range(rank - trailing, rank)), "keepdims": keepdims}


def _program_infer(*types: TensorType, program: Sequence[int], trailing: int, keepdims: bool) -> TensorType:
    known = list(types)
    steps, last = _parted_steps(program, len(types), trailing)
    for op, operands in steps:
        result = op.infer(*(known[o] for o in operands))
        assert isinstance(result, TensorType)
        known.append(result)
    shape = broadcast_shape("fused_elementwise", *(t.shape for t in types))
    need(
        all(t.shape == shape for t in known[len(types) :]), "fused_elementwise: all steps must have the result's shape"
    )
    if last is None:
        return known[-1]
    if not (trailing <= len(shape)):
        raise InputError(f"fused_elementwise: {trailing} axes can't be reduced of {shape}")
    result = last.infer(known[-1], **_reduced(trailing, keepdims, len(shape)))
    assert isinstance(result, TensorType)
    return result


def _program(*inputs: Value, program: Sequence[int], trailing: int, keepdims: bool) -> Any:
    values = list(inputs)
    steps, last = _parted_steps(program, len(inputs), trailing)
    for op, operands in steps:
        values.append(op(*(values[o] for o in operands)))
    return values[-1] if last is None else last(values[-1], **_reduced(trailing, keepdims, values[-1].type.rank))


def _program_cost(node: Any) -> int:
    """One operation per element and step."""
    steps = TensorType(float32, broadcast_shape("fused_elementwise", *(v.type.shape for v in node.inputs)))
    return steps.elements * len(program_steps(node.attributes["program"]))


fused_elementwise = Op(
    "fused_elementwise",
    ("inputs*",),
    _program_infer,
    attributes={"program": REQUIRED, "trailing": 0, "keepdims": False},
    decompose=_program,
    cost=lambda node: _program_cost(node),
    doc="elementwise ops one after another: ``program`` has for each step the number of its op and its operands, which "
    "are numbers of inputs and, behind them, of earlier steps; every step has the shape of the result, that of the "
    "last one. With trailing axes the last step is a reduction over so many, of what the step before it gives",
)


def _other_axes(kept: int, rank: int) -> tuple[int, ...]:
    need(
        0 <= kept < rank, f"fused_elementwise_sums: kept is {kept}; expected an axis, of {rank}, counted from the front"
    )
    return tuple(axis for axis in range(rank) if axis != kept)


def _sums_infer(
    *types: TensorType, program: Sequence[int], trailing: int, keepdims: bool, kept: int
) -> tuple[TensorType, TensorType]:
    need(trailing == 0, "fused_elementwise_sums: the program of the first result ends with no reduction")
    y = _program_infer(*types, program=program, trailing=0, keepdims=False)
    sums = reduce_sum.infer(y, axes=_other_axes(kept, y.rank), keepdims=keepdims)
    assert isinstance(sums, TensorType)
    return y, sums


def _program_sums(*inputs: Value, program: Sequence[int], trailing: int, keepdims: bool, kept: int) -> Any:
    y = _program(*inputs, program=program, trailing=trailing, keepdims=False)
    return y, reduce_sum(y, axes=_other_axes(kept, y.type.rank), keepdims=keepdims)


fused_elementwise_sums = MultiOp(
    "fused_elementwise_sums",
    ("inputs*",),
    _sums_infer,
    outputs=("y", "sums"),
    attributes={**fused_elementwise.attributes, "kept": REQUIRED},
    decompose=_program_sums,
    cost=lambda node: _program_cost(node) + node.outputs[0].type.elements,
    doc="``fused_elementwise`` with no reduction at its end, and the sum of its result over all axes but ``kept``, "
    "with axes of size 1 in their place if ``keepdims``",
)

OPS = (
    matmul_bias, matmul_bias_relu, conv_relu, conv_add_relu, conv_relu_max_pool, add_relu, fused_elementwise,
    fused_elementwise_sums, conv_clip,
)  # fmt: skip
