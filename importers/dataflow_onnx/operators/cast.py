"""Converters of casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow import Dim, DType, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..file.value_types import DTYPE_OF
from ..importer import Importer
from ..shape_eval import Known
from ..tensor import Tensor

T = Tensor
operator = Collector()


def dtype_of(number: int) -> DType:
    """The element type of that number."""
    dtype = DTYPE_OF.get(number)
    if dtype is None:
        raise ModelError(f"element type {number} is not known")
    return dtype


def _cast(c: Importer, x: T, dtype: Any, saturate: int, round_mode: str) -> Any:
    if x.known is not None and dtype.is_int:
        numbers = np.asarray(
            np.frompyfunc(lambda n: n if isinstance(n, Dim) else int(n), 1, 1)(x.known.numbers), object
        )
        limits = np.iinfo(dtype.numpy) if dtype.bits >= 8 else None
        if limits and all(isinstance(n, Dim) or limits.min <= n <= limits.max for n in numbers.reshape(-1)):
            return Known(numbers, dtype)
    source = x.type.dtype
    return x if source == dtype else ops.cast(c.value(x), to=dtype, saturate=bool(saturate), round_mode=round_mode)


@operator("Cast")
def Cast(c: Importer, x: T, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    return _cast(c, x, dtype_of(to), saturate, round_mode)


@operator("BitCast", 26)
def BitCast(c: Importer, x: T, *, to: int) -> Any:
    return ops.bitcast(c.value(x), to=dtype_of(to))


@operator("CastLike")
def CastLike(c: Importer, x: T, like: T, *, saturate: int = 1, round_mode: str = "up") -> Any:
    return _cast(c, x, like.type.dtype, saturate, round_mode)
