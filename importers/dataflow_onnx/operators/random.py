"""Converters of random numbers and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import DType, bool_, float32, float64, ops
from dataflow.errors import ModelError
from dataflow.plugin import UNSEEDED

from ..converters import Collector
from ..emit import cast_to, full, number
from ..importer import Importer
from ..tensor import Tensor
from .cast import dtype_of

T = Tensor
operator = Collector()


@operator("RandomNormalLike")
def RandomNormalLike(
    c: Importer, x: T, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Any:
    return _random(c, ops.random_normal, x.type.shape, dtype, x.type.dtype, seed, mean=mean, scale=scale)


@operator("RandomNormal")
def RandomNormal(
    c: Importer,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Any:
    return _random(c, ops.random_normal, tuple(shape), dtype, float32, seed, mean=mean, scale=scale)


@operator("RandomUniformLike")
def RandomUniformLike(
    c: Importer, x: T, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Any:
    return _random(c, ops.random_uniform, x.type.shape, dtype, x.type.dtype, seed, low=low, high=high)


@operator("RandomUniform")
def RandomUniform(
    c: Importer,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Any:
    return _random(c, ops.random_uniform, tuple(shape), dtype, float32, seed, low=low, high=high)


@operator("Bernoulli", 15)
def Bernoulli(c: Importer, x: T, *, dtype: int | None = None, seed: float | None = None) -> Any:
    chance = c.value(x)
    drawn = chance.type.dtype if chance.type.dtype.name == "float64" else float32
    uniform = _draw(c, ops.random_uniform, chance.type.shape, drawn, seed, low=0.0, high=1.0)
    hits = ops.less(uniform, cast_to(chance, drawn))
    return cast_to(hits, chance.type.dtype if dtype is None else dtype_of(dtype))


@operator("Multinomial", 7)
def Multinomial(c: Importer, x: T, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Any:
    """A class has the largest sum of its logarithm and noise of Gumbel's as often as it is probable."""
    logits = c.value(x)
    if logits.type.rank != 2 or sample_size < 1:
        raise ModelError(
            f"its input is {logits.type}, sample_size {sample_size}; expected (batch, classes), and one or more"
        )
    batch, classes = logits.type.shape
    drawn = logits.type.dtype if logits.type.dtype.name == "float64" else float32
    uniform = _draw(c, ops.random_uniform, (batch, sample_size, classes), drawn, seed, low=0.0, high=1.0)
    noise = ops.neg(ops.log(ops.neg(ops.log(uniform))))
    scores = ops.add(ops.reshape(cast_to(logits, drawn), shape=(batch, 1, classes)), noise)
    return cast_to(ops.argmax(scores, axis=2, keepdims=0), dtype_of(dtype))


def _random(c: Importer, op: Any, shape: Any, code: int | None, like: DType, seed: float | None, **how: float) -> Any:
    """Random numbers of the dtype with that code, else of another's."""
    return _draw(c, op, shape, like if code is None else dtype_of(code), seed, **how)


def _draw(c: Importer, op: Any, shape: Any, dtype: DType, seed: float | None, **how: float) -> Any:
    """Random numbers that depend on the seed and differ between nodes; without a seed, others in each run."""
    stream = sum(node.op.effects == "random" for node in c.builder.nodes())
    bits = UNSEEDED if seed is None else int(np.float32(seed).view(np.uint32))
    key = c.builder.constant(np.array([bits, 0], np.uint64))
    drawn = dtype if dtype.nbytes(1) >= 4 and dtype.is_float else float32
    made: Any = c.builder.add(op, (key,), {"shape": tuple(shape), "dtype": drawn, "stream": stream, **how}).outputs[0]
    return cast_to(made, dtype)


def _dropout(c: Importer, x: T, ratio: float | None) -> tuple[Any, ...]:
    """A dropout node, which drops in training alone; and a mask that keeps everything where the file reads one.

    A ratio of None depends on data; outside of training nothing depends on it.
    """
    if ratio is not None and not 0.0 <= ratio <= 1.0:
        raise ModelError(f"ratio is {ratio}; expected a number from 0 to 1")
    floats = ratio is not None and x.type.dtype.is_float and x.array is None and 0.0 < ratio < 1.0
    count = sum(node.op.name == "dropout" for node in c.builder.nodes())
    y = ops.dropout(c.value(x), None, ratio=ratio, stream=count) if floats else x
    if len(c.node.outputs) < 2 or not c.node.outputs[1]:
        return (y,)
    return y, full(c.builder, c.value(x).type.shape, 1.0, bool_)


def _training_dropout(c: Importer, x: T, ratio: T | None, training_mode: T, seed: int | None) -> tuple[Any, ...]:
    """What a node gives that drops whenever it runs, by other random numbers in each run.

    With a seed they are the same in each, and NumPy's, as onnx's reference draws them.
    """
    value = c.value(x)
    if seed is None:
        uniform = cast_to(_draw(c, ops.random_uniform, value.type.shape, float32, None), float64)
    else:
        numbers = {"shape": value.type.shape, "seed": seed & 0xFFFFFFFF}
        uniform = c.builder.add(ops.mersenne_uniform, (), numbers).outputs[0]
    share = number(c.builder, 0.5, float64) if ratio is None else cast_to(c.value(ratio), float64)
    trains = c.value(training_mode)
    share, trains = (ops.reshape(v, shape=()) if v.type.rank else v for v in (share, trains))
    share = ops.where(trains, share, number(c.builder, 0.0, float64))
    kept = ops.less_equal(share, uniform)
    scale = ops.cast(ops.reciprocal(ops.sub(1.0, share)), to=value.type.dtype)
    dropped = number(c.builder, 0.0, value.type.dtype)
    return (ops.where(kept, ops.mul(value, scale), dropped), kept)[: len(c.node.outputs)]


@operator("Dropout", 7)
def Dropout_7(c: Importer, x: T, *, ratio: float = 0.5) -> Any:
    return _dropout(c, x, ratio)


@operator("Dropout", 12)
def Dropout(
    c: Importer, x: T, ratio: T | None = None, training_mode: T | None = None, *, seed: int | None = None
) -> Any:
    if training_mode is not None:
        on = c.constant(training_mode)
        if on is None or (bool(np.asarray(on).any()) and any(map(c.is_used, c.node.outputs[1:]))):
            return _training_dropout(c, x, ratio, training_mode, seed)
        if np.asarray(on).any():  # exported while the network was trained
            c.inactive.append(c.node.describe())
    if ratio is None:
        return _dropout(c, x, 0.5)
    return _dropout(c, x, None if c.constant(ratio) is None else c.scalar(ratio, "ratio"))
