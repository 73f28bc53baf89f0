"""Converters of dropout behind a bias and before a residual sum."""

from __future__ import annotations

from typing import Any

from dataflow import ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...importer import Importer
from ...tensor import Tensor
from ..random import Dropout
from .activation import biased

T = Tensor
operator = Collector("com.microsoft")


def _dropped(c: Importer, x: T, ratio: T | None, training_mode: T | None, bits: bool) -> tuple[Any, ...]:
    """The value after a dropout node, and its mask where the file reads one."""
    if bits and len(c.node.outputs) > 1 and c.node.outputs[1]:
        raise ModelError(f"its output {c.node.outputs[1]!r}, a mask of single bits, is not supported")
    y, *mask = Dropout(c, x, ratio, training_mode)
    return (c.value(y) if isinstance(y, Tensor) else y, *mask)


def _bias_dropout(name: str, bits: bool) -> None:
    @operator(name)
    def convert(
        c: Importer,
        x: T,
        bias: T,
        residual: T | None = None,
        ratio: T | None = None,
        training_mode: T | None = None,
        *,
        seed: int = 0,
    ) -> Any:
        y, *mask = _dropped(c, Tensor(x.name, biased(c, x, bias)), ratio, training_mode, bits)
        return (y if residual is None else ops.add(y, c.value(residual)), *mask)


_bias_dropout("BiasDropout", bits=False)
_bias_dropout("BitmaskBiasDropout", bits=True)


@operator("BitmaskDropout")
def BitmaskDropout(c: Importer, x: T, ratio: T | None = None, training_mode: T | None = None, *, seed: int = 0) -> Any:
    return _dropped(c, x, ratio, training_mode, bits=True)
