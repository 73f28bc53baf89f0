"""Layers by hand: functions that add a layer's nodes and parameters to a graph, ``df.nn.linear(g, x, 64)``.

Parameters are named ``weight`` and ``bias`` within the layer's name and the scopes around it, as
``encoder/fc1/weight``; two layers of one name in a scope are an error. They begin as PyTorch's do: uniform within
1 / sqrt(fan in), by ``seed`` and their name; biases too.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import init, ops
from .errors import InputError
from .host import checks
from .host.keywords import answer as _answer
from .host.numbers import integer
from .ir.builder import GraphBuilder
from .ir.dims import Dim, Size
from .ir.op import Op
from .ir.types import Array, DType, float32
from .ir.value import Value
from .ops.infer import normal_axes
from .ops.random import UNSEEDED


def linear(
    g: GraphBuilder,
    x: Value,
    features: int,
    *,
    bias: bool = True,
    name: str = "linear",
    weight: Any = None,
    seed: int = 0,
) -> Value:
    """The product with a weight, and a bias: (..., K) becomes (..., ``features``).

    Args:
        g: gets nodes and parameters.
        x: (..., K), with two axes or more.
        features: of the result.
        bias: whether there is one.
        name: of the layer.
        weight: (K, ``features``) to begin with; by default by ``seed``.
        seed: of the first values.

    Raises:
        InputError: sizes that don't fit.
    """
    sizes = (_size("linear", x, -1), integer("nn.linear: features", features))
    layer = _Layer(g, x, name, seed)
    y: Value = ops.matmul(x, layer.parameter("weight", sizes, sizes[0], weight))
    return ops.add(y, layer.parameter("bias", (features,), sizes[0])) if bias else y


def conv(
    g: GraphBuilder,
    x: Value,
    channels: int,
    window: int | Sequence[int],
    *,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
    name: str = "conv",
    weight: Any = None,
    seed: int = 0,
) -> Value:
    """A convolution: (N, C, *sizes) becomes (N, ``channels``, *sizes).

    Args:
        g: gets nodes and parameters.
        x: (N, C, *sizes).
        channels: of the result.
        window: sizes of the weight, or one for all axes.
        stride: along every axis.
        pad: on both sides of every axis.
        dilation: along every axis.
        groups: of channels.
        bias: whether there is one.
        name: of the layer.
        weight: (``channels``, C / ``groups``, *window) to begin with.
        seed: of the first values.

    Raises:
        InputError: sizes that don't fit.
    """
    axes, read = x.type.rank - 2, _size("conv", x, 1)
    given = (window,) * axes if isinstance(window, int) else tuple(window)
    if axes < 1 or len(given) != axes or read % integer("nn.conv: groups", groups):
        raise InputError(f"nn.conv: a window of {given} and {groups} groups don't fit x, which is {x.type}")
    sizes = (integer("nn.conv: channels", channels), read // groups, *given)
    layer, fan = _Layer(g, x, name, seed), math.prod(sizes[1:])
    w = layer.parameter("weight", sizes, fan, weight)
    b = layer.parameter("bias", (channels,), fan) if bias else None
    along: dict[str, Any] = {"strides": (stride,) * axes, "pads": (pad,) * 2 * axes, "dilations": (dilation,) * axes}
    found: Value = ops.conv(x, w, b, groups=groups, **along)
    return found


def embedding(
    g: GraphBuilder,
    tokens: Value,
    rows: int,
    features: int,
    *,
    name: str = "embedding",
    weight: Any = None,
    seed: int = 0,
) -> Value:
    """Rows of a table by their numbers: (...) becomes (..., ``features``); the table begins normal."""
    sizes = (integer("nn.embedding: rows", rows), integer("nn.embedding: features", features))
    layer = _Layer(g, tokens, name, seed)
    table = layer.given("weight", sizes, init.normal(sizes, layer.seed("weight")) if weight is None else weight)
    found: Value = ops.gather(table, tokens, axis=0)
    return found


def layer_norm(g: GraphBuilder, x: Value, *, epsilon: float = 1e-5, name: str = "layer_norm") -> Value:
    """Layer normalization over the last axis, with a scale of ones and a bias of zeros to begin with."""
    sizes = (_size("layer_norm", x, -1),)
    layer = _Layer(g, x, name, 0)
    scale, bias = layer.given("weight", sizes, init.ones(sizes)), layer.given("bias", sizes, init.zeros(sizes))
    return g.add(ops.layer_norm, (x, scale, bias), {"axis": -1, "epsilon": epsilon}).outputs[0]  # type: ignore[return-value]


def logsumexp(x: Value, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Value:
    """The logarithm of the sum of e^x over axes, all by default: -inf where all are -inf or there are none.

    Its gradient is that of PyTorch's: the softmax, NaN where all are -inf.

    Args:
        x: a float.
        axes: one or several, from the end where negative.
        keepdims: they stay, with size 1.

    Raises:
        InputError: x is no float, or has no such axis.
    """
    checks.instance("nn.logsumexp: x", x, Value)
    if not x.type.dtype.is_float:
        raise InputError(f"nn.logsumexp: x is {x.type}; expected a float")
    given = range(x.type.rank) if axes is None else (axes,) if isinstance(axes, (int, np.integer)) else axes
    over: dict[str, Any] = {"axes": normal_axes("nn.logsumexp", given, x.type.rank), "keepdims": keepdims}
    if any(x.type.shape[axis] == 0 for axis in over["axes"]):
        return ops.log(ops.reduce_sum(ops.exp(x), **over))  # type: ignore[no-any-return]
    top = ops.reduce_max(x, axes=over["axes"], keepdims=True)
    top = ops.where(ops.is_inf(top), 0.0, top)  # infinity less infinity is no number
    total = ops.reduce_sum(ops.exp(ops.sub(x, top)), axes=over["axes"], keepdims=True)
    found: Value = ops.add(ops.log(total), top)
    return found if keepdims else ops.reduce_sum(found, **over)


def normal(
    g: GraphBuilder, shape: Sequence[Size], *, mean: float = 0.0, scale: float = 1.0, dtype: DType = float32
) -> Value:
    """Normal noise of a shape, drawn anew in each run, step of training and iteration of a loop.

    Args:
        g: gets the node.
        shape: sizes, named ones too: ``x.shape``.
        mean: of the numbers.
        scale: their standard deviation.
        dtype: a float.

    Raises:
        InputError: a shape or dtype that doesn't fit.
    """
    return _drawn(g, ops.random_normal, shape, {"mean": mean, "scale": scale, "dtype": dtype})


def uniform(
    g: GraphBuilder, shape: Sequence[Size], *, low: float = 0.0, high: float = 1.0, dtype: DType = float32
) -> Value:
    """Uniform noise from ``low`` to below ``high``, drawn anew as that of ``normal``."""
    return _drawn(g, ops.random_uniform, shape, {"low": low, "high": high, "dtype": dtype})


def _drawn(g: GraphBuilder, op: Op, shape: Sequence[Size], attributes: dict[str, Any]) -> Value:
    """What an op draws by the key of the run."""
    checks.instance("nn: g", g, GraphBuilder)
    known = isinstance(shape, (tuple, list)) and all(isinstance(size, (int, np.integer, Dim)) for size in shape)
    if not known:
        raise InputError(
            f"nn: the shape of noise is {shape!r}; expected a list of sizes; named ones are those of a value, x.shape"
        )
    key = g.constant(np.array([UNSEEDED, 0], np.uint64), "key")
    return g.add(op, (key,), {"shape": shape, **attributes}).outputs[0]  # type: ignore[return-value]


class _Layer:
    """The parameters of a layer."""

    def __init__(self, g: GraphBuilder, x: Value, name: str, seed: int) -> None:
        checks.instance("nn: g", g, GraphBuilder)
        checks.instance("nn: x", x, Value)
        self._g, self._seed = g, integer("nn: seed", seed, 0)
        self._name = checks.text("nn: name", name)

    def seed(self, name: str) -> int:
        """Of a parameter's first values: by the layer's seed, and names with all scopes."""
        return zlib.crc32(f"{self._seed} {self._g.scoped(self._name)}/{name}".encode())

    def parameter(self, name: str, sizes: tuple[int, ...], fan: int, given: Any = None) -> Value:
        """A parameter that begins uniform within 1 / sqrt(fan), where no array is given."""
        if given is None:
            bound = 1.0 / math.sqrt(max(1, fan))
            given = init.uniform(sizes, self.seed(name), low=-bound, high=bound)
        return self.given(name, sizes, given)

    def given(self, name: str, sizes: tuple[int, ...], array: Array) -> Value:
        """A parameter that begins as an array."""
        found = checks.array(f"nn: {self._name}.{name}", array)
        if found.shape != sizes:
            raise InputError(f"nn: {self._name}.{name} is {list(found.shape)}; expected {list(sizes)}")
        return self._g.parameter(f"{self._name}/{name}", found)


def _size(what: str, x: Value, axis: int) -> int:
    checks.instance(f"nn.{what}: x", x, Value)
    size = x.type.shape[axis] if x.type.rank >= 2 else None
    if not isinstance(size, int):
        raise InputError(f"nn.{what}: axis {axis} of x, which is {x.type}, has no fixed size; it is that of the weight")
    return size


_answer(__name__)
