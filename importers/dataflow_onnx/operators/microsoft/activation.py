"""Converters of activation functions, with a bias or a gate before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dataflow import Dim, Value, float32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to, number, slice_axis
from ...importer import Importer
from ...tensor import Tensor

T = Tensor
operator = Collector("com.microsoft")
unversioned = Collector()
"""As in ``arithmetic``."""

_Parameters = Mapping[str, float]


def _clip(x: Value, p: _Parameters) -> Any:
    assert x.builder is not None
    return ops.clip(x, *(None if b is None else number(x.builder, b, x.type.dtype) for b in (p["alpha"], p["beta"])))


_ACTIVATIONS: Mapping[str, tuple[_Parameters, Callable[[Value, _Parameters], Any]]] = {
    "Clip": ({"alpha": float("-inf"), "beta": float("inf")}, _clip),
    "Elu": ({"alpha": 1.0}, lambda x, p: ops.elu(x, **p)),
    "HardSigmoid": ({"alpha": 0.2, "beta": 0.5}, lambda x, p: ops.hard_sigmoid(x, **p)),
    "HardSwish": ({}, lambda x, p: ops.hard_swish(x)),
    "LeakyRelu": ({"alpha": 0.01}, lambda x, p: ops.leaky_relu(x, **p)),
    "Relu": ({}, lambda x, p: ops.relu(x)),
    "Selu": ({"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}, lambda x, p: ops.selu(x, **p)),
    "Sigmoid": ({}, lambda x, p: ops.sigmoid(x)),
    "Softplus": ({}, lambda x, p: ops.softplus(x)),
    "Softsign": ({}, lambda x, p: ops.softsign(x)),
    "Tanh": ({}, lambda x, p: ops.tanh(x)),
    "ThresholdedRelu": ({"alpha": 1.0}, lambda x, p: ops.thresholded_relu(x, **p)),
}


def activated(x: Value, name: str, parameters: Mapping[str, float | None]) -> Any:
    """``x`` behind the activation that is fused into an operator; "" is none.

    Args:
        x: what it is applied to.
        name: of the operator.
        parameters: alpha, beta, gamma; None where the file gives none.

    Raises:
        ModelError: the activation is not known, or has no such parameter.
    """
    given = {key: value for key, value in parameters.items() if value is not None}
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise ModelError(f"activation is {name!r}; expected one of {', '.join(_ACTIVATIONS)}")
    defaults, function = _ACTIVATIONS[name]
    strange = given.keys() - defaults.keys()
    if strange:
        raise ModelError(f"activation {name} has no parameter {min(strange)!r}")
    return function(x, {**defaults, **given})


@operator("Gelu")
def Gelu(c: Importer, x: T) -> Any:
    return ops.gelu(c.value(x), approximate="none")


def biased(c: Importer, x: T, bias: T | None) -> Any:
    """The sum of a tensor and a bias, if there is one."""
    return c.value(x) if bias is None else ops.add(c.value(x), c.weight(bias))


@operator("BiasGelu")
def BiasGelu(c: Importer, x: T, bias: T) -> Any:
    return ops.gelu(biased(c, x, bias), approximate="none")


@operator("FastGelu")
def FastGelu(c: Importer, x: T, bias: T | None = None) -> Any:
    return ops.gelu(biased(c, x, bias), approximate="tanh")


@operator("QuickGelu")
def QuickGelu(c: Importer, x: T, *, alpha: float = 1.702) -> Any:
    value = c.value(x)
    return ops.mul(value, ops.sigmoid(value if alpha == 1.0 else ops.mul(value, alpha)))


@operator("BiasSplitGelu")
def BiasSplitGelu(c: Importer, x: T, bias: T) -> Any:
    """The first half of the last axis times the gelu of the second half."""
    value = biased(c, x, bias)
    size = value.type.shape[-1]
    if isinstance(size, Dim) or size % 2:
        raise ModelError(f"its input is {value.type}; expected a last axis of even size")
    gate = ops.gelu(slice_axis(value, -1, size // 2, size), approximate="none")
    return ops.mul(slice_axis(value, -1, 0, size // 2), gate)


@operator("ScaledSiLU")
def ScaledSiLU(c: Importer, x: T, scale: T | None = None, *, alpha: float = 1.0) -> Any:
    value = c.value(x)
    if scale is None:
        scaled = value if alpha == 1.0 else ops.mul(value, alpha)
    else:
        factor = cast_to(c.weight(scale), value.type.dtype)
        scaled = ops.mul(value, ops.reshape(factor, shape=()))
    return ops.mul(scaled, ops.sigmoid(scaled))


@operator("SwiGLU")
def SwiGLU(
    c: Importer,
    gate: T,
    up: T | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    limit: float = 0.0,
    round_activation: int = 0,
) -> Any:
    """A gate times its sigmoid, times what is linear; both are halves of one tensor where the second is left out."""
    first = cast_to(c.value(gate), float32)
    if up is None:
        size = first.type.shape[-1]
        if isinstance(size, Dim) or size % 2:
            raise ModelError(f"its input is {first.type}; expected a last axis of even size")
        first, second = slice_axis(first, -1, 0, size // 2), slice_axis(first, -1, size // 2, size)
    else:
        second = cast_to(c.value(up), float32)
    if limit > 0:
        bound = {"alpha": float("-inf"), "beta": limit}
        first, second = _clip(first, bound), _clip(second, {"alpha": -limit, "beta": limit})
    y = ops.mul(first, ops.sigmoid(first if activation_alpha == 1.0 else ops.mul(first, activation_alpha)))
    dtype = c.value(gate).type.dtype
    y = cast_to(cast_to(y, dtype), float32) if round_activation else y
    return cast_to(ops.mul(y, second if activation_beta == 0.0 else ops.add(second, activation_beta)), dtype)


@operator("LinearAttentionGate")
def LinearAttentionGate(c: Importer, a: T, dt_bias: T, decay_scale: T, b: T | None = None) -> Any:
    """The decay of a linear attention, and how much of it is updated."""
    dtype = c.value(a).type.dtype
    decay = ops.mul(ops.softplus(ops.add(cast_to(c.value(a), float32), c.weight(dt_bias))), c.weight(decay_scale))
    rate = () if b is None else (cast_to(ops.sigmoid(cast_to(c.value(b), float32)), dtype),)
    return cast_to(decay, dtype), *rate


@unversioned("ParametricSoftplus")
def ParametricSoftplus(c: Importer, x: T, *, alpha: float, beta: float) -> Any:
    return ops.mul(ops.softplus(ops.mul(c.value(x), beta)), alpha)


@unversioned("ScaledTanh")
def ScaledTanh(c: Importer, x: T, *, alpha: float, beta: float) -> Any:
    return ops.mul(ops.tanh(ops.mul(c.value(x), beta)), alpha)
