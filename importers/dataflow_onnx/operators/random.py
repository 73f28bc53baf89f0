"""Converters of random numbers and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import DType, bool_, float32, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import cast_to, full
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


def _random(c: Importer, op: Any, shape: Any, number: int | None, like: DType, seed: float | None, **how: float) -> Any:
    """Random numbers that are equal in every run: they depend on the seed and differ between nodes."""
    dtype = like if number is None else dtype_of(number)
    stream = sum(node.op.effects == "random" for node in c.builder.nodes())
    bits = 0 if seed is None else int(np.float32(seed).view(np.uint32))
    key = c.builder.constant(np.array([bits, 0], np.uint64))
    drawn = dtype if dtype.nbytes(1) >= 4 and dtype.is_float else float32
    made: Any = c.builder.add(op, (key,), {"shape": tuple(shape), "dtype": drawn, "stream": stream, **how}).outputs[0]
    return cast_to(made, dtype)


def _dropout(c: Importer, x: T, ratio: float) -> tuple[Any, ...]:
    """A dropout node, which drops in training alone; and a mask that keeps everything where the file reads one."""
    if not 0.0 <= ratio <= 1.0:
        raise ModelError(f"ratio is {ratio}; expected a number from 0 to 1")
    floats = x.type.dtype.is_float and x.array is None and 0.0 < ratio < 1.0
    count = sum(node.op.name == "dropout" for node in c.builder.nodes())
    y = ops.dropout(c.value(x), None, ratio=ratio, stream=count) if floats else x
    if len(c.node.outputs) < 2 or not c.node.outputs[1]:
        return (y,)
    return y, full(c.builder, c.value(x).type.shape, 1.0, bool_)


@operator("Dropout", 7)
def Dropout_7(c: Importer, x: T, *, ratio: float = 0.5) -> Any:
    return _dropout(c, x, ratio)


@operator("Dropout", 12)
def Dropout(c: Importer, x: T, ratio: T | None = None, training_mode: T | None = None, *, seed: int = 0) -> Any:
    if training_mode is not None:
        on = training_mode.array
        if on is None or bool(np.asarray(on).any()):
            raise ModelError("the node drops in training mode; export the model in inference mode")
    return _dropout(c, x, 0.5 if ratio is None else c.scalar(ratio, "ratio"))
