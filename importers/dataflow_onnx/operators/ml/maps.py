"""Operators whose results or operands are maps, which are no tensors: they say what to do instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow.errors import ModelError

from ...converters import Collector
from ...importer import Importer
from ...tensor import Tensor
from .scores import DOMAIN

T = Tensor
operator = Collector(DOMAIN)


@operator("ZipMap")
def ZipMap(
    c: Importer, x: T, *, classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = ()
) -> Any:
    raise ModelError(
        f"its result is a list of maps, which is not supported: load the tensor before it, outputs=[{x.name!r}], or "
        "export with zipmap=False"
    )


@operator("CastMap")
def CastMap(c: Importer, x: T, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Any:
    raise ModelError("its operand is a map, which is not supported")


@operator("DictVectorizer")
def DictVectorizer(
    c: Importer, x: T, *, int64_vocabulary: Sequence[int] = (), string_vocabulary: Sequence[str] = ()
) -> Any:
    raise ModelError("its operand is a map, which is not supported")
