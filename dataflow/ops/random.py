"""Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): the same on every device.

The key is uint64[2]: seed and step. Element i of a node takes word i mod 4 of the block whose counter is
(i // 4 low, i // 4 high, stream, step). One op has another generator, for files that mean its very numbers.
"""

from __future__ import annotations

from typing import Any

from ..ir.dims import Shape
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import DType, TensorType, float32, float64, uint64
from ..ir.value import Value
from .arithmetic import copy, mul
from .infer import need, need_float
from .logic import less, where

KEY = TensorType(uint64, (2,))
UNSEEDED = 1 << 63
"""The seed of nodes that have none: they get the key of a run, or of a step of training."""


def _need_key(name: str, key: TensorType) -> None:
    need(key == KEY, f"{name}: the key is {key}; expected {KEY}: seed and step")


def _source(name: str) -> Any:
    def infer(key: TensorType, *, shape: Shape, dtype: DType, **_: Any) -> TensorType:
        _need_key(name, key)
        made = TensorType(dtype, tuple(shape))
        need_float(name, made)
        return made

    return infer


random_uniform: Op = Op(
    "random_uniform",
    ("key",),
    _source("random_uniform"),
    attributes={"shape": REQUIRED, "low": 0.0, "high": 1.0, "dtype": float32, "stream": 0},
    effects="random",
    doc="low + u (high - low), u from 24 random bits",
)
random_normal: Op = Op(
    "random_normal",
    ("key",),
    _source("random_normal"),
    attributes={"shape": REQUIRED, "mean": 0.0, "scale": 1.0, "dtype": float32, "stream": 0},
    effects="random",
    doc="mean + scale z, z normal by Box and Muller's method",
)


def _mersenne_infer(*, shape: Shape, seed: int) -> TensorType:
    need(0 <= seed < 1 << 32, f"mersenne_uniform: seed is {seed}; expected a number of 32 bits")
    return TensorType(float64, tuple(shape))


mersenne_uniform: Op = Op(
    "mersenne_uniform",
    (),
    _mersenne_infer,
    attributes={"shape": REQUIRED, "seed": REQUIRED},
    doc="u from 53 bits of MT19937 (Matsumoto and Nishimura 1998), the numbers of numpy.random.RandomState(seed)",
)


def _dropout_infer(x: TensorType, key: TensorType | None = None, *, ratio: float, stream: int) -> TensorType:
    if key is not None:
        _need_key("dropout", key)
    need_float("dropout", x)
    need(0.0 <= ratio < 1.0, f"dropout: ratio is {ratio}; expected 0 <= it < 1")
    return x


def _dropout_gradient(node: Node, dy: Value) -> tuple[Value, None]:
    """The same elements again, from the same key: no mask is kept."""
    return dropout(dy, *node.inputs[1:], **node.attributes), None


def _dropout(x: Value, key: Value | None = None, *, ratio: float, stream: int) -> Value:
    if key is None:
        return copy(x)
    drawn = random_uniform(key, shape=x.type.shape, stream=stream)
    return where(less(drawn, ratio), 0.0, mul(x, 1.0 / (1.0 - ratio)))


dropout: Op = Op(
    "dropout",
    ("x", "key?"),
    _dropout_infer,
    attributes={"ratio": 0.5, "stream": 0},
    gradient=_dropout_gradient,
    decompose=_dropout,
    effects="random",
    inplace=((0, 0),),
    identity_without=1,
    doc="x / (1 - ratio) where u >= ratio, else 0; without a key, as outside of training, x",
)

OPS = (random_uniform, random_normal, mersenne_uniform, dropout)
