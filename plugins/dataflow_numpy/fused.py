"""Reference of fused ops: the kernels that they stand for, in order."""

from __future__ import annotations

import numpy as np

from dataflow.plugin import REDUCTIONS, program_steps

from . import activation, arithmetic, logic, reduce
from .arrays import Array, Attributes, Code
from .conv import conv
from .linalg import matmul
from .pool import max_pool

_ELEMENTWISE = {**arithmetic.KERNELS, **logic.KERNELS, **activation.KERNELS}


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _matmul_bias(attributes: Attributes, a: Array, b: Array, bias: Array, addend: Array | None = None) -> Array:
    y = matmul(attributes, a, b) + bias
    return y if addend is None else y + addend


def _conv_clip(attributes: Attributes, *operands: Array) -> Array:
    window = {key: value for key, value in attributes.items() if key != "high"}
    result: Array = np.clip(conv(window, *operands), 0.0, attributes["high"])
    return result.astype(operands[0].dtype)  # integers are clipped as float64


def _conv_relu_max_pool(attributes: Attributes, *operands: Array) -> Array:
    pool = {key.removeprefix("pool_"): value for key, value in attributes.items() if key.startswith("pool_")}
    y, _ = max_pool(pool, _relu(conv(attributes, *operands)))
    return y


def _program(attributes: Attributes, *inputs: Array) -> Array:
    values = list(inputs)
    for op, operands in program_steps(attributes["program"]):
        if op.name in REDUCTIONS:
            rank = values[-1].ndim
            axes = {"axes": tuple(range(rank - attributes["trailing"], rank)), "keepdims": attributes["keepdims"]}
            return np.asarray(reduce.KERNELS[op.name](axes, values[-1]))
        values.append(np.asarray(_ELEMENTWISE[op.name]({}, *(values[o] for o in operands))))
    return values[-1]


def _program_sums(attributes: Attributes, *inputs: Array) -> tuple[Array, Array]:
    y = _program(attributes, *inputs)
    axes = tuple(axis for axis in range(y.ndim) if axis != attributes["kept"])
    return y, np.asarray(reduce.KERNELS["reduce_sum"]({"axes": axes, "keepdims": attributes["keepdims"]}, y))


KERNELS: dict[str, Code] = {
    "matmul_bias": _matmul_bias,
    "matmul_bias_relu": lambda attributes, a, b, bias: _relu(_matmul_bias(attributes, a, b, bias)),
    "conv_relu": lambda attributes, *operands: _relu(conv(attributes, *operands)),
    "conv_clip": _conv_clip,
    "conv_add_relu": lambda attributes, x, w, bias, z: _relu(conv(attributes, x, w, bias) + z),
    "conv_relu_max_pool": _conv_relu_max_pool,
    "add_relu": lambda attributes, a, b: _relu(a + b),
    "fused_elementwise": _program,
    "fused_elementwise_sums": _program_sums,
}
