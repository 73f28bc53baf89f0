"""Reference of fused ops: their chains, one after the other."""

from __future__ import annotations

import numpy as np

from dataflow.ops.fused import REDUCTIONS

from .arithmetic import KERNELS as ELEMENTWISE
from .arithmetic import Array, Attributes, Code
from .pool import KERNELS as WINDOWS
from .shape import KERNELS as TENSORS


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _matmul_bias(attributes: Attributes, a: Array, b: Array, bias: Array) -> Array:
    return TENSORS["matmul"](attributes, a, b) + bias


def _conv_relu_max_pool(attributes: Attributes, *operands: Array) -> Array:
    pool = {key.removeprefix("pool_"): value for key, value in attributes.items() if key.startswith("pool_")}
    y, _ = WINDOWS["max_pool"](pool, _relu(WINDOWS["conv"](attributes, *operands)))
    return y


def _scores(attributes: Attributes, q: Array, kt: Array, mask: Array | None) -> Array:
    scores: Array = TENSORS["matmul"]({}, q, kt) * np.asarray(attributes["scale"], q.dtype)
    return scores if mask is None else scores + mask


def _attention(attributes: Attributes, q: Array, kt: Array, v: Array, mask: Array | None = None) -> tuple[Array, Array]:
    scores = _scores(attributes, q, kt, mask)
    most = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    y = TENSORS["matmul"]({}, weights / total, v)
    return y.transpose(0, 2, 1, 3) if attributes["turned"] else y, (most + np.log(total))[..., 0]


def _attention_grad(attributes: Attributes, *operands: Array) -> tuple[Array, ...]:
    dy, y, logsum, q, kt, v = operands[:6]
    mask = operands[6] if len(operands) > 6 else None
    if attributes["turned"]:
        dy, y = dy.transpose(0, 2, 1, 3), y.transpose(0, 2, 1, 3)
    weights = np.exp(_scores(attributes, q, kt, mask) - logsum[..., None])
    errors = weights * (dy @ np.swapaxes(v, -1, -2) - (dy * y).sum(-1, keepdims=True))
    errors *= np.asarray(attributes["scale"], errors.dtype)
    return errors @ np.swapaxes(kt, -1, -2), np.swapaxes(errors, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ dy


def _program(attributes: Attributes, *inputs: Array) -> Array:
    values = list(inputs)
    for step in attributes["program"].split(";"):
        name, *operands = step.split()
        if name in REDUCTIONS:
            rank = values[-1].ndim
            axes = {"axes": tuple(range(rank - attributes["trailing"], rank)), "keepdims": attributes["keepdims"]}
            return np.asarray(TENSORS[name](axes, values[-1]))
        values.append(np.asarray(ELEMENTWISE[name]({}, *(values[int(o)] for o in operands))))
    return values[-1]


KERNELS: dict[str, Code] = {
    "matmul_bias": _matmul_bias,
    "matmul_bias_relu": lambda attributes, a, b, bias: _relu(_matmul_bias(attributes, a, b, bias)),
    "conv_relu": lambda attributes, *operands: _relu(WINDOWS["conv"](attributes, *operands)),
    "conv_add_relu": lambda attributes, x, w, bias, z: _relu(WINDOWS["conv"](attributes, x, w, bias) + z),
    "conv_relu_max_pool": _conv_relu_max_pool,
    "attention": _attention,
    "attention_grad": _attention_grad,
    "add_relu": lambda attributes, a, b: _relu(a + b),
    "fused_elementwise": _program,
}
