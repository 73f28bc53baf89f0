"""Converters of what prepares features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Dim, Value, float32, float64, int64, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to, full, number, slice_axis
from ...importer import Importer
from ...tensor import Tensor
from .scores import DOMAIN

T = Tensor
operator = Collector(DOMAIN)


def _per_feature(c: Importer, x: Value, numbers: Sequence[float]) -> Any:
    """One number for all features, or one for each.

    Raises:
        ModelError: there is another number of them.
    """
    features = x.type.shape[-1] if x.type.shape else 1
    if len(numbers) != 1 and not isinstance(features, Dim) and len(numbers) != features:
        raise ModelError(f"it has {len(numbers)} numbers for {features} features")
    return c.builder.constant(np.array(numbers, x.type.dtype.numpy))


@operator("Scaler")
def Scaler(c: Importer, x: T, *, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> Any:
    value = c.value(x)
    value = value if value.type.dtype == float64 else cast_to(value, float32)
    moved = ops.sub(value, _per_feature(c, value, offset))
    return cast_to(ops.mul(moved, _per_feature(c, value, scale)), float32)


@operator("Normalizer")
def Normalizer(c: Importer, x: T, *, norm: str = "MAX") -> Any:
    value = c.value(x)
    value = value if value.type.dtype == float64 else cast_to(value, float32)
    if value.type.rank not in (1, 2):
        raise ModelError(f"its input is {value.type}; expected rows of features")
    axes = (value.type.rank - 1,)
    if norm == "MAX":  # of the numbers, not of their magnitudes: as the standard and ONNX Runtime have it
        divisor = ops.reduce_max(value, axes=axes, keepdims=1)
    elif norm == "L1":
        divisor = ops.reduce_sum(ops.abs(value), axes=axes, keepdims=1)
    else:
        divisor = ops.reduce_sum(ops.mul(value, value), axes=axes, keepdims=1)
    divisor = ops.where(ops.equal(divisor, 0.0), number(c.builder, 1, value.type.dtype), divisor)
    # Taken of what was chosen: the square root of 0 has no derivative.
    return cast_to(ops.div(value, ops.sqrt(divisor) if norm == "L2" else divisor), float32)


@operator("Imputer")
def Imputer(
    c: Importer,
    x: T,
    *,
    imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Any:
    value = c.value(x)
    imputed, replaced = (imputed_value_floats, replaced_value_float)
    if value.type.dtype.is_int:
        imputed, replaced = (imputed_value_int64s, replaced_value_int64)
    if not imputed:
        raise ModelError(f"it has no imputed values for {value.type}")
    missing = ops.is_nan(value) if math.isnan(replaced) else ops.equal(value, replaced)
    return ops.where(missing, _per_feature(c, value, imputed), value)


@operator("Binarizer")
def Binarizer(c: Importer, x: T, *, threshold: float = 0.0) -> Any:
    value = c.value(x)
    limit = ops.cast(value, to=float64) if value.type.dtype.is_int else value
    return ops.cast(ops.greater(limit, threshold), to=value.type.dtype)


@operator("FeatureVectorizer")
def FeatureVectorizer(c: Importer, *xs: T | None, inputdimensions: Sequence[int] = ()) -> Any:
    if len(inputdimensions) not in (0, len(xs)):
        raise ModelError(f"it has {len(inputdimensions)} inputdimensions for {len(xs)} operands")
    columns = []
    for index, x in enumerate(xs):
        value = cast_to(c.value(x), float32)
        value = ops.reshape(value, shape=(1, value.type.shape[0])) if value.type.rank == 1 else value
        if value.type.rank != 2:
            raise ModelError(f"operand {index} is {value.type}; expected rows of features")
        columns.append(_resized(c, value, inputdimensions[index]) if inputdimensions else value)
    return ops.concat(*columns, axis=1) if len(columns) > 1 else columns[0]


def _resized(c: Importer, value: Value, count: int) -> Any:
    """The first ``count`` features, filled up with zeros."""
    rows, features = value.type.shape
    if isinstance(features, Dim):
        raise ModelError(f"the number of features {features} is named; fix it when exporting")
    if features >= count:
        return value if features == count else slice_axis(value, 1, 0, count)
    return ops.concat(value, full(c.builder, (rows, count - features), 0.0, value.type.dtype), axis=1)


@operator("ArrayFeatureExtractor")
def ArrayFeatureExtractor(c: Importer, x: T, indices: T) -> Any:
    value, at = c.value(x), cast_to(c.value(indices), int64)
    count: Any = 1
    for size in at.type.shape:
        count = count * size
    value = ops.reshape(value, shape=(1, value.type.shape[0])) if value.type.rank == 1 else value
    return ops.gather(value, ops.reshape(at, shape=(count,)), axis=value.type.rank - 1)
