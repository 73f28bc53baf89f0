"""Operators whose results or operands are maps: results are matrices with keys, which sessions give as maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Value, float32, int64, ops, string
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to as cast
from ...importer import Importer
from ...tensor import Tensor
from .scores import DOMAIN, rows_of

T = Tensor
operator = Collector(DOMAIN)


@operator("ZipMap")
def ZipMap(
    c: Importer, x: T, *, classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = ()
) -> Any:
    if bool(classlabels_int64s) == bool(classlabels_strings):
        raise ModelError("it has labels of both types, or none; expected classlabels_int64s or classlabels_strings")
    return ops.keyed(rows_of(c, x), keys=(*classlabels_int64s, *classlabels_strings))


@operator("DictVectorizer")
def DictVectorizer(
    c: Importer, x: T, *, int64_vocabulary: Sequence[int] = (), string_vocabulary: Sequence[str] = ()
) -> Any:
    return _columns(c, x, tuple(int64_vocabulary or string_vocabulary))


@operator("CastMap")
def CastMap(c: Importer, x: T, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Any:
    sparse = map_form == "SPARSE"
    value = _columns(c, x, tuple(range(max_map)) if sparse else ())
    of, to = value.type.dtype, _CASTS[cast_to]
    if (of == string and sparse) or (to == string and of != string):
        raise ModelError(f"it makes {to} of {of}, {map_form}; expected numbers, or DENSE and of string")
    return cast(value, to)


_CASTS = {"TO_FLOAT": float32, "TO_INT64": int64, "TO_STRING": string}


def _columns(c: Importer, x: T, keys: tuple[Any, ...]) -> Value:
    """The columns of these keys, in order, of the matrix that an input of the model is, which is a map; none: all.

    Raises:
        ModelError: the operand is something else.
    """
    known = c.record.graph.vocabularies.get(x.name)
    if known is None:
        raise ModelError(f"its operand {x.name!r} is {x.type}; expected a map, which is an input of the model")
    if keys == known:
        return c.value(x)
    index = {key: column for column, key in enumerate(known)}
    return ops.gather(c.value(x), c.builder.constant(np.array([index[key] for key in keys], np.int64)), axis=1)
