"""Operators whose results or operands are maps: results are matrices with keys, which sessions give as maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import ops
from dataflow.errors import ModelError

from ...converters import Collector
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


@operator("CastMap")
def CastMap(c: Importer, x: T, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Any:
    raise ModelError("its operand is a map, which is not supported")


@operator("DictVectorizer")
def DictVectorizer(
    c: Importer, x: T, *, int64_vocabulary: Sequence[int] = (), string_vocabulary: Sequence[str] = ()
) -> Any:
    raise ModelError("its operand is a map, which is not supported")
